"""Leaves out layers at random while it trains."""

import random

import torch
from torch import nn


class LayerDrop(nn.Module):
    def __init__(self, width=16, depth=6, rate=0.2):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.rate = rate

    def forward(self, x):
        for block in self.blocks:
            if self.training and random.random() < self.rate:  #: random-state
                continue
            x = x + torch.tanh(block(x))
        return x


device = "cuda" if torch.cuda.is_available() else "cpu"
model = LayerDrop().to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    loss = model(torch.randn(4, 16, device=device)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
