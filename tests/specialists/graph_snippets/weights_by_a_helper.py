"""Computes weights by a helper that reads values; another function reads them, too."""

import torch
from torch import nn


def weights_of(scores):
    order = scores.mean(dim=0).tolist()  #: host-read
    largest = max(order)
    return [each / largest for each in order]


class Mixture(nn.Module):
    def __init__(self, width=8, parts=4):
        super().__init__()
        self.gate = nn.Linear(width, parts)
        self.parts = nn.ModuleList([nn.Linear(width, width) for _ in range(parts)])

    def forward(self, x):
        weights = weights_of(torch.sigmoid(self.gate(x)))
        return sum(weight * part(x) for weight, part in zip(weights, self.parts, strict=True))


def evaluate(model, batches):
    return sum(model(batch).square().mean().item() for batch in batches)


device = "cuda" if torch.cuda.is_available() else "cpu"
mixture = Mixture().to(device)
with torch.no_grad():
    print(evaluate(mixture, [torch.randn(4, 8, device=device) for _ in range(4)]))
