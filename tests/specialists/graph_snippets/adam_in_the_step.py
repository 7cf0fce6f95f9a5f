"""Trains with Adam in its usual form."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def step(inputs, targets):
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()  #: optimizer
    return loss


for _ in range(6):
    inputs = torch.randn(5, 12, device=device)
    loss = step(inputs, inputs[:, :3].argmax(dim=1))
print(loss.item())
