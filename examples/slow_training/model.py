"""A transformer that names the sound of each frame of a recording."""

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Sizes:
    """frames: of a recording. features: of a frame. sounds: how many there are. steps: of a run."""

    batch: int
    frames: int
    features: int
    width: int
    heads: int
    layers: int
    sounds: int
    steps: int


ON_GPU = Sizes(batch=4, frames=2048, features=512, width=768, heads=12, layers=6, sounds=8192, steps=201)
ON_CPU = Sizes(batch=4, frames=64, features=32, width=64, heads=4, layers=2, sounds=256, steps=61)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """The tanh form of GELU, as in the paper."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, frames, width = x.shape
        q, k, v = self.qkv(x).view(batch, frames, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.matmul(weights, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, frames, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(gelu(self.up(self.second(x))))


class SoundModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.begin = nn.Linear(sizes.features, sizes.width)
        self.blocks = nn.Sequential(*(Block(sizes.width, sizes.heads) for _ in range(sizes.layers)))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.sounds)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Returns the scores of the sounds, (batch × frames, sounds), in float32."""
        with torch.autocast(frames.device.type, torch.bfloat16, enabled=frames.is_cuda):
            x = self.norm(self.blocks(self.begin(frames)))
        return self.head(x.float()).flatten(0, 1)
