"""What stands around the cases of a check: the time they may take, and the tools that run beside them.

The compiler works ahead on all cores, compute-sanitizer watches one case in processes of its own, and the trusted
implementation runs in a process that has torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from tilewright.compile.compile import BUDGET_SECONDS, hints_of
from tilewright.errors import NoGpu, TaskError, UnknownChoice, in_one_line
from tilewright.hardware.architectures import ARCHITECTURES, Board, default_board
from tilewright.hardware.gpu import detect
from tilewright.languages import language_of
from tilewright.languages.base import Language, Lowered
from tilewright.progress import Progress
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Task
from tilewright.task.tensors import ArraySpec, Dims
from tilewright.verify import shapes
from tilewright.verify.addresses import Reaching
from tilewright.verify.cases import Case
from tilewright.verify.engine import Engine
from tilewright.verify.examining import Examiner, Result
from tilewright.verify.images import ROW_MAJOR, image_of
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.planning import Planned
from tilewright.verify.sanitizer_tool import Watching
from tilewright.verify.trusted import Trusted

FAILURES = 8
"""After so many wrong cases the others are not run: the answer is known."""
TRIES = 12
TRY_SECONDS = 4.0
"""For making a failing case smaller."""
ENGINES = ("interpreter", "gpu")


@dataclass(frozen=True)
class Equipment:
    """Engine and tools for one task."""

    engine: Engine
    trusted: Trusted | None
    watching: Watching
    compiling: Compiling
    reaching: Reaching

    def ahead(self, cases: Sequence[tuple[Configuration, Case]]) -> None:
        """Compiles all cases, and starts the tools that watch the first."""
        self.compiling.ahead(cases)
        self.watching.start(*cases[0])


@contextmanager
def equipped(task: Task, engine: str, board: Board, quick: bool) -> Iterator[Equipment]:
    """The equipment of a check on ``engine``, which ends with the block."""
    on_gpu = engine == "gpu"
    with (
        closing(Trusted(task, "cuda" if on_gpu else "cpu")) as trusted,
        closing(_engine(task, board, on_gpu)) as runs,
        closing(Watching(task, quick or not on_gpu)) as watching,
    ):
        compiling = Compiling(task, board, to_machine_code=on_gpu)
        yield Equipment(runs, trusted if task.trusted else None, watching, compiling, Reaching(task, board))


def _engine(task: Task, board: Board, on_gpu: bool) -> Engine:
    if on_gpu:
        from tilewright.verify.on_gpu import GpuEngine

        return GpuEngine(task)
    return InterpreterEngine(task, board)


Job = tuple[Language, Lowered]


class Compiling:
    """Compiles the launches of one task as a check meets them; equal code once. ``to_machine_code``: with the compiler,
    for a GPU; else the front end alone."""

    def __init__(self, task: Task, board: Board, to_machine_code: bool) -> None:
        self.task, self.board, self.to_machine_code = task, board, to_machine_code
        self._known: dict[tuple[str, int, bytes], Built | Failed] = {}

    def __call__(self, configuration: Configuration, dims: Dims, arrays: Mapping[str, ArraySpec]) -> Failed | None:
        """Why the launch does not compile; None where it does."""
        job = self._lowered(configuration, dims, arrays)
        if isinstance(job, Failed):
            return job
        built = self._assembled(job) if self.to_machine_code else None
        return built if isinstance(built, Failed) else None

    def ahead(self, cases: Sequence[tuple[Configuration, Case]]) -> None:
        """Compiles what the cases will launch on all cores, into the cache that the launches look in."""
        if not self.to_machine_code:
            return
        jobs: dict[tuple[str, int, bytes], Job] = {}
        for configuration, case in cases:
            arrays = self.task.arrays(case.sizes)
            if case.layout != ROW_MAJOR:
                arrays = {name: image_of(array, case.layout, 0).spec for name, array in arrays.items()}
            job = self._lowered(configuration, case.sizes, arrays)
            if not isinstance(job, Failed):
                jobs[job[1].identity] = job
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            outcomes = tuple(pool.map(self._assembled, jobs.values()))
        for (language, _), built in zip(jobs.values(), outcomes, strict=True):
            if isinstance(built, Built):
                language.remember([built])

    def _lowered(self, configuration: Configuration, dims: Dims, arrays: Mapping[str, ArraySpec]) -> Job | Failed:
        try:
            launch = self.task.launched(configuration, dims, arrays, self.board)
            language = language_of(launch.kernel)
        except Exception as error:  # the task's own code, for dimensions that it may not serve
            return Failed("launch", in_one_line(error))
        lowered = language.lower(launch, hints_of(self.task, configuration), configuration, self.board.arch)
        return lowered if isinstance(lowered, Failed) else (language, lowered)

    def _assembled(self, job: Job) -> Built | Failed:
        language, lowered = job
        if lowered.identity not in self._known:
            self._known[lowered.identity] = language.assemble(lowered, BUDGET_SECONDS)
        return self._known[lowered.identity]


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

    only: the case that the user asked for; it is not reduced.
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
    """One step each: first plain runs, layouts and data, which explain most, then half of a dimension."""
    plain = Case(())
    for name in ("run", "layout", "data"):
        if getattr(case, name) != getattr(plain, name):
            yield replace(case, **{name: getattr(plain, name)})
    task = examiner.task
    for dims in shapes.halved(task, case.sizes, shapes.shape_dims(task, case.sizes)):
        yield replace(case, dims=tuple(dims.items()), why="smaller")


def engine_name(name: str | None) -> str:
    """The engine to use: the GPU where there is one that the compiler knows, unless another is named. Raises
    UnknownChoice for a name that is none, NoGpu where a GPU is asked for and there is none."""
    gpu = detect()
    if name is None:
        return "gpu" if gpu is not None and gpu.arch in ARCHITECTURES else "interpreter"
    if name not in ENGINES:
        raise UnknownChoice("engine", name, ENGINES)
    if name == "gpu" and gpu is None:
        raise NoGpu("--engine gpu needs a GPU, and there is none here; --engine interpreter needs none")
    return name


def board_here(engine: str, arch: str) -> Board:
    """The GPU's own board where it is the engine, else the default one of ``arch``."""
    gpu = detect()
    return gpu.board if engine == "gpu" and gpu is not None else default_board(arch)
