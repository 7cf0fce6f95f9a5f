"""Repeats each row by a predicted count."""

import torch
from torch import nn


class LengthRegulator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.durations, self.out = nn.Linear(width, 1), nn.Linear(width, width)

    def forward(self, x):
        counts = self.durations(x).squeeze(-1).exp().round().long().clamp(1, 5)
        frames = torch.repeat_interleave(x, counts, dim=0)  #: data-shape
        return self.out(frames)


device = "cuda" if torch.cuda.is_available() else "cpu"
regulator = LengthRegulator().to(device).eval()
with torch.no_grad():
    for _ in range(4):
        regulator(torch.randn(7, 16, device=device))
