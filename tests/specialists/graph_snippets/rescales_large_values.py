"""Rescales the hidden layer if a value is large."""

import torch
import torch.nn as nn


class Guarded(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if x.abs().max() > 10.0:  #: data-branch
                x = x * 0.1
        return x


dev = "cuda" if torch.cuda.is_available() else "cpu"
model = Guarded().to(dev)
for _ in range(5):
    with torch.no_grad():
        y = model(torch.randn(4, 32, device=dev))
