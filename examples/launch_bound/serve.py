"""Answers one small request after another: the GPU waits for the host, which launches kernels.

    python serve.py --batch 1 --steps 200
"""

import argparse

import torch
from model import Narrow

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--steps", type=int, default=60)
options = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = Narrow().to(device).eval()
x = torch.randn(options.batch, 128, device=device)
with torch.no_grad():
    for _ in range(options.steps):
        x = model(x)  # the next request is the answer to this one
print(f"mean {x.mean().item():.6f}, deviation {x.std().item():.6f}")
