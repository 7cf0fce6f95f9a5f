"""Averages the positive activations."""

import torch
from torch import nn


class MeanOfPositive(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(20, 40)

    def forward(self, x):
        h = self.proj(x)
        kept = h[h > 0]  #: data-shape
        return kept.mean()


device = "cuda" if torch.cuda.is_available() else "cpu"
model = MeanOfPositive().to(device)
total = 0.0
for _ in range(5):
    with torch.no_grad():
        total += model(torch.randn(6, 20, device=device)).item()
print(total)
