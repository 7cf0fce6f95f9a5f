"""Runs the cases of a check within its limits, and other tools at the same time.

The compiler compiles later cases on all cores. compute-sanitizer watches one case in its own processes. The trusted
implementation runs in a process that has torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace

from tilewright.compile.compile import BUDGET_SECONDS, hints_of
from tilewright.errors import NoGpu, TaskError, UnknownChoice, in_task
from tilewright.hardware.architectures import ARCHITECTURES, Board, default_board
from tilewright.hardware.gpu import detect
from tilewright.languages import language_of
from tilewright.languages.base import Identity, Language, Lowered, with_key
from tilewright.progress import Progress
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Task
from tilewright.task.tensors import ArraySpec, Dims
from tilewright.tools.child import ToolPool
from tilewright.verify import shapes
from tilewright.verify.addresses import Reaches, Reaching
from tilewright.verify.cases import Case
from tilewright.verify.engine import Engine
from tilewright.verify.examining import Compiles, Examiner, Result
from tilewright.verify.images import ROW_MAJOR, image_of, place_of
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.own_shape import OwnShapes
from tilewright.verify.planning import Planned
from tilewright.verify.reference import Trusting
from tilewright.verify.sanitizer_tool import Watching
from tilewright.verify.trusted import Trusted

FAILURES = 8  # after this many wrong cases, no more cases are run
TRIES, TRY_SECONDS = 12, 4.0  # limits for making a failing case smaller
PLAIN = shapes.Limit(flop=5e8, elements=1 << 23)  # limits of a failing full-size case that is also tried as a plain run
ENGINES = ("interpreter", "gpu")


@dataclass(frozen=True)
class Equipment:
    """The engine and the tools of a check of one task. Only the engine is required.

    compiles: tells whether a launch compiles. Without this function, compiler errors and crashes of the kernel look
        alike. A failure before the run then counts as a compiler error if no workload has the shape or layout.
    """

    engine: Engine
    trusted: Trusting | None = None  # without it, the reference in float32 sets the allowed error
    compiles: Compiles | None = None
    reaches: Reaches | None = None  # checks addresses beyond 2³¹ elements
    own_shapes: OwnShapes | None = None  # checks workloads at their full size, if the engine cannot
    watching: Watching | None = None  # compute-sanitizer on the first case

    def ahead(self, cases: Sequence[tuple[Configuration, Case]]) -> None:
        """Compiles all cases, and starts the tools that watch the first case."""
        if isinstance(self.compiles, Compiling):
            self.compiles.ahead(cases)
        if self.watching is not None:
            self.watching.start(*cases[0])


@contextmanager
def equipped(task: Task, engine: str, board: Board, quick: bool) -> Iterator[Equipment]:
    """Yields the equipment of a check on ``engine``, and closes it at the end of the block."""
    on_gpu = engine == "gpu"
    with (
        closing(Trusted(task, "cuda" if on_gpu else "cpu")) as trusted,
        closing(_engine(task, board, on_gpu)) as runs,
        closing(Watching(task)) if on_gpu and not quick else nullcontext() as watching,
    ):
        compiling = Compiling(task, board, to_machine_code=on_gpu)
        own = None if on_gpu or quick else OwnShapes(task, board)
        yield Equipment(runs, trusted if task.trusted else None, compiling, Reaching(task, board), own, watching)


def _engine(task: Task, board: Board, on_gpu: bool) -> Engine:
    if on_gpu:
        from tilewright.verify.on_gpu import GpuEngine

        return GpuEngine(task)
    return InterpreterEngine(task, board)


Job = tuple[Language, Lowered]


class Compiling:
    """Compiles the launches of one task. Equal code is compiled once.

    to_machine_code: whether Tile IR is also compiled to a cubin.
    """

    def __init__(self, task: Task, board: Board, to_machine_code: bool) -> None:
        self.task, self.board, self.to_machine_code = task, board, to_machine_code
        self._known: dict[Identity, Built | Failed] = {}

    def __call__(self, configuration: Configuration, dims: Dims, arrays: Mapping[str, ArraySpec]) -> Failed | None:
        """Returns the failure of a launch that does not compile; None if the launch compiles."""
        job = self._lowered(configuration, dims, arrays)
        built = self._assembled(job) if self.to_machine_code and not isinstance(job, Failed) else job
        return built if isinstance(built, Failed) else None

    def ahead(self, cases: Sequence[tuple[Configuration, Case]]) -> None:
        """Compiles the launches of all cases on all CPU cores, and stores the cubins in the front end's cache."""
        if not self.to_machine_code:
            return
        jobs: dict[tuple[Identity, bytes], Job] = {}
        for configuration, case in cases:
            arrays = self.task.arrays(case.sizes)
            if case.layout != ROW_MAJOR:
                arrays = {
                    name: image_of(array, case.layout, 0, place=place_of(self.task, name)).spec
                    for name, array in arrays.items()
                }
            job = self._lowered(configuration, case.sizes, arrays)
            if not isinstance(job, Failed):
                jobs[job[1].identity, job[1].code] = job
        distinct = {lowered.identity: (language, lowered) for language, lowered in jobs.values()}
        with ToolPool(os.cpu_count() or 1, "tileiras") as pool:
            built = dict(zip(distinct, pool.map(self._assembled, distinct.values()), strict=True))
        for language, lowered in jobs.values():  # codes of one identity share the cubin, but not the key
            if isinstance(shared := built[lowered.identity], Built):
                language.remember([with_key(shared, language.cache_key(lowered))])

    def _lowered(self, configuration: Configuration, dims: Dims, arrays: Mapping[str, ArraySpec]) -> Job | Failed:
        try:
            launch = self.task.launched(configuration, dims, arrays, self.board)
            language = language_of(launch.kernel)
        except Exception as error:  # code of the task fails for dimensions that it might not support
            return Failed("launch", in_task(error))
        lowered = language.lower(launch, hints_of(self.task, configuration), configuration, self.board.arch)
        return lowered if isinstance(lowered, Failed) else (language, lowered)

    def _assembled(self, job: Job) -> Built | Failed:
        language, lowered = job
        if lowered.identity not in self._known:
            self._known[lowered.identity] = language.assemble(lowered, BUDGET_SECONDS)
        return self._known[lowered.identity]


