"""What `tilewright capture` adds: to the wall time of a program, and to one launch.

    python bench/capture_overhead.py [--rounds 151] [--launches 1000] [--out FILE.json]

Programs that launch a product and a normalisation in turns, as a model does, and wait for the GPU at the end:

- `host`: nothing but launches of some 5 µs, as fast as the host can make them: the worst that there is;
- `eager`: the same launches, but each allocates its output and computes its grid, and an addition of torch follows,
  as in a model without a graph: the host is still the slower side;
- `gpu`: nothing but launches, of some 20 µs on average, so that the GPU is the slower side;
- `triton`: nothing but launches of a Triton kernel, where triton is installed.

Each with and without capture alternately, in one process, and in two states: `first`, the first launches of each
kernel, which capture looks at one and all, and describes and times; `steady`, where it looks at one of many.
Without a GPU only what is added to a launch that does nothing, on torch tensors of the CPU. Needs torch.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module, util
from pathlib import Path
from typing import Any

import cuda.tile as ct
import torch
from common import EXAMPLES, made_here, write

from tilewright.hardware.gpu import detect
from tilewright.race.stats import median_interval
from tilewright.runtime.capture import capture
from tilewright.runtime.capture.kinds import BLOCK, EXACT, GROWTH
from tilewright.runtime.capture.of_cutile import SIGNATURE

sys.path.insert(0, str(EXAMPLES))
from matmul import matmul
from rms_norm import rms_norm

ALLOWED = 0.02
"""Issue 5: of the wall time of a program."""
KERNELS = 2
TO_STEADY = KERNELS * 2 * GROWTH * BLOCK
"""Launches after which no fewer are looked at, and as many again."""
FIRST_ROUNDS = 7

Program = Callable[[Any, int], None]
"""Of a launch function and a number of launches."""


def nothing(stream: Any, grid: Any, kernel: Any, args: Any, /, *, programmatic_dependent_launch: bool = False) -> None:
    """In place of `ct.launch`, where there is no driver."""


nothing.__text_signature__ = SIGNATURE  # type: ignore[attr-defined]


def no_run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """In place of `JITFunction.run`, where there is no driver."""


@dataclass(frozen=True)
class Row:
    program: str
    state: str
    us_a_launch: float
    """Without capture."""
    added_us: float
    added_us_interval: tuple[float, float]
    added_share: float
    added_share_interval: tuple[float, float]

    def verdict(self) -> str:
        low, high = self.added_share_interval
        return "yes" if high < ALLOWED else "no" if low > ALLOWED else "unclear"


def launches_only(size: int, device: str) -> Program:
    """Everything but the launches is prepared."""
    a, b, c, weight = tensors(size, device)
    stream = torch.cuda.current_stream() if device == "cuda" else None
    product = ((size // 128) ** 2,), matmul, (a, b, c, 128, 128, 64, 8)
    norm = (size // 2,), rms_norm, (c, weight, a, 2, size, size)

    def run(launch: Any, launches: int) -> None:
        for _ in range(launches // KERNELS):
            launch(stream, *product)
            launch(stream, *norm)
        wait(device)

    return run


def triton_only(size: int, device: str) -> Program:
    """As `launches_only`, of one Triton kernel."""
    sys.path.insert(0, str(EXAMPLES / "triton"))
    from softmax import softmax

    a, b, *_ = tensors(size, device)

    def run(launch: Any, launches: int) -> None:
        for _ in range(launches):
            launch(softmax, a, b, size, size, BLOCK=size, grid=(size,), warmup=False, num_warps=4)
        wait(device)

    return run


def eager(size: int, device: str) -> Program:
    """With what a library does around a launch."""
    a, b, residual, weight = tensors(size, device)

    def run(launch: Any, launches: int) -> None:
        for _ in range(launches // KERNELS):
            c = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
            grid = (-(-c.shape[0] // 128) * -(-c.shape[1] // 128),)
            launch(torch.cuda.current_stream(), grid, matmul, (a, b, c, 128, 128, 64, 8))
            c = c + residual
            y = torch.empty_like(c)
            grid = (-(-c.shape[0] // 2),)
            launch(torch.cuda.current_stream(), grid, rms_norm, (c, weight, y, 2, *c.shape))
            y = y + residual
        wait(device)

    return run


def tensors(size: int, device: str) -> Iterator[Any]:
    """Three square ones and a vector."""
    for shape in [(size, size)] * 3 + [(size,)]:
        yield torch.randn(shape, device=device).bfloat16()


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(program: Program, launch: Any, launches: int) -> float:
    """Seconds. Short runs that take turns: the host's own speed changes by more than what is measured."""
    gc.disable()
    started = time.perf_counter()
    program(launch, launches)
    took = time.perf_counter() - started
    gc.enable()
    return took


