"""What stands around the cases of a check: the time they may take, and the tools that run beside them.

The compiler works ahead on all cores, compute-sanitizer watches one case in processes of its own, and the trusted
implementation runs in a process that has torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from types import TracebackType

from tilewright.errors import NoGpu, TaskError, UnknownChoice
from tilewright.hardware.architectures import ARCHITECTURES, Board, default_board
from tilewright.hardware.gpu import detect
from tilewright.progress import Progress
from tilewright.records import Configuration
from tilewright.task.task import Task
from tilewright.verify import shapes
from tilewright.verify.addresses import Reaching
from tilewright.verify.cases import Case
from tilewright.verify.compiling import Compiling
from tilewright.verify.engine import Engine
from tilewright.verify.examining import Examiner, Result
from tilewright.verify.planning import Planned
from tilewright.verify.sanitizer_tool import Watching
from tilewright.verify.trusted import Trusted

FAILURES = 8
"""After so many wrong cases the others are not run: the answer is known."""
TRIES = 12
TRY_SECONDS = 4.0
"""For making a failing case smaller."""
ENGINES = ("interpreter", "gpu")


class Equipment:
    """Engine and tools for one task; a context manager that ends them."""

    def __init__(self, task: Task, engine: str, board: Board, quick: bool) -> None:
        on_gpu = engine == "gpu"
        with ExitStack() as stack:
            trusted = stack.enter_context(closing(Trusted(task, "cuda" if on_gpu else "cpu")))
            self.trusted = trusted if task.trusted is not None else None
            self.engine = stack.enter_context(closing(made(engine, task, board)))
            self.watching = stack.enter_context(closing(Watching(task, quick or not on_gpu)))
            self.compiling = Compiling(task, board, to_machine_code=on_gpu)
            self.reaching = Reaching(task, board)
            self._stack = stack.pop_all()

    def ahead(self, cases: Sequence[tuple[Configuration, Case]]) -> None:
        """Compiles all cases, and starts the tools that watch the first."""
        self.compiling.ahead(cases)
        self.watching.start(*cases[0])

    def __enter__(self) -> Equipment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def run_and_judge(
    examiner: Examiner, planned: Sequence[Planned], until: float, seconds: float, progress: Progress
) -> tuple[list[Result], list[tuple[Planned, str]]]:
    """The results in the order of the plan, and the steps that did not run, with the reason. until: of
    `time.perf_counter`, after which no further case begins; the first always runs. seconds: the same limit, for the
    message."""
    results: list[Result] = []
    skipped: list[tuple[Planned, str]] = []
    failures = 0
    for number, step in enumerate(planned):
        if failures >= FAILURES:
            skipped.append((step, f"not run: {failures} cases are incorrect already"))
        elif results and time.perf_counter() > until:
            skipped.append((step, f"not run within {seconds:g} s"))
        else:
            progress("check", number, len(planned), step.case.described)
            results.append(examiner.examine(step.configuration, step.case))
            failures += results[-1].verdict == "incorrect"
    progress("check", len(planned), len(planned))
    return results, skipped


def minimised(examiner: Examiner, results: Sequence[Result], only: Case | None = None) -> Result | None:
    """The smallest failing case that `TRIES` cases and `TRY_SECONDS` seconds find; None where none failed.

    only: the case that a person asked for, which stays as it is.
    """
    failed = next((result for result in results if result.verdict == "incorrect"), None)
    if failed is None or only is not None or failed.case.run == "addresses":
        return failed  # no other way to follow addresses would fit in memory
    best, tried, until = failed, {str(failed.case)}, time.monotonic() + TRY_SECONDS
    while len(tried) <= TRIES and time.monotonic() < until:
        candidate = next((case for case in _simpler(examiner, best.case) if str(case) not in tried), None)
        if candidate is None:
            break
        tried.add(str(candidate))
        try:
            result = examiner.examine(best.configuration, candidate)
        except TaskError:
            continue
        if result.verdict == "incorrect":
            best = result
    return best


def _simpler(examiner: Examiner, case: Case) -> Iterator[Case]:
    """One step each: friendlier data and memory first, since they say most, then half of a dimension."""
    plain = Case(())
    for name in ("run", "layout", "data"):
        if getattr(case, name) != getattr(plain, name):
            yield replace(case, **{name: getattr(plain, name)})
    task = examiner.task
    for dims in shapes.halved(task, case.sizes, shapes.shape_dims(task, case.sizes)):
        yield replace(case, dims=tuple(dims.items()), why="smaller")


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
