"""Times the configurations of 25 kernels on this machine's GPU, also those that a screen would drop.

    python bench/record.py OUT.json.gz [--parts DIR] [--processes 4] [--seconds 30] [--rounds 25] [KERNEL …]
    python bench/record.py --list

The kernels are the five examples and the eight plain kernels of examples/naive, with more workloads and, for the plain
ones, more configurations than their files have (`EXTRA`); and the twelve kernels of bench/aside, on which no prediction
was ever fitted. Each kernel runs in a process of its own: it compiles, then waits for the GPU, which one process holds
at a time. After --seconds on the GPU a kernel takes up no further workload; 25 times 30 s is 12.5 minutes. What is done
lies in --parts: the same command goes on from there. The result is what `tests/compile/test_screen_recorded.py` and
bench/fit_predictions.py read: per workload and configuration the machine code's facts, the verdict on its outputs, and
the samples.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import json
import math
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from common import BENCH, answer, file_of, lines_of, need_gpu

from tilewright.compile.compile import Compiled, Unit, compile_all, launch_of, remember
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import driver_version
from tilewright.ledger.codec import to_json
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.records import Configuration, Failed
from tilewright.space.knobs import is_tile
from tilewright.task.loading import load_task, where_is
from tilewright.task.task import Task
from tilewright.worker.messages import CheckOutputs, Configured, Hello, PrepareInputs, Source, TimeRounds
from tilewright.worker.session import Session

EXTRA: Mapping[str, Mapping[str, Mapping[str, int | bool]]] = {
    "matmul": {"1024": {"M": 1024, "N": 1024, "K": 1024}, "long_k": {"M": 1024, "N": 1024, "K": 16384}},
    "rms_norm": {"8192x2048": {"M": 8192, "N": 2048}},
    "rope": {"small": {"B": 2, "H": 16, "S": 1024, "D": 128}},
    "fmha": {"medium": {"B": 2, "H": 16, "S": 2048, "D": 128, "causal": True}},
    "swiglu": {"4096x8192": {"M": 4096, "N": 8192}},
    "naive/rms_norm": {"2048x4096": {"M": 2048, "N": 4096}},
    "naive/matmul": {"2048": {"M": 2048, "N": 2048, "K": 2048}},
    "naive/matmul_fp32": {"1024": {"M": 1024, "N": 1024, "K": 1024}},
    "naive/softmax": {"4096x2048": {"M": 4096, "N": 2048}},
    "naive/attention": {"short": {"B": 8, "H": 16, "S": 512, "D": 64, "causal": True}},
    "naive/rope": {"small": {"B": 2, "H": 16, "S": 1024, "D": 128}},
    "naive/layer_norm": {"4096x4096": {"M": 4096, "N": 4096}},
    "naive/dual_gemm": {"square": {"M": 2048, "N": 2048, "K": 2048}},
    **{f"aside/{name}": {} for name in (
        "online_softmax", "layer_norm_rows", "linear_gelu", "weight_gradient", "batched_matmul", "column_sum",
        "transpose", "cross_entropy", "linear_residual", "residual_rms_norm", "attention_bias", "adam_step",
    )},
}  # fmt: skip
"""The kernels below examples/ and bench/, and the workloads that are recorded besides those in their files."""
HINTS = {"occupancy": (None, 2, 4), "num_worker_warps": (None, 8)}
"""Of the plain kernels, whose files have none; their tile sizes are halved and doubled."""
MOST = {"naive": 24, "aside": 16} | dict.fromkeys(lines_of(BENCH / "fit_set_aside_3.txt"), 60)
"""Folder or kernel → configurations of each of its workloads: the shipped one, and others that are drawn. Of other
kernels all configurations are recorded."""
SUFFIX = """

import dataclasses

