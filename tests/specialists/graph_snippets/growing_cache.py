"""Attends to a cache that grows in each call."""

import torch
import torch.nn.functional as F
from torch import nn


class Decoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.keys = self.values = None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if self.keys is not None:
            k = torch.cat((self.keys, k), dim=1)
            v = torch.cat((self.values, v), dim=1)
        self.keys, self.values = k, v  #: changed-address
        return self.out(F.scaled_dot_product_attention(q, k, v))


device = "cuda" if torch.cuda.is_available() else "cpu"
decoder = Decoder().to(device).eval()
x = torch.randn(2, 1, 32, device=device)
with torch.no_grad():
    for _ in range(6):
        x = decoder(x)
