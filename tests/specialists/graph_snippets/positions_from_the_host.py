"""Makes the positions on the host and copies them."""

import torch
from torch import nn


class Embedder(nn.Module):
    def __init__(self, vocabulary=50, longest=32, width=16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1]).to(ids.device)  #: host-tensor
        return self.tokens(ids) + self.places(positions)


device = "cuda" if torch.cuda.is_available() else "cpu"
embedder = Embedder().to(device)
for _ in range(4):
    with torch.no_grad():
        embedder(torch.randint(0, 50, (3, 12), device=device))
