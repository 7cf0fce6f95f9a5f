"""Wall time of `tilewright.tune` against `cuda.tile.tune.exhaustive_search` on the same spaces.

    python bench/time_to_tune.py [--out FILE.json]

Each side runs in a process of its own with an empty cuTile cache. The exhaustive search is timed
from the call on, its process has imported torch and made its tensors before; Tilewright is timed
from the call on too, and that contains starting the worker process and importing torch in it. Then
both winners are re-timed interleaved.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time

from common import EXAMPLES, build, empty_cache, made_here, need_gpu, paired_ratio, retime, write

from tilewright.bench.session import Session
from tilewright.loading import load_task, where_is
from tilewright.records import Configuration

CASES = (("matmul", "4096"), ("fmha", "causal"), ("rms_norm", "16384x4096"))
ROUNDS = 60


def exhaustive(name: str, workload_name: str) -> dict:
    """In this process: the search that comes with cuda-tile, over the task's whole space."""
    import torch
    from cuda.tile.tune import exhaustive_search

    task = load_task(str(EXAMPLES / f"{name}.py"))
    workload, board = task.workload(workload_name), need_gpu()
    tensors = {}
    for tensor, array in task.arrays(workload.dims).items():
        tensors[tensor] = torch.randn(array.shape, device="cuda").to(getattr(torch, array.dtype))
    torch.cuda.synchronize()
    space = task.space.configurations(int(board.arch.removeprefix("sm_")), workload.dims)

    def launch(config: Configuration):
        return task.launched(config, workload.dims, tensors, board)

    kernel = launch(space[0]).kernel
    started = time.perf_counter()
    result = exhaustive_search(
        space,
        torch.cuda.current_stream().cuda_stream,
        lambda config: launch(config).grid,
        kernel,
        lambda config: launch(config).args,
        lambda config: task.space.split(config)[1],
        quiet=True,
    )
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "best": dict(result.best.config), "us": result.best.mean_us, "space": len(space),
            "failures": len(result.failures)}  # fmt: skip


def ours(name: str, workload_name: str) -> dict:
    from tilewright.tuning import tune

    task = load_task(str(EXAMPLES / f"{name}.py"))
    started = time.perf_counter()
    result = tune(task, workloads=[workload_name])
    seconds = time.perf_counter() - started
    best = result.workloads[0].best
    assert best is not None and best.measured is not None, result.workloads[0].reason
    return {"seconds": seconds, "best": dict(best.configuration), "us": best.measured.us,
            "stages": dict(result.seconds), "why": result.workloads[0].reason}  # fmt: skip


def in_fresh_process(side: str, name: str, workload: str) -> dict:
    with empty_cache():
        done = subprocess.run(
            [sys.executable, __file__, "--side", side, name, workload], stdout=subprocess.PIPE, text=True, timeout=400
        )
    if done.returncode:
        sys.exit(f"{side} {name} failed")
    return json.loads(done.stdout.splitlines()[-1])


def compared(name: str, workload_name: str) -> dict:
    mine = in_fresh_process("ours", name, workload_name)
    theirs = in_fresh_process("exhaustive", name, workload_name)
    task = load_task(str(EXAMPLES / f"{name}.py"))
    workload = task.workload(workload_name)
    winners = [Configuration.of(one["best"]) for one in (mine, theirs)]
    build(task, workload, winners)
    with Session(where_is(task)) as session:
        samples, _ = retime(session, workload, winners, ROUNDS)
    return {"task": name, "workload": workload_name, "ours": mine, "exhaustive": theirs,
            "ratio": theirs["seconds"] / mine["seconds"], "winner_over_winner": paired_ratio(*samples)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        side, name, workload = given.side
        print(json.dumps((ours if side == "ours" else exhaustive)(name, workload)))
        return
    need_gpu()
    rows = []
    for name, workload in CASES:
        row = compared(name, workload)
        rows.append(row)
        print(
            f"{name} {workload} ({row['exhaustive']['space']} configurations): exhaustive "
            f"{row['exhaustive']['seconds']:.1f} s, tilewright {row['ours']['seconds']:.1f} s, {row['ratio']:.1f}x; "
            f"our winner takes {row['winner_over_winner']:.3f} of theirs; {row['ours']['stages']}",
            flush=True,
        )
    mean = math.prod(row["ratio"] for row in rows) ** (1 / len(rows))
    print(f"geometric mean of the wall-time ratios: {mean:.2f}x")
    write(given.out, {**made_here(), "rows": rows, "geometric_mean": mean})


if __name__ == "__main__":
    main()
