"""Scales a branch by a counter that Python keeps."""

import torch
from torch import nn


class WarmedUp(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.main, self.side = nn.Linear(width, width), nn.Linear(width, width)
        self.calls = 0

    def forward(self, x):
        self.calls += 1  #: baked-value
        scale = min(1.0, self.calls / 1000)
        return self.main(x) + scale * self.side(x)


device = "cuda" if torch.cuda.is_available() else "cpu"
model = WarmedUp().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 24, device=device)).square().mean()
    loss.backward()
    optimizer.step()
