"""Runs a branch on a side stream between two waits."""

import torch
from torch import nn


class TwoBranches(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.side = torch.cuda.Stream() if torch.cuda.is_available() else None

    def forward(self, x):
        if self.side is None:
            return self.left(x) + self.right(x)
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            right = self.right(x)
        left = self.left(x)
        torch.cuda.current_stream().wait_stream(self.side)
        return left + right


device = "cuda" if torch.cuda.is_available() else "cpu"
model = TwoBranches().to(device)
with torch.no_grad():
    for _ in range(4):
        model(torch.randn(4, 16, device=device))
