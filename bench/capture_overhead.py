"""What `tilewright capture` adds: to the wall time of a program, and to one launch.

    python bench/capture_overhead.py [--rounds 15] [--launches 2000] [--out FILE.json]

The program launches a product and a normalisation in turns, as a model does, and waits for the GPU at the end; with
and without capture alternately, in one process. Beside it the host's own time of one launch that is known already.
Without a GPU only that, over a launch that does nothing, on torch tensors of the CPU. Needs torch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda.tile as ct
import torch
from common import EXAMPLES, made_here, write

from tilewright.bench.gpu import detect
from tilewright.bench.stats import median_interval
from tilewright.runtime.capturing import capture

sys.path.insert(0, str(EXAMPLES))
from matmul import matmul
from rms_norm import rms_norm

ALLOWED = 0.02
"""Issue 5: of the wall time of a program."""
SIZES = (512, 2048)
"""Rows and columns: kernels of some 5 µs, where the host is the slower side, and of some 40 µs."""


def nothing(stream: Any, grid: Any, kernel: Any, args: Any, /) -> None:
    """In place of `ct.launch`, where there is no driver."""


def program(size: int, launches: int, device: str) -> Callable[[], None]:
    """Launches through `ct.launch` as it is at the time; everything else is prepared."""
    make = lambda *shape: torch.randn(shape, device=device).bfloat16()  # noqa: E731
    a, b, c, weight = make(size, size), make(size, size), make(size, size), make(size)
    stream = torch.cuda.current_stream() if device == "cuda" else None
    product = ((size // 128) ** 2,), matmul, (a, b, c, 128, 128, 64, 8)
    norm = (size // 2,), rms_norm, (c, weight, a, 2, size, size)

    def run() -> None:
        for _ in range(launches // 2):
            ct.launch(stream, *product)
            ct.launch(stream, *norm)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def timed(run: Callable[[], None]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def measured(size: int, rounds: int, launches: int, device: str) -> dict[str, Any]:
    run = program(size, launches, device)
    run()
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            plain = timed(run) if turn % 2 else None
            capture.install(Path(folder) / "c.json")
            run()  # the first launches of each kind are described and timed
            recorded = timed(run)
            capture.uninstall()
            pairs.append((plain or timed(run), recorded))
    shares = median_interval([recorded / plain - 1 for plain, recorded in pairs])
    added = median_interval([(recorded - plain) / launches * 1e6 for plain, recorded in pairs])
    return {
        "size": size,
        "us_a_launch": statistics.median(plain for plain, _ in pairs) / launches * 1e6,
        "added_share": shares.centre,
        "added_share_interval": [shares.low, shares.high],
        "added_us_a_launch": added.centre,
        "added_us_interval": [added.low, added.high],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--launches", type=int, default=2000)
    parser.add_argument("--out")
    given = parser.parse_args()
    device = "cuda" if detect() else "cpu"
    if device == "cpu":
        ct.launch = nothing
    rows = [
        measured(size, given.rounds, given.launches, device) for size in SIZES[: 1 if device == "cpu" else 2]
    ]
    for row in rows:
        low, high = row["added_share_interval"]
        share = (
            f", {row['added_share']:+.2%} of the wall time [{low:+.2%}, {high:+.2%}]"
            if device == "cuda"
            else ""
        )
        added = f"capture adds {row['added_us_a_launch']:.2f} µs{share}"
        print(f"{row['size']}: {row['us_a_launch']:.2f} µs a launch, {added}")
    write(given.out, {**made_here(), "allowed": ALLOWED, "rows": rows})


if __name__ == "__main__":
    main()
