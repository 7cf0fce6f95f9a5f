"""Prints a shape and a mean in each forward pass."""

import torch
from torch import nn


class Verbose(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 48)
        self.down = nn.Linear(48, 16)

    def forward(self, x):
        h = torch.relu(self.up(x))
        print("hidden", h.shape, h.dtype)
        print("mean of the hidden layer:", h.mean())  #: host-read
        return self.down(h)


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Verbose().to(device).eval()
    with torch.inference_mode():
        for _ in range(4):
            model(torch.randn(2, 16, device=device))


main()
