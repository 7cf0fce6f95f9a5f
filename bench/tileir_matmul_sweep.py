"""Races many forms of a 4096³ bf16 matmul from Triton source on Tile IR, against the PTX route and cuBLAS.

    python bench/tileir_matmul_sweep.py OUT.json [--seconds 100]
    python bench/tileir_matmul_sweep.py --check [--every 7]

The first command needs a GPU. It compiles and times the `field`, then the `neighbours` of its best forms, and races the
best of both again, together with the best of the PTX route. No stage begins after --seconds. --check needs no GPU: it
compiles every form for sm_90, and runs every seventh on the interpreter on 512³.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from common import answer, made_here, need_gpu, write
from record import measured

from tilewright.compile.compile import Compiled, Unit, compile_all, launch_of, remember
from tilewright.hardware.architectures import Board, default_board
from tilewright.records import Configuration, Failed
from tilewright.task.loading import load_task, where_is
from tilewright.task.task import Task
from tilewright.worker.messages import Hello
from tilewright.worker.session import Session

TASK = Path(__file__).parent / "tileir_matmul_task.py"
WORKLOAD = "4096"
LARGE = ((128, 256, 64), (256, 128, 64), (128, 256, 32), (128, 256, 128), (256, 128, 128), (256, 256, 64))
SQUARE = ((128, 128, 64), (128, 128, 128))
FEW_ROUNDS, ROUNDS = 8, 60
LEADERS, FINALISTS = 4, 24
SPILLS = 32
"""A form whose code has more local stores than this is not timed."""
Record = dict[str, Any]


# The forms --------------------------------------------------------------------------------------------


def forms(task: Task, tiles: Sequence[tuple[int, int, int]], **lists: Sequence[Any]) -> Iterator[Configuration]:
    """Every combination of tiles and of the listed values; other knobs have the shipped value."""
    for (m, n, k), *values in product(tiles, *lists.values()):
        tile = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
        yield task.space.shipped.replace(**tile, **dict(zip(lists, values, strict=True)))


def field(task: Task) -> list[Configuration]:
    """The forms on Tile IR that are raced first. A block of Triton has powers of two, so no tile is 192 wide. With the
    compiler's own four warps, the large tiles spill, unless two CTAs share them."""
    both, either = ("host", "descriptors"), (None, 8)
    return list(dict.fromkeys([
        *forms(task, LARGE, FORM=both, num_stages=(None, *range(2, 11))),
        *forms(task, SQUARE, FORM=both, num_worker_warps=either, num_stages=(None, 2, 4, 6, 8)),
        *forms(task, (*LARGE[:2], LARGE[-1]), FORM=both, num_ctas=(2, 4), num_worker_warps=either,
               num_stages=(None, 4, 8)),
        *forms(task, LARGE[:4], FORM=both, BLOCKS_PER_SM=(1,), num_stages=(None, 2, 4, 6, 8)),
        *forms(task, SQUARE, FORM=both, BLOCKS_PER_SM=(1,), num_worker_warps=either, num_stages=(None, 2, 4, 6, 8)),
        *forms(task, (*LARGE[:1], LARGE[-1]), FORM=both, BLOCKS_PER_SM=(1,), num_ctas=(2,), num_stages=(None, 6)),
    ]))  # fmt: skip


def neighbours(task: Task, best: Iterable[Configuration]) -> list[Configuration]:
    """What differs from one of the best in one or two values: group, stages, occupancy, clusters, warps, tile loop."""
    found = dict[Configuration, None]()
    for one in best:
        stages = one["num_stages"]
        near = range(2, 11) if stages is None else range(max(2, stages - 2), min(10, stages + 2) + 1)
        groups = [one.replace(GROUP=group, num_stages=count) for group in (4, 8, 16) for count in (stages, *near)]
        others = [{"occupancy": 1}, {"occupancy": 2}, {"num_ctas": 1}, {"num_ctas": 2}, {"num_worker_warps": 4},
                  {"BLOCKS_PER_SM": 1}, {"BLOCKS_PER_SM": 2}, {"FORM": "host"}, {"FORM": "descriptors"}]  # fmt: skip
        found |= dict.fromkeys([*groups, *(one.replace(**other) for other in others)])
    return list(found)


def by_ptx(task: Task) -> list[Configuration]:
    """The forms of Triton's own compiler that were the fastest on the H200, and their neighbours."""
    lists = {"route": ("ptx",), "num_worker_warps": (None,), "num_warps": (8,), "num_stages": (3, 4)}
    return [
        *forms(task, LARGE[:2], FORM=("pointers", "descriptors", "host"), **lists),
        *forms(task, LARGE[:2], FORM=("host",), GROUP=(4, 16), **lists),
        *forms(task, LARGE[:2], FORM=("host",), BLOCKS_PER_SM=(1,), **lists),
        *forms(task, SQUARE[:1], FORM=("host",), **{**lists, "num_warps": (4, 8)}),
    ]


# Races ------------------------------------------------------------------------------------------------


