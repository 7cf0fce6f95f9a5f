"""Synthetic hourly electricity load of a few dozen meters."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from config import DataConfig


def make_load(cfg: DataConfig) -> np.ndarray:
    """Load in kW, [meters, hours]."""
    rng = np.random.default_rng(cfg.seed)
    hour = np.arange(cfg.hours)
    base = rng.uniform(2.0, 12.0, size=(cfg.meters, 1))
    phase = rng.uniform(0.0, 2 * np.pi, size=(cfg.meters, 1))
    daily = 0.35 * np.sin(2 * np.pi * hour / 24 + phase)
    weekly = 0.15 * np.cos(2 * np.pi * hour / 168 + phase / 2)
    yearly = 0.25 * np.cos(2 * np.pi * hour / 8760)
    noise = 0.05 * rng.standard_normal((cfg.meters, cfg.hours))
    return (base * (1 + daily + weekly + yearly + noise)).astype(np.float32)


def make_calendar(hours: int) -> torch.Tensor:
    """Hour of day, day of week and day of year as sines and cosines, [hours, 6]."""
    hour = torch.arange(hours, dtype=torch.float32)
    columns = []
    for period in (24.0, 168.0, 8760.0):
        angle = 2 * torch.pi * hour / period
        columns += [angle.sin(), angle.cos()]
    return torch.stack(columns, dim=1)


class LoadWindows(Dataset):
    """Windows of history and the hours to forecast, in units of each meter's own scale."""

    def __init__(self, load: np.ndarray, cfg: DataConfig):
        self.load = torch.from_numpy(load)
        self.calendar = make_calendar(load.shape[1])
        self.history = cfg.history
        self.horizon = cfg.horizon
        self.per_meter = load.shape[1] - cfg.history - cfg.horizon

    def __len__(self) -> int:
        return self.load.shape[0] * self.per_meter

    def __getitem__(self, index: int):
        meter, start = divmod(index, self.per_meter)
        middle = start + self.history
        end = middle + self.horizon
        mean = self.load.mean(dim=1, keepdim=True)
        std = self.load.std(dim=1, keepdim=True)
        scaled = (self.load - mean) / std
        past = scaled[meter, start:middle]
        future = scaled[meter, middle:end]
        return past, self.calendar[start:middle], self.calendar[middle:end], future


def make_loader(cfg: DataConfig) -> DataLoader:
    return DataLoader(
        LoadWindows(make_load(cfg), cfg),
        batch_size=cfg.batch_size,
        shuffle=True,
        drop_last=True,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator().manual_seed(cfg.seed),
    )
