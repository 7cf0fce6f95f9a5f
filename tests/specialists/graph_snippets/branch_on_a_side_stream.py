"""Runs a branch on a side stream, and does not wait for it."""

import torch
from torch import nn


class TwoBranches(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.side = torch.cuda.Stream() if torch.cuda.is_available() else None

    def forward(self, x):
        with torch.cuda.stream(self.side):  #: stream
            right = self.right(x)
        return self.left(x) + right


device = "cuda" if torch.cuda.is_available() else "cpu"
model = TwoBranches().to(device)
with torch.no_grad():
    for _ in range(4):
        model(torch.randn(4, 16, device=device))
