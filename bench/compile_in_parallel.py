"""Compiling and reading 24 matmul configurations: one after the other against all cores. No GPU.

    python bench/compile_in_parallel.py [--out FILE.json] [--arch sm_90] [--repeat 3]

One after the other, each configuration goes through the front end, tileiras and nvdisasm before the
next begins. What cuda-tile's own `export_kernel` takes for the 24 cubins, unread, is given beside it.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

os.environ["CUDA_TILE_CACHE_DIR"] = "off"  # before cuda.tile is imported

from common import EXAMPLES, made_here, write
from cuda.tile.compilation import export_kernel

from tilewright.compile.compile import Unit, compile_all, launch_of
from tilewright.hardware.architectures import default_board
from tilewright.languages.cutile.cutile import CuTile, signature_of
from tilewright.records import Failed
from tilewright.task.loading import load_task
from tilewright.task.task import Task

COUNT = 24


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def export(task: Task, unit: Unit) -> None:
    """cuda-tile's own way to a cubin, its disk cache off."""
    launch, hints = launch_of(task, unit)
    kernel = launch.kernel.replace_hints(**hints)
    signature = signature_of(kernel, launch.args)
    export_kernel(kernel, [signature], io.BytesIO(), gpu_code=unit.board.arch, output_format="cubin")


def compile_only(task: Task, units: list[Unit], jobs: int) -> None:
    """Front end here, compilers as parallel child processes; the cubins are not read."""
    language = CuTile()
    with ThreadPoolExecutor(jobs) as pool:
        for unit in units:
            lowered = language.lower(*launch_of(task, unit), unit.configuration, unit.board.arch)
            assert not isinstance(lowered, Failed), lowered
            pool.submit(language.assemble, lowered, 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    task, board = load_task(str(EXAMPLES / "matmul.py")), default_board(given.arch)
    workload = task.selected(None)[0]
    configs = task.space.configurations(board.sm, workload.dims)[:COUNT]
    units = [Unit(workload, config, board) for config in configs]
    compile_all(task, units[:1])  # the front end's own start-up
    cores, rows = os.cpu_count() or 1, []
    for _ in range(given.repeat):
        row = {
            "one_by_one": seconds(lambda: [compile_all(task, [unit], jobs=1, seconds=60) for unit in units]),
            "export_kernel": seconds(lambda: [export(task, unit) for unit in units]),
            "unread": seconds(lambda: compile_only(task, units, cores)),
            "tilewright": seconds(lambda: compile_all(task, units, jobs=cores, seconds=60)),
        }
        rows.append(row)
        print(", ".join(f"{name} {took:.1f} s" for name, took in row.items()), flush=True)
    ratio = statistics.median(row["tilewright"] / row["one_by_one"] for row in rows)
    against = statistics.median(row["unread"] / row["export_kernel"] for row in rows)
    print(
        f"{COUNT} configurations, {cores} cores: compiled {against:.2f} of export_kernel one by one, "
        f"compiled and read {ratio:.2f} of one by one"
    )
    write(given.out, {**made_here(), "cores": cores, "rows": rows, "ratio": ratio, "unread_of_export_kernel": against})


if __name__ == "__main__":
    main()
