"""Time to tune: `tilewright tune` against `cuda.tile.tune.exhaustive_search` on the same spaces.

    python bench/time_to_tune.py [--out FILE.json]

Each side is one process from its start to its answer, with an empty cuTile cache: Python, torch,
CUDA and the inputs included on both sides. Both have bytecode, as installed packages do. What the
exhaustive search takes from the call to the result is given too. Then both winners are re-timed interleaved.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time

from common import EXAMPLES, build, compile_packages, empty_cache, made_here, need_gpu, paired_ratio, retime, write

from tilewright.records import Configuration
from tilewright.task.loading import load_task, where_is
from tilewright.worker.session import Session

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
    space = task.space.configurations(board.sm, workload.dims)

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
    return {"search_seconds": seconds, "best": dict(result.best.config), "us": result.best.mean_us, "space": len(space),
            "failures": len(result.failures)}  # fmt: skip


def in_fresh_process(command: list[str]) -> tuple[float, str]:
    """Wall seconds of a process with an empty cache, and what it printed."""
    with empty_cache():
        started = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=400)
        seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return seconds, done.stdout


def ours(name: str, workload: str) -> dict:
    where = str(EXAMPLES / f"{name}.py")
    command = [sys.executable, "-m", "tilewright", "tune", where, "--workload", workload, "--json", "--no-store"]
    seconds, text = in_fresh_process(command)
    result = json.loads(text)
    best = result["workloads"][0]["best"]
    return {"seconds": seconds, "best": best["config"], "us": best["measured_us"], "stages": result["seconds"],
            "why": result["workloads"][0]["reason"]}  # fmt: skip


def theirs(name: str, workload: str) -> dict:
    seconds, text = in_fresh_process([sys.executable, __file__, "--exhaustive", name, workload])
    return json.loads(text.splitlines()[-1]) | {"seconds": seconds}


def compared(name: str, workload_name: str) -> dict:
    their, mine = theirs(name, workload_name), ours(name, workload_name)
    task = load_task(str(EXAMPLES / f"{name}.py"))
    workload = task.workload(workload_name)
    winners = [Configuration.of(one["best"]) for one in (mine, their)]
    build(task, workload, winners)
    with Session(where_is(task)) as session:
        samples, _ = retime(session, workload, winners, ROUNDS)
    return {"task": name, "workload": workload_name, "ours": mine, "exhaustive": their,
            "ratio": their["seconds"] / mine["seconds"], "winner_over_winner": paired_ratio(*samples)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--exhaustive", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.exhaustive:
        print(json.dumps(exhaustive(*given.exhaustive)))
        return
    need_gpu()
    compile_packages()
    rows = []
    for name, workload in CASES:
        row = compared(name, workload)
        rows.append(row)
        print(
            f"{name} {workload} ({row['exhaustive']['space']} configurations): exhaustive "
            f"{row['exhaustive']['seconds']:.1f} s (search {row['exhaustive']['search_seconds']:.1f} s), tilewright "
            f"{row['ours']['seconds']:.1f} s, {row['ratio']:.1f}x; our winner takes {row['winner_over_winner']:.3f} of "
            f"theirs; stages {row['ours']['stages']}",
            flush=True,
        )
        mean = math.prod(row["ratio"] for row in rows) ** (1 / len(rows))
        write(given.out, {**made_here(), "rows": rows, "geometric_mean": mean})
    print(f"geometric mean of the wall-time ratios: {mean:.2f}x")


if __name__ == "__main__":
    main()
