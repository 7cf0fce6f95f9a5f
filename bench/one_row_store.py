"""A mistake of tileiras 13.4.92 on sm_90: a product stored to one ragged row or column writes beyond the array.

    python bench/one_row_store.py [--out FILE.json]        (needs a GPU)

Where an axis of the output has one element, cuda-tile 1.7.0 promises the compiler that its stride is a
multiple of 16 bytes, since no address depends on it. The compiler then stores the product through TMA,
which rounds the other axis up to 16 bytes: up to 15 bytes behind the array become zero. Tilewright's guard
zones found it. `allow_tma=False` on the store avoids it. Exit code 1 where the compiler makes it no more.
"""

from __future__ import annotations

import argparse
import sys

import cuda.tile as ct
import torch
from common import made_here, need_gpu, write

GUARD, BEHIND = 7777.0, 64
SHAPES = ((33, 1), (1, 33), (31, 1), (5, 1), (1, 5), (32, 1), (1, 32), (33, 2), (2, 33))
ZERO = ct.PaddingMode.ZERO


@ct.kernel
def product(a, b, c, TMA: ct.Constant[bool]):
    left = ct.load(a, (ct.bid(0), 0), (32, 32), padding_mode=ZERO)
    right = ct.load(b, (0, ct.bid(1)), (32, 32), padding_mode=ZERO)
    total = ct.mma(left, right, ct.zeros((32, 32), ct.float32))
    ct.store(c, (ct.bid(0), ct.bid(1)), total, allow_tma=None if TMA else False)


def written_behind(m: int, n: int, tma: bool) -> int:
    """How many elements behind an m × n output a product changes."""
    a = torch.ones(m, 32, device="cuda", dtype=torch.bfloat16)
    b = torch.ones(32, n, device="cuda", dtype=torch.bfloat16)
    memory = torch.full((m * n + BEHIND,), GUARD, device="cuda", dtype=torch.float32)
    c = memory[: m * n].view(m, n)
    grid = (-(-m // 32), -(-n // 32))
    ct.launch(torch.cuda.current_stream(), grid, product, (a, b, c, tma))
    torch.cuda.synchronize()
    assert bool((c == 32).all())
    return int((memory[m * n :] != GUARD).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out")
    out = parser.parse_args().out
    need_gpu()
    rows = [
        {"shape": [m, n], "tma": tma, "elements_written_behind": written_behind(m, n, tma)}
        for tma in (True, False)
        for m, n in SHAPES
    ]
    for row in rows:
        print(f"{row['shape']!s:>8} TMA {'allowed' if row['tma'] else 'off':8} {row['elements_written_behind']}")
    write(out, {**made_here(), "rows": rows})
    sys.exit(0 if any(row["elements_written_behind"] for row in rows) else 1)


if __name__ == "__main__":
    main()