def launch_of_cutile() -> Any:
    return ct.launch


def launch_of_triton() -> Any:
    return import_module("triton.runtime.jit").JITFunction.run


@contextmanager
def captured(now: Callable[[], Any]) -> Iterator[Any]:
    """The stand-in of a new capture. ``now``: gives the launch function."""
    with tempfile.TemporaryDirectory() as folder:
        capture.install(Path(folder) / "c.json")
        try:
            yield now()
        finally:
            capture.uninstall()


def measured(name: str, program: Program, rounds: int, launches: int) -> Iterator[Row]:
    now = launch_of_triton if name == "triton" else launch_of_cutile
    plain = now()
    program(plain, launches)  # compiled, warm
    pairs, first = [], KERNELS * EXACT
    for _ in range(FIRST_ROUNDS):
        with captured(now) as recorded:
            pairs.append((timed(program, recorded, first), timed(program, plain, first)))
    yield row(name, "first", pairs, first)
    with captured(now) as recorded:
        program(recorded, TO_STEADY)
        pairs = []
        for turn in range(rounds):
            both = (recorded, plain) if turn % 2 else (plain, recorded)
            took = {launch: timed(program, launch, launches) for launch in both}
            pairs.append((took[recorded], took[plain]))
    yield row(name, "steady", pairs, launches)


def row(name: str, state: str, pairs: list[tuple[float, float]], launches: int) -> Row:
    share = median_interval([recorded / plain - 1 for recorded, plain in pairs])
    added = median_interval([(recorded - plain) / launches * 1e6 for recorded, plain in pairs])
    alone = statistics.median(plain for _, plain in pairs) / launches * 1e6
    return Row(name, state, alone, added.centre, (added.low, added.high), share.centre, (share.low, share.high))


def line(one: Row, device: str) -> str:
    low, high = one.added_us_interval
    added = f"{one.program:6} {one.state:7} {one.us_a_launch:7.2f} {one.added_us:+8.3f} [{low:+.3f}, {high:+.3f}]"
    low, high = one.added_share_interval
    share = f"   {one.added_share:+8.2%} [{low:+.2%}, {high:+.2%}]   {one.verdict()}"
    return added + (share if device == "cuda" else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=151)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--out")
    given = parser.parse_args()
    device = "cuda" if detect() else "cpu"
    programs = {"host": launches_only(512, device)}
    if util.find_spec("triton"):
        programs["triton"] = triton_only(512, device)
        if device == "cpu":
            import_module("triton.runtime.jit").JITFunction.run = no_run
    if device == "cpu":
        ct.launch = nothing
    else:
        programs |= {"eager": eager(512, device), "gpu": launches_only(2048, device)}
    print(f"µs a launch, what capture adds to it, and to the wall time; the goal is under {ALLOWED:.0%} in `steady`")
    rows = []
    for name, program in programs.items():
        for one in measured(name, program, given.rounds, given.launches):
            rows.append({**asdict(one), "within": one.verdict() if device == "cuda" else None})
            print(line(one, device))
    write(given.out, {**made_here(), "allowed": ALLOWED, "first": EXACT, "one_of": BLOCK, "rows": rows})


if __name__ == "__main__":
    main()
