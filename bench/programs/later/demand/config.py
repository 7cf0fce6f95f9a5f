from dataclasses import dataclass


@dataclass(frozen=True)
class DataConfig:
    meters: int = 32
    hours: int = 8760
    history: int = 96
    horizon: int = 36
    batch_size: int = 64
    seed: int = 11


@dataclass(frozen=True)
class ModelConfig:
    width: int = 96
    heads: int = 4
    blocks: int = 2
    calendar_features: int = 6
    quantiles: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


@dataclass(frozen=True)
class TrainConfig:
    steps: int = 36
    lr: float = 2e-3
    weight_decay: float = 1e-4
    clip: float = 1.0
    print_every: int = 5
    seed: int = 3
