"""Adds noise from a generator of its own."""

import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self, width, device):
        super().__init__()
        self.linear = nn.Linear(width, width, device=device)
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(7)

    def forward(self, x):
        noise = torch.randn(x.shape, generator=self.generator, device=x.device)  #: random-state
        return self.linear(x + 0.1 * noise)


device = "cuda" if torch.cuda.is_available() else "cpu"
model = Noisy(16, device)
for _ in range(5):
    with torch.no_grad():
        model(torch.randn(4, 16, device=device))
