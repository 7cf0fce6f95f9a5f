#!/usr/bin/env python
"""Offline transcription of a folder of utterances (here: synthetic ones) with a CTC encoder."""
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

RATE = 16000
N_FFT = 400
HOP = 160
N_MELS = 80
MAX_FRAMES = 1000
SYMBOLS = "_ abcdefghijklmnopqrstuvwxyz'"


def utterances(count: int, seed: int) -> list[np.ndarray]:
    """Sums of gliding tones, two to six seconds each."""
    rng = np.random.default_rng(seed)
    clips = []
    for _ in range(count):
        t = np.arange(int(RATE * rng.uniform(2.0, 6.0))) / RATE
        clip = 0.02 * rng.standard_normal(len(t))
        for _ in range(2):
            start, glide, speed = rng.uniform(120, 3000), rng.uniform(-80, 80), rng.uniform(1, 6)
            loudness = 0.5 + 0.5 * np.sin(2 * np.pi * speed * t)
            clip += 0.2 * loudness * np.sin(2 * np.pi * (start * t + glide * t**2))
        clips.append(clip.astype(np.float32))
    return clips


# ---------------------------------------------------------------- features


def hz_to_mel(hz: float) -> float:
    return 2595.0 * math.log10(1.0 + hz / 700.0)


def mel_to_hz(mel: float) -> float:
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


def mel_filters() -> torch.Tensor:
    """Triangular filters, [mels, bins]."""
    top = hz_to_mel(RATE / 2)
    edges = [mel_to_hz(top * i / (N_MELS + 1)) for i in range(N_MELS + 2)]
    rows = []
    for m in range(N_MELS):
        low, centre, high = edges[m : m + 3]
        row = []
        for k in range(N_FFT // 2 + 1):
            hz = k * RATE / N_FFT
            row.append(max(0.0, min((hz - low) / (centre - low), (high - hz) / (high - centre))))
        rows.append(row)
    return torch.tensor(rows)


def log_mel(clip: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    """Normalised log mel energies, [frames, mels]."""
    filters = mel_filters().to(clip.device)
    frames = []
    for start in range(0, len(clip) - N_FFT + 1, HOP):
        spectrum = torch.fft.rfft(clip[start : start + N_FFT] * window)
        frames.append(spectrum.abs() ** 2)
    energies = torch.stack(frames) @ filters.t()
    features = torch.log(energies.clamp_min(1e-8))
    return (features - features.mean(dim=0)) / (features.std(dim=0) + 1e-5)


def collate(features: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    batch = features[0].new_zeros(len(features), MAX_FRAMES, N_MELS)
    for row, f in zip(batch, features):
        row[: len(f)] = f
    return batch, torch.tensor([len(f) for f in features], device=batch.device)


# ---------------------------------------------------------------- model


class EncoderLayer(nn.Module):
    def __init__(self, dim: int, heads: int, kernel: int = 15):
        super().__init__()
        self.heads = heads
        self.norm_attn = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm_conv = nn.LayerNorm(dim)
        self.conv = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.norm_ff = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))

    def attend(self, x, valid):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None, :])
        return self.out(y.transpose(1, 2).reshape(b, t, d))

    def forward(self, x, valid):
        x = x + self.attend(self.norm_attn(x), valid)
        y = self.norm_conv(x) * valid.unsqueeze(-1)
        x = x + F.silu(self.conv(y.transpose(1, 2))).transpose(1, 2)
        return x + self.ff(self.norm_ff(x))


class Recogniser(nn.Module):
    def __init__(self, dim: int = 96, heads: int = 4, layers: int = 3):
        super().__init__()
        self.front = nn.Conv1d(N_MELS, dim, 3, stride=2, padding=1)
        self.layers = nn.ModuleList([EncoderLayer(dim, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, len(SYMBOLS))

    def forward(self, features, lengths):
        x = F.gelu(self.front(features.transpose(1, 2))).transpose(1, 2)
        lengths = (lengths + 1) // 2
        valid = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        for layer in self.layers:
            x = layer(x, valid)
        return self.head(self.norm(x)).log_softmax(dim=-1), lengths


# ---------------------------------------------------------------- decoding


def greedy(log_probs: torch.Tensor, lengths: torch.Tensor) -> list[tuple[str, float]]:
    """Best path: repeats merged, blanks dropped, with its mean lead over the second best symbol."""
    results = []
    for b in range(log_probs.shape[0]):
        text, previous, lead = [], 0, 0.0
        frames = int(lengths[b])
        for t in range(frames):
            top, symbols = log_probs[b, t].topk(2)
            best = symbols[0].item()
            lead += (top[0].exp() - top[1].exp()).item()
            if best != previous and best != 0:
                text.append(SYMBOLS[best])
            previous = best
        results.append(("".join(text), lead / frames))
    return results


@torch.inference_mode()
def main(batches: int = 32, batch_size: int = 8) -> None:
    torch.manual_seed(7)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Recogniser().to(device).eval()
    window = torch.hann_window(N_FFT, device=device)
    clips = utterances(batches * batch_size, seed=13)

    characters, confidence = 0, 0.0
    for n in range(batches):
        chunk = clips[n * batch_size : (n + 1) * batch_size]
        features = [log_mel(torch.from_numpy(c).to(device), window) for c in chunk]
        log_probs, lengths = model(*collate(features))
        for text, lead in greedy(log_probs, lengths):
            characters += len(text)
            confidence += lead
        if (n + 1) % 4 == 0:
            seen = (n + 1) * batch_size
            print(f"batch {n + 1}: {characters} characters, mean lead {confidence / seen:.5f}", flush=True)


if __name__ == "__main__":
    main()
