"""A small ConvNeXt-like backbone."""

import torch
from torch import nn


class LayerNorm2d(nn.Module):
    """Layer normalisation over the channels of (N, C, H, W)."""

    def __init__(self, channels: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Block(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = LayerNorm2d(channels)
        self.expand = nn.Conv2d(channels, 4 * channels, 1)
        self.activation = nn.GELU()
        self.project = nn.Conv2d(4 * channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x))
        return x + self.project(self.activation(self.expand(y)))


class Backbone(nn.Module):
    def __init__(self, channels: tuple[int, ...], depths: tuple[int, ...]):
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, channels[0], 4, stride=4), LayerNorm2d(channels[0])]
        for stage, (width, depth) in enumerate(zip(channels, depths, strict=False)):
            if stage:
                layers += [LayerNorm2d(channels[stage - 1]), nn.Conv2d(channels[stage - 1], width, 2, stride=2)]
            layers += [Block(width) for _ in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(channels[-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layers(x).mean(dim=(2, 3)))


class Classifier(nn.Module):
    def __init__(self, channels: tuple[int, ...], depths: tuple[int, ...], classes: int):
        super().__init__()
        features = channels[-1]
        self.backbone = Backbone(channels, depths)
        self.head = nn.Sequential(nn.Linear(features, features), nn.GELU(), nn.Linear(features, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))