task = dataclasses.replace(task, workloads={{**task.workloads, **{workloads!r}}}, space={space})
"""


def widened(kernel: str, folder: Path) -> Task:
    """The task of ``kernel`` with more workloads and configurations, from a copy of its file for the worker."""
    source = file_of(kernel)
    task, space = load_task(str(source)), "task.space"
    if kernel.startswith("naive/"):
        constants = {
            name: (values[0] // 2, *values, values[0] * 2) if is_tile(name) else tuple(values)
            for name, values in task.space.constants.items()
        }
        shipped = {**task.space.shipped, **dict.fromkeys(HINTS)}
        space = f"tw.Space(constants={constants!r}, hints={HINTS!r}, shipped={shipped!r})"
    copy = folder / f"{kernel.replace('/', '_')}_recorded.py"
    copy.write_text(source.read_text() + SUFFIX.format(workloads=dict(EXTRA[kernel]), space=space))
    return load_task(str(copy))


def configurations(kernel: str, task: Task, sm: int, dims: Mapping[str, Any]) -> list[Configuration]:
    every = list(task.space.configurations(sm, dims))
    most = MOST.get(kernel, MOST.get(kernel.partition("/")[0], len(every)))
    if len(every) <= most:
        return every
    others = [config for config in every if config != task.space.shipped]
    return [task.space.shipped, *random.Random(0).sample(others, most - 1)]


def record(kernel: str, rounds: int, seconds: float, jobs: int, lock: Path) -> dict[str, Any]:
    """One kernel: compiles, waits for the GPU, and times workloads until ``seconds`` are over."""
    board, gpu = need_gpu(), detect()
    with tempfile.TemporaryDirectory() as folder, lock.open("a") as held:
        task = widened(kernel, Path(folder))
        workloads = task.selected(None)
        units = [Unit(w, c, board) for w in workloads for c in configurations(kernel, task, board.sm, w.dims)]
        started = time.perf_counter()
        compiled = compile_all(task, units, seconds=30, jobs=jobs)
        remember(task, compiled)
        print(f"{kernel}: {len(units)} compiled in {time.perf_counter() - started:.1f} s", flush=True)
        with Session(where_is(task)) as session:
            machine = asdict(answer(session.run(Hello()))) | asdict(gpu) | {"driver": driver_version()}
            fcntl.flock(held, fcntl.LOCK_EX)
            until, done = time.perf_counter() + seconds, []
            for workload in workloads:
                if time.perf_counter() < until:
                    done.append(measured(task, session, workload, compiled, rounds))
        left = [workload.name for workload in workloads[len(done) :]]
        print(f"{kernel}: {len(done)} workloads" + (f"; no time for {', '.join(left)}" if left else ""), flush=True)
        return {
            "kernel": kernel, "task": task.name, "machine": machine, "date": str(date.today()),
            "python": platform.python_version(), "workloads": done,
        }  # fmt: skip


def described(task: Task, one: Compiled) -> tuple[dict[str, Any], Source | None]:
    """What is recorded of a compiled configuration, and how the worker launches it; None if it did not compile."""
    row: dict[str, Any] = {"config": dict(one.unit.configuration)}
    if isinstance(one.code, Failed) or isinstance(one.built, Failed):
        return {**row, "failed": asdict(one.code if isinstance(one.code, Failed) else one.built)}, None
    row |= {"grid": launch_of(task, one.unit)[0].grid, "code": to_json(one.code)}
    row["compile_seconds"] = round(one.built.seconds, 2)
    return row, Configured(one.unit.configuration)


def measured(
    task: Task, session: Any, workload: Any, compiled: Sequence[Compiled], rounds: int,
    others: Sequence[tuple[dict[str, Any], Source]] = (),
) -> dict[str, Any]:  # fmt: skip
    """Checks and times compiled configurations, and ``others``: sources with what is recorded of them."""
    mine = [described(task, one) for one in compiled if one.unit.workload == workload]
    answer(session.run(PrepareInputs(workload.name, 1), silence=120))
    rows, timed = [], []
    for row, source in (*mine, *others):
        if source is not None:
            outcome = session.run(CheckOutputs(source))
            if outcome.answer is None:
                row["failed"] = {"stage": "verify", "reason": outcome.reason}
                answer(session.run(PrepareInputs(workload.name, 1), silence=120))
            else:
                row["checked"] = asdict(outcome.answer.checked)
                timed.append((row, source))
        rows.append(row)
    if not timed:
        return {"workload": workload.name, "dims": dict(workload.dims), "policy": Policy().to_json(), "rows": rows}
    sources = tuple(source for _, source in timed)
    result = answer(
        session.run(TimeRounds(sources, Budget(rounds, math.inf, 0), Policy(), benchmark=True), silence=120)
    )
    for (row, _), samples in zip(timed, result.samples_us, strict=True):
        row["samples_us"] = [round(us, 3) for us in samples]
    best = min((row for row, _ in timed), key=lambda row: median(row["samples_us"]))
    wrong = sum(row.get("checked", {}).get("verdict") != "correct" for row in rows)
    us, config = median(best["samples_us"]), best["config"]
    print(
        f"  {workload.name:16} {len(rows)} configurations, best {us:9.2f} us {config}; {wrong} not correct", flush=True
    )
    return {
        "workload": workload.name, "dims": dict(workload.dims), "policy": Policy().to_json(), "rows": rows,
        "trusted_us": result.trusted_us, "monitor": result.monitor,
    }  # fmt: skip


def part_of(parts: Path, kernel: str) -> Path:
    return parts / f"{kernel.replace('/', '_')}.json"


def record_all(kernels: Sequence[str], parts: Path, given: argparse.Namespace) -> list[str]:
    """Runs a process for each kernel that has no part yet, several at a time; returns those that failed."""
    parts.mkdir(parents=True, exist_ok=True)
    jobs = max(1, (os.cpu_count() or 1) // given.processes)

    def one(kernel: str) -> bool:
        if part_of(parts, kernel).exists():
            return True
        command = [sys.executable, __file__, "--one", kernel, "--parts", str(parts), "--jobs", str(jobs)]
        command += ["--seconds", str(given.seconds), "--rounds", str(given.rounds)]
        return subprocess.run(command).returncode == 0

    with ThreadPoolExecutor(given.processes) as pool:
        return [kernel for kernel, fine in zip(kernels, pool.map(one, kernels), strict=True) if not fine]


def merge(kernels: Sequence[str], parts: Path, out: Path) -> int:
    """Writes the parts that are there into one compact file; returns how many workloads it has."""
    files = [part_of(parts, kernel) for kernel in kernels]
    tasks = [json.loads(file.read_text()) for file in files if file.exists()]
    text = json.dumps({"command": "python " + " ".join(sys.argv), "tasks": tasks}, separators=(",", ":"))
    with gzip.GzipFile(out, "wb", mtime=0) as file:
        file.write(text.encode())
    return sum(len(task["workloads"]) for task in tasks)


def listed() -> str:
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for kernel in EXTRA:
            task = widened(kernel, Path(folder))
            found = [f"{w} {len(configurations(kernel, task, 90, w.dims))}" for w in task.selected(None)]
            lines.append(f"{kernel:18} {', '.join(found)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=", ".join(EXTRA))
    parser.add_argument("--list", action="store_true", help="kernels and workloads, with their configurations")
    parser.add_argument("--parts", type=Path, default=Path("record-parts"))
    parser.add_argument("--processes", type=int, default=4, help="kernels that are compiled at a time")
    parser.add_argument("--seconds", type=float, default=30.0, help="of one kernel on the GPU")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=4, help=argparse.SUPPRESS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.list:
        print(listed())
        return
    if given.one:
        part = part_of(given.parts, given.one)
        found = record(given.one, given.rounds, given.seconds, given.jobs, given.parts / "gpu.lock")
        unfinished = part.with_suffix(".part")
        unfinished.write_text(json.dumps(found, separators=(",", ":")))
        unfinished.rename(part)
        return
    if given.out is None:
        parser.error("name the file to write, such as h200.json.gz")
    kernels = given.kernels or list(EXTRA)
    if unknown := [kernel for kernel in kernels if kernel not in EXTRA]:
        parser.error(f"unknown kernel '{unknown[0]}'; known: {', '.join(EXTRA)}")
    need_gpu()
    failed = record_all(kernels, given.parts, given)
    count = merge(kernels, given.parts, given.out)
    print(f"{count} workloads of {len(kernels) - len(failed)} kernels, {given.out.stat().st_size / 1e6:.2f} MB")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the same command tries them again")


if __name__ == "__main__":
    main()
