"""Samples a token by the largest probabilities, on the device."""

import torch
import torch.nn.functional as F
from torch import nn


class Sampler(nn.Module):
    def __init__(self, vocabulary=64, width=32, p=0.9):
        super().__init__()
        self.embed, self.head, self.p = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary), p

    def forward(self, tokens):
        logits = self.head(self.embed(tokens).mean(dim=1))
        ordered, index = logits.sort(dim=-1, descending=True)
        mass = F.softmax(ordered, dim=-1).cumsum(dim=-1)
        ordered = torch.where(mass > self.p, torch.full_like(ordered, -1e9), ordered)
        logits = torch.empty_like(logits).scatter_(1, index, ordered)
        return torch.multinomial(F.softmax(logits, dim=-1), 1)


device = "cuda" if torch.cuda.is_available() else "cpu"
model = Sampler().to(device).eval()
tokens = torch.randint(0, 64, (2, 8), device=device)
with torch.no_grad():
    for _ in range(6):
        tokens = torch.cat((tokens[:, 1:], model(tokens)), dim=1)
print(tokens.tolist())
