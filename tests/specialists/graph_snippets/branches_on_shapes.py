"""Branches on shapes, modes and None only."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, residual: bool = True) -> None:
        super().__init__()
        self.norm, self.linear, self.residual = nn.LayerNorm(width), nn.Linear(width, width), residual

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        h = self.linear(self.norm(x))
        if mask is not None:
            h = h.masked_fill(mask, 0.0)
        if x.shape[0] > 64:
            h = h.contiguous()
        if self.training:
            h = nn.functional.dropout(h, 0.1)
        assert h.dim() == 3, h.shape
        return x + h if self.residual else h


device = "cuda" if torch.cuda.is_available() else "cpu"
block = Block(32).to(device).eval()
for _ in range(4):
    with torch.no_grad():
        block(torch.randn(2, 5, 32, device=device))
