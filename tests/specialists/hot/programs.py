"""Programs that the tests of hot kernels and functions run."""

from __future__ import annotations

from pathlib import Path

INFERENCE = '''"""A small inference program."""

from __future__ import annotations

import math

import torch
from torch import nn

rms_norm_triton = "a name that is taken"


class RMSNorm(nn.Module):
    def __init__(self, n: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n) * 1.5)
        self.eps = eps

    def forward(self, x):
        """The norm of each row."""
        variance = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(variance + self.eps) * self.weight


def gelu(x): return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x, dim=-1):
    powers = torch.exp(x - x.max(dim=dim, keepdim=True).values)
    return powers / powers.sum(dim=dim, keepdim=True)


def in_place(x):
    x += 1
    return x * 2 + 1


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    norm, x = RMSNorm(64).to(device), torch.randn(4, 32, 64, device=device)
    with torch.no_grad():
        for _ in range(3):
            y = softmax(gelu(norm(x)))
            in_place(y.clone())
    print(y.double().sum().item().hex(), y[0, 0, 0].item().hex())


main()
'''

KERNELS = '''"""A program with two kernels, on whatever device there is."""

import torch
import cuda.tile as ct
import triton
import triton.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@ct.kernel
def doubled(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2.0)


@triton.jit
def grown(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.exp(tl.load(x_ptr + at, mask=at < n)) + 1.0, mask=at < n)


def main():
    x = torch.randn(4096, device=DEVICE)
    y = torch.empty_like(x)
    for _ in range(3):
        ct.launch(torch.cuda.current_stream() if DEVICE == "cuda" else 0, (16,), doubled, (x, y, 256))
        grown[(16,)](x, y, 4096, BLOCK=256)
    print("done")


main()
'''


def program(folder: Path, text: str, name: str = "program.py") -> Path:
    """Writes a program into a folder of its own, so that the folder is all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path
