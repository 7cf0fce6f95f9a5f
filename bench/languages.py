"""Which language wins: six operations in cuTile, Triton and Triton on Tile IR, each in one race.

    python bench/languages.py OUT.json [--only OPERATION …] [--arch sm_90]

Each operation is a task of `languages_tasks.py`, tuned once as a whole: all implementations are in the same race, with
a cold L2. The table has the smallest median of each implementation with its interval. Candidates that were dropped
early have fewer rounds, perhaps on a faster clock: `reason` compares each with the leader in the same rounds. Without a
GPU, --arch gives predicted times.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common import made_here, write

from tilewright.records import Candidate, WorkloadResult
from tilewright.space.union import implementation_of
from tilewright.strategies.base import fastest_first
from tilewright.task.loading import load_task
from tilewright.tune.tune import tune

TASKS = Path(__file__).parent / "languages_tasks.py"
OPERATIONS = ("softmax", "rms_norm", "layer_norm", "rope", "swiglu", "matmul")


def best_of_each(candidates: Iterable[Candidate]) -> dict[str, Candidate]:
    """The fastest candidate of each implementation that is not wrong, the fastest implementation first."""
    best: dict[str, Candidate] = {}
    for candidate in fastest_first(candidates):
        if candidate.checked is not None and candidate.checked.right:
            best.setdefault(implementation_of(candidate.configuration), candidate)
    return best


def row_of(candidate: Candidate) -> dict[str, Any]:
    measured = candidate.measured
    return {
        "config": dict(candidate.configuration), "measured_us": measured and measured.us,
        "interval_us": measured and list(measured.interval_us),
        "predicted_us": candidate.predicted and candidate.predicted.us, "reason": candidate.reason,
    }  # fmt: skip


def record_of(result: WorkloadResult, seconds: float) -> dict[str, Any]:
    rows = {name: row_of(candidate) for name, candidate in best_of_each(result.candidates).items()}
    return {
        "dims": dict(result.workload.dims), "speed_of_light_us": result.bound.speed_of_light_us, "best": rows,
        "winner": result.best and dict(result.best.configuration), "why": result.reason, "seconds": seconds,
    }  # fmt: skip


def shown(name: str, record: dict[str, Any]) -> str:
    lines = []
    for implementation, row in record["best"].items():
        time_us, interval = row["measured_us"], row["interval_us"]
        us = (
            f"{time_us:8.2f} us ({interval[0]:.2f} to {interval[1]:.2f})"
            if time_us
            else f"{row['predicted_us']:8.2f} us predicted"
        )
        lines.append(f"{name:11} {implementation:14} {us}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--only", nargs="+", choices=OPERATIONS, default=OPERATIONS)
    parser.add_argument("--arch")
    given = parser.parse_args()
    record: dict[str, Any] = {**made_here(), "operations": {}}
    for name in given.only:
        started = time.perf_counter()
        (result,) = tune(load_task(f"{TASKS}:{name}"), arch=given.arch, store=False).workloads
        record["operations"][name] = found = record_of(result, time.perf_counter() - started)
        print(shown(name, found), flush=True)
        write(given.out, record)


if __name__ == "__main__":
    main()
