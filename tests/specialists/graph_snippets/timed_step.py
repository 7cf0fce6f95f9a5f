"""Measures each step, and waits for the device inside it."""

import time

import torch
from torch import nn

cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
model = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 16)).to(device).eval()
times = []


@torch.no_grad()
def infer(x):
    y = model(x)
    if cuda:
        torch.cuda.synchronize()  #: synchronisation
    return y


for _ in range(5):
    began = time.perf_counter()
    infer(torch.randn(1, 16, device=device))
    times.append(time.perf_counter() - began)
print(min(times))
