"""Trains with scaled gradients."""

import torch
import torch.nn.functional as F
from torch import nn

cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler(device, enabled=cuda)


def train_step(x, y):
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16, enabled=cuda):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)  #: host-read
    scaler.update()
    return loss.detach()


for _ in range(5):
    x = torch.randn(6, 16, device=device)
    train_step(x, x.argmax(dim=1) % 4)
