"""Compiling 24 matmul configurations: one compiler at a time against one a core. No GPU.

python bench/compile_in_parallel.py [--out FILE.json] [--arch sm_90] [--repeat 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

from common import EXAMPLES, made_here, write

from tilewright.compile import Unit, compile_all
from tilewright.hardware import default_board
from tilewright.loading import load_task

COUNT = 24


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    task, board = load_task(str(EXAMPLES / "matmul.py")), default_board(given.arch)
    workload = task.selected(None)[0]
    configs = task.space.configurations(int(given.arch.removeprefix("sm_")), workload.dims)[:COUNT]
    units = [Unit(workload, config, board) for config in configs]
    compile_all(task, units[:1])  # the front end's own start-up
    cores, ratios = os.cpu_count() or 1, []
    for _ in range(given.repeat):
        times = []
        for jobs in (1, cores):
            started = time.perf_counter()
            compile_all(task, units, jobs=jobs, seconds=60)
            times.append(time.perf_counter() - started)
        ratios.append(times[1] / times[0])
        print(
            f"{COUNT} configurations: serial {times[0]:.1f} s, {cores} at a time {times[1]:.1f} s: {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"median ratio {statistics.median(ratios):.2f}")
    write(given.out, {**made_here(), "cores": cores, "ratios": ratios, "median": statistics.median(ratios)})


if __name__ == "__main__":
    main()
