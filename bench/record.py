"""Times every configuration of the examples on this machine's GPU, also those a screen would drop.

    python bench/record.py OUT.json.gz [--rounds 25] [examples/matmul.py …]

The result is what `tests/test_screen_recorded.py` holds the screen against: per workload and
configuration the machine code's properties, the verdict on its outputs, and the samples.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import platform
import sys
import time
from dataclasses import asdict
from datetime import date
from pathlib import Path
from statistics import median

from common import EXAMPLES, answer, need_gpu

from tilewright.compile.compile import Unit, compile_all, launch_of, remember
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import driver_version
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.records import Configuration, Failed
from tilewright.task.loading import load_task, where_is
from tilewright.worker.messages import CheckOutputs, Configured, Hello, Lost, PrepareInputs, TimeRounds
from tilewright.worker.session import Session

NAMES = ("matmul", "rms_norm", "rope", "fmha", "swiglu")


def record(path: Path, rounds: int) -> dict:
    task = load_task(str(path))
    board, gpu = need_gpu(), detect()
    workloads = task.selected(None)
    with Session(where_is(task)) as session:
        units = [Unit(w, c, board) for w in workloads for c in task.space.configurations(board.sm, w.dims)]
        started = time.perf_counter()
        compiled = compile_all(task, units, seconds=30)
        remember(task, compiled)
        print(f"{task.name}: {len(units)} compiled in {time.perf_counter() - started:.1f} s", flush=True)
        return {
            "task": task.name,
            "machine": asdict(answer(session.run(Hello()))) | asdict(gpu) | {"driver": driver_version()},
            "date": str(date.today()),
            "python": platform.python_version(),
            "workloads": [measured(task, session, workload, compiled, rounds) for workload in workloads],
        }


def measured(task, session, workload, compiled, rounds) -> dict:
    mine = [one for one in compiled if one.unit.workload == workload]
    answer(session.run(PrepareInputs(workload.name, 1), silence=120))
    rows, timed = [], []
    for one in mine:
        grid = launch_of(task, one.unit)[0].grid
        row = {"config": dict(one.unit.configuration), "grid": grid}
        if isinstance(one.code, Failed) or isinstance(one.built, Failed):
            row["failed"] = asdict(one.code if isinstance(one.code, Failed) else one.built)
        else:
            row |= {"code": asdict(one.code), "compile_seconds": one.built.seconds}
            checked = session.run(CheckOutputs(Configured(one.unit.configuration)))
            if isinstance(checked, Lost):
                row["failed"] = {"stage": "verify", "reason": checked.reason}
                answer(session.run(PrepareInputs(workload.name, 1), silence=120))
            else:
                row["checked"] = asdict(checked.checked)
                timed.append(row)
        rows.append(row)
    sources = tuple(Configured(Configuration.of(row["config"])) for row in timed)
    result = answer(
        session.run(TimeRounds(sources, Budget(rounds, math.inf, 0), Policy(), benchmark=True), silence=120)
    )
    for row, samples in zip(timed, result.samples_us, strict=True):
        row["samples_us"] = [round(us, 3) for us in samples]
    best = min(timed, key=lambda row: median(row["samples_us"]))
    us = median(best["samples_us"])
    line = f"  {workload.name:16} {len(rows)} configurations, best {us:9.2f} us {best['config']}"
    if result.trusted_us:
        line += f", torch {median(result.trusted_us):.2f} us ({median(result.trusted_us) / us:.3f})"
    wrong = [row for row in rows if row.get("checked", {}).get("verdict") != "correct"]
    print(line, f"; {len(wrong)} not correct", *[row.get("failed") or row["checked"] for row in wrong[:2]], flush=True)
    return {
        "workload": workload.name, "dims": dict(workload.dims), "policy": Policy().to_json(), "rows": rows,
        "trusted_us": result.trusted_us, "monitor": result.monitor,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("examples", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args()
    command = "python " + " ".join(sys.argv)
    results = [record(path, given.rounds) for path in given.examples or [EXAMPLES / f"{name}.py" for name in NAMES]]
    with gzip.open(given.out, "wt") as file:
        json.dump({"command": command, "tasks": results}, file)


if __name__ == "__main__":
    main()