def run_and_judge(
    examiner: Examiner, planned: Sequence[Planned], started: float, seconds: float, progress: Progress
) -> tuple[list[Result], list[tuple[Planned, str]]]:
    """Returns the results in the order of the plan, and the steps that did not run, each with the reason.

    Only the first case may begin later than ``seconds`` after ``started`` (a time of `time.perf_counter`).
    """
    results: list[Result] = []
    skipped: list[tuple[Planned, str]] = []
    failures = 0
    for number, step in enumerate(planned):
        if failures >= FAILURES:
            skipped.append((step, f"not run: {failures} cases are incorrect already"))
        elif results and time.perf_counter() > started + seconds:
            skipped.append((step, f"not run within {seconds:g} s"))
        else:
            progress("check", number, len(planned), step.case.described)
            results.append(examiner.examine(step.configuration, step.case))
            if step.case.run == "own shape":
                started += results[-1].seconds  # such a run has its own time limit
            failures += results[-1].verdict == "incorrect"
    progress("check", len(planned), len(planned))
    return results, skipped


def minimised(examiner: Examiner, results: Sequence[Result], only: Case | None = None) -> Result | None:
    """Returns the smallest failing case that was found within `TRIES` cases and `TRY_SECONDS`; None if no case failed.

    only: the case that the user asked for. It is not reduced.
    """
    failed = next((result for result in results if result.verdict == "incorrect"), None)
    if failed is None or only is not None or failed.case.run == "addresses":
        return failed  # a plain run of this shape would not fit in memory
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
    """Yields cases that are one step simpler: first a simpler run, layout or data, then half of one dimension."""
    plain, task = Case(()), examiner.task
    too_large = case.run == "own shape" and not PLAIN.allows(task, case.sizes)  # might not fit in memory
    for name in ("run", "layout", "data"):
        if getattr(case, name) != getattr(plain, name) and not (name == "run" and too_large):
            yield replace(case, **{name: getattr(plain, name)})
    for dims in shapes.halved(task, case.sizes, shapes.shape_dims(task, case.sizes)):
        yield replace(case, dims=tuple(dims.items()), why="smaller")


def engine_name(name: str | None) -> str:
    """Returns the engine to use: ``name``, or for None the GPU if the compiler supports it, else the interpreter.

    Raises UnknownChoice for an unknown engine, and NoGpu if ``name`` is ``gpu`` and there is no GPU.
    """
    gpu = detect()
    if name is None:
        return "gpu" if gpu is not None and gpu.arch in ARCHITECTURES else "interpreter"
    if name not in ENGINES:
        raise UnknownChoice("engine", name, ENGINES)
    if name == "gpu" and gpu is None:
        raise NoGpu("--engine gpu needs a GPU, and there is none here; --engine interpreter needs none")
    return name


def board_here(engine: str, arch: str) -> Board:
    """Returns the model of this machine's GPU if ``engine`` is ``gpu``, otherwise the default GPU model of ``arch``."""
    gpu = detect()
    return gpu.board if engine == "gpu" and gpu is not None else default_board(arch)
