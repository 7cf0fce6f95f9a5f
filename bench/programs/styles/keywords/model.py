import math

import torch
from torch import nn


class Frontend(nn.Module):
    """Raw audio -> log mel-like features."""

    def __init__(self, n_fft=256, hop=128, bands=32):
        super().__init__()
        self.n_fft = n_fft
        self.hop = hop
        self.bands = bands

    def filters(self, device):
        bank = torch.zeros(self.bands, self.n_fft // 2 + 1)
        edges = torch.linspace(0, self.n_fft // 2, self.bands + 2)
        for b in range(self.bands):
            lo, mid, hi = edges[b], edges[b + 1], edges[b + 2]
            for k in range(self.n_fft // 2 + 1):
                if lo <= k <= mid:
                    bank[b, k] = (k - lo) / (mid - lo)
                elif mid < k <= hi:
                    bank[b, k] = (hi - k) / (hi - mid)
        return bank.to(device)

    def forward(self, wav):
        window = torch.hann_window(self.n_fft).to(wav.device)
        spec = torch.stft(wav, self.n_fft, self.hop, window=window, return_complex=True)
        power = spec.real ** 2 + spec.imag ** 2
        mel = torch.matmul(self.filters(wav.device), power)
        return torch.log(mel + 1e-6)


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.dk = dim // heads
        self.wq = nn.Linear(dim, dim)
        self.wk = nn.Linear(dim, dim)
        self.wv = nn.Linear(dim, dim)
        self.wo = nn.Linear(dim, dim)

    def split(self, x):
        B, T, _ = x.size()
        return x.view(B, T, self.heads, self.dk).permute(0, 2, 1, 3).contiguous()

    def forward(self, x, lengths):
        B, T, D = x.size()
        mask = torch.zeros(B, T, dtype=torch.bool, device=x.device)
        for i, n in enumerate(lengths):
            mask[i, n:] = True
        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.dk)
        scores = scores.masked_fill(mask[:, None, None, :], -1e9)
        out = scores.softmax(-1) @ v
        return self.wo(out.permute(0, 2, 1, 3).reshape(B, T, D))


class Spotter(nn.Module):
    def __init__(self, dim=64, heads=4, layers=2, symbols=20):
        super().__init__()
        self.frontend = Frontend()
        self.project = nn.Linear(32, dim)
        self.attn = nn.ModuleList([SelfAttention(dim, heads) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(layers)])
        self.head = nn.Linear(dim, symbols)

    def forward(self, wav, lengths):
        x = self.project(self.frontend(wav).transpose(1, 2))
        for attn, norm in zip(self.attn, self.norms):
            x = x + attn(norm(x), lengths)
        return self.head(x).log_softmax(-1)
