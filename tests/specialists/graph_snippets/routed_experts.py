"""Sends each token to one of four experts."""

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, width=16, experts=4):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(experts)])

    def forward(self, x):
        chosen = self.router(x).argmax(dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero(as_tuple=True)[0]  #: data-shape
            out.index_add_(0, rows, expert(x.index_select(0, rows)))
        return out


device = "cuda" if torch.cuda.is_available() else "cpu"
moe = Experts().to(device)
with torch.no_grad():
    for _ in range(5):
        moe(torch.randn(12, 16, device=device))
