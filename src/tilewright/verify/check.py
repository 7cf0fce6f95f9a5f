"""`tilewright check`: a task and its gradient, verified on the engine that this machine has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import NoGpu, UnknownChoice
from tilewright.hardware.architectures import ARCHITECTURES, Board, default_board
from tilewright.hardware.gpu import detect
from tilewright.progress import Progress, silent
from tilewright.records import Configuration
from tilewright.task.task import Task
from tilewright.verify import shapes
from tilewright.verify.addresses import Reaching
from tilewright.verify.cases import Case
from tilewright.verify.checking import SECONDS, Verdict, check
from tilewright.verify.compiling import Compiling
from tilewright.verify.engine import Engine
from tilewright.verify.gradients import check_gradients
from tilewright.verify.report import to_json, worst
from tilewright.verify.trusted import Trusted
from tilewright.verify.watching import Watching

ENGINES = ("interpreter", "gpu")


@dataclass(frozen=True)
class Asked:
    """What a check is asked for, beside the task."""

    configurations: tuple[Configuration, ...] = ()
    workloads: tuple[str, ...] = ()
    case: Case | None = None
    seed: int = 0
    quick: bool = False
    seconds: float = SECONDS


def engine_name(name: str | None) -> str:
    """The engine to use: the GPU where there is one that the compiler knows, unless another is named.

    Raises UnknownChoice for a name that is none, NoGpu where a GPU is asked for and there is none.
    """
    gpu = detect()
    if name is None:
        return "gpu" if gpu is not None and gpu.arch in ARCHITECTURES else "interpreter"
    if name not in ENGINES:
        raise UnknownChoice("engine", name, ENGINES)
    if name == "gpu" and gpu is None:
        raise NoGpu("--engine gpu needs a GPU, and there is none here; --engine interpreter needs none")
    return name


def verdicts(task: Task, engine: str, board: Board, asked: Asked, progress: Progress = silent) -> tuple[Verdict, ...]:
    """The verdict on ``task``, and on its backward where it declares one.

    Raises TaskError where a reference fails, tells nothing, or is no gradient.
    """
    found = [_verdict(task, engine, board, asked, progress)]
    if task.backward is not None and asked.case is None:
        configuration = task.backward.space.shipped
        for workload in task.selected(asked.workloads)[:1]:
            tiles = shapes.moduli(task, configuration, workload.dims)
            check_gradients(task, shapes.reduced(task, workload.dims, tiles, most=1), asked.seed)
        own = Asked(seed=asked.seed, quick=asked.quick, seconds=asked.seconds)
        found.append(_verdict(task.backward, engine, board, own, progress))
    return tuple(found)


def _verdict(task: Task, engine: str, board: Board, asked: Asked, progress: Progress) -> Verdict:
    compiling = Compiling(task, board, to_machine_code=engine == "gpu")
    with (
        closing(Trusted(task, "cuda" if engine == "gpu" else "cpu")) as trusted,
        closing(made(engine, task, board)) as runs,
        closing(Watching(task, asked.quick or engine != "gpu")) as watching,
    ):

        def ahead(cases: Sequence[tuple[Configuration, Case]]) -> None:
            compiling.ahead(cases)
            watching.start(*cases[0])

        verdict = check(
            task, runs, configurations=asked.configurations, workloads=task.selected(asked.workloads),
            seed=asked.seed, trusted=trusted if task.trusted is not None else None,
            compiles=compiling, ahead=ahead, reaches=Reaching(task, board),
            only=asked.case, quick=asked.quick, seconds=asked.seconds, progress=progress,
        )  # fmt: skip
        return watching.joined(verdict)


def made(name: str, task: Task, board: Board) -> Engine:
    """The engine of that name for one task."""
    if name == "gpu":
        from tilewright.verify.on_gpu import GpuEngine

        return GpuEngine(task)
    from tilewright.verify.interpreted import InterpreterEngine

    return InterpreterEngine(task, board)


def board_here(engine: str, arch: str) -> Board:
    """The GPU's own board where it is the engine, else the default one of ``arch``."""
    gpu = detect()
    if engine == "gpu" and gpu is not None:
        return gpu.board
    return default_board(arch)


def as_json(verdicts: Sequence[Verdict], where: str, options: Sequence[str] = ()) -> dict[str, Any]:
    """The value of `check --json`: that of the task, with ``backward`` beside it where there is one."""
    first, *others = verdicts
    found = to_json(first, where, options) | {"verdict": worst(verdicts)}
    found["backward"] = to_json(others[0], beside(where, others[0]), options) if others else None
    return found


def beside(where: str, verdict: Verdict) -> str:
    """``FILE:TASK`` of another task of the file that ``where`` names."""
    file, _, _ = where.rpartition(":")
    return f"{file if file and Path(file).is_file() else where}:{verdict.task}"
