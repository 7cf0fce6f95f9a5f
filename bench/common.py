"""What the benchmarks share: fresh caches, the record of where a number was made, one GPU session."""

from __future__ import annotations

import compileall
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import tilewright
from tilewright.compile.compile import Unit, compile_all, remember
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import machine_of, target_of
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.records import Configuration, Workload
from tilewright.task.task import Task
from tilewright.worker.messages import Configured, PrepareInputs, TimeRounds
from tilewright.worker.outcome import Outcome
from tilewright.worker.session import Session

BENCH = Path(__file__).parent
EXAMPLES = BENCH.parent / "examples"


def lines_of(file: Path) -> list[str]:
    """Returns the lines of a text file, such as a list of what is set aside, without comments and empty lines."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def file_of(kernel: str) -> Path:
    """The file of a recorded kernel: ``aside/transpose`` is below bench/, others, as ``matmul``, below examples/."""
    return (BENCH if kernel.startswith("aside/") else EXAMPLES) / f"{kernel}.py"


@contextmanager
def empty_cache() -> Iterator[str]:
    """A cuTile disk cache that holds nothing; set it before cuda.tile is imported."""
    with tempfile.TemporaryDirectory(prefix="cutile-cache-") as directory:
        before = os.environ.get("CUDA_TILE_CACHE_DIR")
        os.environ["CUDA_TILE_CACHE_DIR"] = directory
        try:
            yield directory
        finally:
            if before is None:
                del os.environ["CUDA_TILE_CACHE_DIR"]
            else:
                os.environ["CUDA_TILE_CACHE_DIR"] = before


def need_gpu() -> Any:
    gpu = detect()
    if gpu is None:
        sys.exit("this benchmark needs a GPU")
    return gpu.board


IMPORTED = """
import torch, cuda.tile.tune, tilewright.worker.process.worker
from tilewright.cli.main import app
app()
"""


def compile_packages() -> None:
    """Compiles Tilewright, and what both sides of a comparison import, to bytecode, as pip does when it installs them.

    Otherwise each process of a benchmark compiles them anew where Python may not write bytecode, as in many containers:
    0.25 s of processor time for the modules of `tune`, 4 s for torch.
    """
    compileall.compile_dir(tilewright.__path__[0], quiet=2)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", IMPORTED], env=environment, stdout=subprocess.DEVNULL)  # it prints the help


def made_here() -> dict[str, Any]:
    """Machine, driver, versions, date and command: what a recorded number needs."""
    machine = machine_of(target_of(None, detect()))
    return {
        "machine": {**asdict(machine), "versions": dict(machine.versions)},
        "date": str(date.today()),
        "command": "python " + " ".join(sys.argv),
    }


def build(task: Task, workload: Workload, configs: Sequence[Configuration]) -> None:
    """Compiles ``configs`` and puts the cubins where the worker's launches find them."""
    board = need_gpu()
    remember(task, compile_all(task, [Unit(workload, config, board) for config in configs]))


Answer = TypeVar("Answer")


def answer(outcome: Outcome[Answer]) -> Answer:
    if outcome.answer is None:
        sys.exit(f"the worker was lost: {outcome.reason}")
    return outcome.answer


def retime(
    session: Session, workload: Workload, configs: Sequence[Configuration], rounds: int, seed: int = 11
) -> tuple[list[list[float]], list[float] | None]:
    """Interleaved samples in µs of each configuration, and of the trusted implementation if there is one."""
    answer(session.run(PrepareInputs(workload.name, seed), silence=180))
    step = TimeRounds(tuple(map(Configured, configs)), Budget(rounds, math.inf, 0), Policy(), benchmark=True)
    result = answer(session.run(step, silence=180))
    return [list(us) for us in result.samples_us], None if result.trusted_us is None else list(result.trusted_us)


def paired_ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Median over the rounds of a / b: drift common to a round cancels."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def write(path: str | Path | None, record: dict[str, Any]) -> None:
    if path:
        Path(path).write_text(json.dumps(record, indent=1) + "\n")