def compiled_once(task: Task, configurations: Sequence[Configuration], board: Board) -> list[Compiled]:
    """Compiles the forms. Returns those without heavy spills, each machine code once."""
    units = [Unit(task.workload(WORKLOAD), each, board) for each in configurations]
    fine: dict[Any, Compiled] = {}
    for each in compile_all(task, units, seconds=20):
        if not isinstance(each.code, Failed) and each.code.local_stores <= SPILLS:
            fine.setdefault((each.code.code_hash, launch_of(task, each.unit)[0].grid), each)
    remember(task, list(fine.values()))
    return list(fine.values())


def median_us(row: Record) -> float:
    correct = row.get("checked", {}).get("verdict") == "correct"
    return statistics.median(row["samples_us"]) if correct and row.get("samples_us") else math.inf


def fastest(rows: Iterable[Record], route: str, most: int) -> list[Record]:
    fitting = [row for row in rows if row["config"]["route"] == route and median_us(row) < math.inf]
    return sorted(fitting, key=median_us)[:most]


def configurations_of(rows: Iterable[Record]) -> list[Configuration]:
    return [Configuration.of(row["config"]) for row in rows]


def sweep(seconds: float) -> Record:
    """The three stages. The second is left out if more than half of the time is over."""
    board, task, began, counts = need_gpu(), load_task(str(TASK)), time.perf_counter(), dict[str, int]()
    with Session(where_is(task)) as session:

        def stage(name: str, configurations: Sequence[Configuration], rounds: int) -> Record:
            compiled = compiled_once(task, configurations, board)
            counts[name] = len(compiled)
            now = time.perf_counter() - began
            print(f"{name}: {len(compiled)} of {len(configurations)} compiled at {now:.0f} s", flush=True)
            if name == "field":
                answer(session.run(Hello()))
            return measured(task, session, task.workload(WORKLOAD), compiled, rounds)

        rows = stage("field", field(task), FEW_ROUNDS)["rows"]
        if time.perf_counter() - began < 0.5 * seconds:
            near = neighbours(task, configurations_of(fastest(rows, "tileir", LEADERS)))
            known = set(configurations_of(rows))
            rows += stage("neighbours", [each for each in near if each not in known], FEW_ROUNDS)["rows"]
        finalists = configurations_of(fastest(rows, "tileir", FINALISTS))
        final = stage("final", [*finalists, *by_ptx(task)], ROUNDS)
    return {"counts": counts, "seconds": time.perf_counter() - began, "final": final, "first": shortened(rows)}


def shortened(rows: Iterable[Record]) -> list[Record]:
    """Configuration and median of each form of the first stages, the fastest first; those that are wrong with why."""
    kept = [
        {"config": row["config"], "us": median_us(row)} if median_us(row) < math.inf
        else {"config": row["config"], "failed": row.get("failed") or row.get("checked")}
        for row in rows
    ]  # fmt: skip
    return sorted(kept, key=lambda row: row.get("us", math.inf))


def figures(final: Record) -> Record:
    bests = {route: fastest(final["rows"], route, 1) for route in ("tileir", "ptx")}
    times = {name: median_us(rows[0]) if rows else math.nan for name, rows in bests.items()}
    times["torch"] = statistics.median(final["trusted_us"]) if final.get("trusted_us") else math.nan
    return {**times, "tileir/ptx": times["tileir"] / times["ptx"], "tileir/torch": times["tileir"] / times["torch"]}


# Without a GPU ----------------------------------------------------------------------------------------


def check(every: int) -> int:
    """Compiles all forms, and runs one of each ``every`` sources on the interpreter. Returns how many failed."""
    from tilewright.verify.check import InterpreterChecker

    board, task = default_board("sm_90"), load_task(str(TASK))
    every_form = dict.fromkeys([*field(task), *neighbours(task, [task.space.shipped]), *by_ptx(task)])
    units = [Unit(task.workload(WORKLOAD), each, board) for each in every_form]
    failed = [each for each in compile_all(task, units, seconds=60) if isinstance(each.code, Failed)]
    for each in failed:
        print(f"{each.unit.configuration}: {each.code}")
    print(f"{len(units) - len(failed)} of {len(units)} compile")
    sources = {tuple(each[name] for name in task.space.constants): each for each in every_form}
    checker, wrong = InterpreterChecker(task, board, 0), 0
    for config in list(sources.values())[::every]:
        found = checker.of(task.workload("512"), config)
        wrong += not found.right
        print(f"{found.verdict} {found.reason}: {config}", flush=True)
    return len(failed) + wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--check", action="store_true", help="without a GPU")
    parser.add_argument("--every", type=int, default=7, help="of --check: run one form of this many")
    given = parser.parse_args()
    if given.check:
        sys.exit(min(1, check(given.every)))
    if given.out is None:
        parser.error("name the file to write")
    found = sweep(given.seconds)
    for row in sorted(found["final"]["rows"], key=median_us)[:10]:
        print(f"{median_us(row):8.2f} us  {Configuration.of(row['config'])}")
    found["figures"] = figures(found["final"])
    print("  ".join(f"{name} {value:.3f}" for name, value in found["figures"].items()))
    write(given.out, {**made_here(), **found})


if __name__ == "__main__":
    main()
