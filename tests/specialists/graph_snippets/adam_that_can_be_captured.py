"""Trains with Adam whose steps are counted on the device."""

import torch
from torch import nn

on_gpu = torch.cuda.is_available()
device = "cuda" if on_gpu else "cpu"
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=on_gpu)


def step(inputs, targets):
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(inputs), targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


for number in range(6):
    inputs = torch.randn(5, 12, device=device)
    loss = step(inputs, inputs[:, :3].argmax(dim=1))
    if number % 2:
        print(number, float(loss))
