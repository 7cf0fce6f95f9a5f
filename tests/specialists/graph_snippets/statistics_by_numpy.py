"""Normalises by statistics that NumPy computes."""

import numpy as np
import torch
from torch import nn


class Normaliser(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        h = self.linear(x)
        values = h.detach().cpu().numpy()  #: host-read
        mean, std = float(np.mean(values)), float(np.std(values))
        return (h - mean) / (std + 1e-5)


device = "cuda" if torch.cuda.is_available() else "cpu"
net = Normaliser(24).to(device)
for _ in range(5):
    with torch.no_grad():
        out = net(torch.randn(3, 24, device=device))
print(out.shape)
