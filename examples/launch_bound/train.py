"""Trains the same network on small batches.

    python train.py --batch 8 --steps 200
"""

import argparse

import torch
import torch.nn.functional as F
from model import Narrow

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=60)
options = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = Narrow(depth=32).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
losses = []
for _ in range(options.steps):
    x = torch.randn(options.batch, 128, device=device)
    loss = F.mse_loss(model(x), x.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
print(f"loss {losses[0].item():.6f} at first, {torch.stack(losses[-5:]).mean().item():.6f} at last")
