"""Times two launches against the kernel that `captured fuse` makes of them. Needs a GPU.

    python -m bench.fusion_times OUT.json [--rounds 200]

The pairs are those of `bench.fusion`, at the shapes of a model of today. Each is captured in a CUDA graph. The graphs
take turns with a cold L2. The outputs have to be equal to the bit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cuda.tile as ct
import torch

sys.path.append(str(Path(__file__).parent))

from bench.fusion import Launches, bias_tanh, clamped, layer_norm, log_softmax
from common import made_here, need_gpu, paired_ratio, write

from tilewright.race.event_timer import torch_flush
from tilewright.runtime.capture import capture, record
from tilewright.runtime.capture.fuse import fused_task
from tilewright.runtime.capture.pairs import pairs
from tilewright.task.loading import load_task

Work = Callable[[], None]
WARMUP = 5


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def tanh_before_layer_norm() -> Launches:
    rows, columns, tile = 16384, 4096, 512
    x, between, out = tensor(rows, columns), tensor(rows, columns, dtype=torch.float16), tensor(rows, columns)
    first = bias_tanh, (rows // 8, columns // tile), (x, tensor(columns), between, 8, tile)
    return [first, (layer_norm, (rows,), (between, tensor(columns), tensor(columns), out, 1e-5, tile))]


def clamp_before_log_softmax() -> Launches:
    rows, columns, tile = 8192, 8192, 1024
    x, residual, between, out = (tensor(rows, columns) for _ in range(4))
    return [
        (clamped, (rows, columns // tile), (x, residual, between, 8.0, tile)),
        (log_softmax, (rows,), (between, out, tile)),
    ]


def fused(launches: Launches, folder: Path) -> tuple[Any, tuple[int, ...], tuple[Any, ...]]:
    """Captures the launches, fuses them, and returns the fused kernel with grid and arguments."""
    with capture.capturing(folder / "capture.json"):
        for kernel, grid, args in launches:
            ct.launch(torch.cuda.current_stream(), grid, kernel, args)
    recorded = record.read(folder / "capture.json")
    found = pairs(recorded).found
    if not found:
        sys.exit("no pair was found")
    made = fused_task(recorded, found[0].producer, found[0].consumer, folder / "task.py")
    (folder / "task.py").write_text(made.task)
    task = load_task(str(folder / "task.py"))
    (_, _, before), (_, _, after) = launches
    between = {id(arg) for arg in before} & {id(arg) for arg in after if isinstance(arg, torch.Tensor)}
    every = {id(arg): arg for arg in (*before, *after) if isinstance(arg, torch.Tensor)}
    given = {key: arg for key, arg in every.items() if key not in between}
    tensors, dims = {}, task.selected(None)[0].dims
    for name, spec in task.arrays(dims).items():
        fitting = [key for key, arg in given.items() if tuple(arg.shape) == spec.shape and _dtype(arg) == spec.dtype]
        tensors[name] = given.pop(fitting[0])
    launch = task.launched(task.space.shipped, dims, tensors, need_gpu())
    return launch.kernel, launch.grid, launch.args


def _dtype(array: torch.Tensor) -> str:
    return str(array.dtype).removeprefix("torch.")


def graph_of(work: Work) -> torch.cuda.CUDAGraph:
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def times(works: Sequence[Work], rounds: int) -> list[list[float]]:
    """Returns the times in µs of each work: all works take turns in each round, each with a cold L2."""
    graphs, flush, us = [graph_of(work) for work in works], torch_flush(torch), [list[float]() for _ in works]
    for number in range(WARMUP + rounds):
        for place in sorted(range(len(works)), key=lambda place: (place + number) % len(works)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
            flush()
            begin.record()
            graphs[place].replay()
            end.record()
            torch.cuda.synchronize()
            if number >= WARMUP:
                us[place].append(1e3 * begin.elapsed_time(end))
    return us


def measured(launches: Launches, folder: Path, rounds: int) -> dict[str, Any]:
    kernel, grid, args = fused(launches, folder)
    out = launches[-1][2][1 if launches[-1][0] is log_softmax else 3]

    def apart() -> None:
        for each, blocks, given in launches:
            ct.launch(torch.cuda.current_stream(), blocks, each, given)

    def together() -> None:
        ct.launch(torch.cuda.current_stream(), grid, kernel, args)

    outputs = []
    for work in (apart, together):
        out.zero_()
        work()
        torch.cuda.synchronize()
        outputs.append(out.clone())
    equal = bool(torch.equal(outputs[0].view(torch.int16), outputs[1].view(torch.int16)))
    two, one = times((apart, together), rounds)
    return {
        "two_launches_us": statistics.median(two), "fused_us": statistics.median(one),
        "speedup": paired_ratio(two, one), "equal_to_the_bit": equal,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    rows = {}
    for launches in (tanh_before_layer_norm, clamp_before_log_softmax):
        with tempfile.TemporaryDirectory() as folder:
            rows[launches.__name__] = measured(launches(), Path(folder), given.rounds)
        print(launches.__name__, rows[launches.__name__], flush=True)
        write(given.out, {**made_here(), "pairs": rows})


if __name__ == "__main__":
    main()
