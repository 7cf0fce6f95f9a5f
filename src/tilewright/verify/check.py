"""`tilewright check`: checks a task's kernel, and the kernel of its gradient.

    plan → compile → run → judge → minimise → report

Each case runs and is judged (`examining`) before the next case begins. `schedule` keeps the time limits, and starts the
tools that work at the same time. `InterpreterChecker` checks many candidates and versions of one task with the
interpreter.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from tilewright.compile.compile import languages_of
from tilewright.hardware.architectures import DEFAULT_ARCH, Board
from tilewright.progress import Progress, silent
from tilewright.records import Checked, Configuration, Workload
from tilewright.space.space import Choice
from tilewright.task.loading import task_of
from tilewright.task.task import Task
from tilewright.verify import shapes
from tilewright.verify.cases import NOT_BY_THE_ENGINE, Case
from tilewright.verify.examining import Examiner
from tilewright.verify.images import too_large
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.own_shape import OwnShapes
from tilewright.verify.planning import SECONDS, WHOLE_CHECK, Scope, plan
from tilewright.verify.reference import FloatReference, check_gradients
from tilewright.verify.schedule import Equipment, board_here, engine_name, equipped, minimised, run_and_judge
from tilewright.verify.trusted import Trusted
from tilewright.verify.verdict import Verdict, report

BY_INTERPRETER = "by the interpreter, not on a GPU"
CANDIDATE_SECONDS = 10.0  # time limit for one candidate of an `InterpreterChecker`


def check(
    task: Task | str, *, engine: str | None = None, arch: str | None = None,
    configurations: Choice | Sequence[Choice] = (), workloads: Sequence[str] | str = (), case: Case | None = None,
    seed: int = 0, quick: bool = False, seconds: float = SECONDS, progress: Progress = silent,
) -> tuple[Verdict, ...]:  # fmt: skip
    """Checks a task, and its backward task if it declares one. Returns one verdict for each.

    task: a task, or ``FILE[:TASK]``.
    engine: ``interpreter`` or ``gpu``; by default the GPU, if there is a GPU that the compiler supports.
    arch: the architecture for which the interpreter compiles.
    workloads: one name or several; by default all.
    configurations: one or several, as strings or as mappings of knob to value; by default the shipped one.
    case: the only case to run; by default all planned cases.
    seed: for the inputs, the random shapes and the order of the blocks.
    quick: checks only reduced workloads with small integers.
    seconds: after this time, no case begins, except the first case.

    Raises TaskError if a reference fails, does not depend on its inputs, or is not the gradient of the forward
    reference. Raises UnknownChoice for an unknown engine, and NoGpu if ``engine`` is ``gpu`` and there is no GPU.
    """
    task, name = task_of(task), engine_name(engine)
    board = board_here(name, arch or DEFAULT_ARCH)
    task = task.on(board.arch)
    scope = Scope(task.space.chosen(configurations), task.selected(workloads), case, seed, quick, seconds)
    languages_of(task, scope.workloads[:1], board)
    with equipped(task, name, board, quick) as tools:
        forward = check_on(task, tools, scope, progress)
    if task.backward is None or case is not None:
        return (forward,)
    dims = scope.workloads[0].dims
    tiles = shapes.moduli(task, task.backward.space.shipped, dims)
    dims = shapes.reduced(task, dims, tiles, most=1)
    if (reason := too_large(task, dims, dims)) is None:
        check_gradients(task, dims, seed)
    with equipped(task.backward, name, board, quick) as tools:
        backward = check_on(task.backward, tools, replace(scope, configurations=(), workloads=()), progress)
    if reason is not None:
        unverified = (*backward.unverified, f"the reference against finite differences: {reason}")
        backward = replace(backward, unverified=unverified)
    return forward, backward


def check_on(task: Task, tools: Equipment, scope: Scope = WHOLE_CHECK, progress: Progress = silent) -> Verdict:
    """Checks one task. Raises TaskError if the task's reference fails or does not depend on its inputs."""
    started, scope = time.perf_counter(), scope.completed(task)
    reference = FloatReference(task, tools.trusted)
    examiner = Examiner(
        task, tools.engine, reference, tools.compiles, tools.reaches, tools.own_shapes, progress=progress
    )
    own_shapes = "plain" if tools.engine.name == "gpu" else None if tools.own_shapes is None else "own shape"
    planned = plan(task, scope, own_shapes=own_shapes, addresses=tools.reaches is not None)
    tools.ahead([(step.configuration, step.case) for step in planned if step.case.run not in NOT_BY_THE_ENGINE])
    results, skipped = run_and_judge(examiner, planned, started, scope.seconds, progress)
    if scope.case is None:
        examiner.reference.refuse_degenerate(planned[0].case.sizes, planned[0].case.seed)
    smallest = minimised(examiner, results, scope.case)
    verdict = report(examiner, scope, planned, results, skipped, smallest, time.perf_counter() - started)
    return tools.watching.joined(verdict) if tools.watching is not None else verdict


class Closed(Exception):
    """The check was closed while it ran."""


class InterpreterChecker:
    """Checks candidates and versions of one task with the interpreter.

    Hints do not change the results of Tile IR. So candidates that differ only in hints share a verdict, unless their
    grids differ.
    """

    def __init__(self, task: Task, board: Board, seed: int) -> None:
        self.task, self.board, self.seed = task, board, seed
        self._engine = InterpreterEngine(task, board)
        self._trusted = Trusted(task)
        self._closed = False
        self._known: dict[tuple[str, tuple[int, ...], Configuration], Checked] = {}

    def of(self, workload: Workload, configuration: Configuration) -> Checked:
        """Checks a candidate on reduced shapes and small integers. Candidates with equal Tile IR and grid share one
        check.

        Raises TaskError if the task's reference fails or does not depend on its inputs.
        """
        launch = self.task.launched(configuration, workload.dims, self.task.arrays(workload.dims), self.board)
        hints = self.task.space.hints
        computed = Configuration(tuple(item for item in configuration.items_ if item[0] not in hints))
        key = (workload.name, launch.grid, computed)
        if key not in self._known:
            scope = Scope((configuration,), (workload,), seed=self.seed, quick=True, seconds=CANDIDATE_SECONDS)
            self._known[key] = self._checked(self.task, self._engine, scope)
        return self._known[key]

    def check(
        self, version: Task, workloads: tuple[Workload, ...], *, seconds: float, own_shapes: bool = False
    ) -> Checked:
        """Checks the shipped configuration of a version of the task on reduced shapes and small integers.

        own_shapes: also checks at the workloads' full size, which ``seconds`` does not limit.

        Raises TaskError if the task's reference fails or does not depend on its inputs.
        """
        scope = Scope(workloads=workloads, seed=self.seed, quick=True, seconds=seconds)
        own = OwnShapes(version, self.board) if own_shapes else None
        return self._checked(version, InterpreterEngine(version, self.board), scope, own)

    def wrong_cases(
        self, version: Task, workloads: tuple[Workload, ...], seconds: float, case: Case | None = None
    ) -> dict[Case, str]:
        """Runs all checks of a version of the task, or only ``case``. Returns the cases in which it is incorrect, each
        with the mistake. Raises TaskError as `check` does."""
        scope = Scope(workloads=workloads, case=case, seed=self.seed, seconds=seconds)
        verdict = self._verdict(version, InterpreterEngine(version, self.board), scope)
        wrong = (result for result in verdict.results if result.verdict == "incorrect")
        return {result.case: f"{BY_INTERPRETER}: {result.case.described}: {result.reason}" for result in wrong}

    def close(self) -> None:
        """Ends the process of the trusted implementation. A check in another thread ends before its next case."""
        self._closed = True
        self._trusted.close()

    def _checked(
        self, task: Task, engine: InterpreterEngine, scope: Scope, own_shapes: OwnShapes | None = None
    ) -> Checked:
        verdict = self._verdict(task, engine, scope, own_shapes)
        share = max((result.error.share for result in verdict.results if result.error is not None), default=None)
        cases = tuple(result.case.described for result in verdict.results if result.verdict == "correct")
        return Checked(verdict.verdict, f"{BY_INTERPRETER}: {verdict.reason}", share, cases)

    def _verdict(
        self, task: Task, engine: InterpreterEngine, scope: Scope, own_shapes: OwnShapes | None = None
    ) -> Verdict:
        return check_on(task, Equipment(engine, self._trusted, own_shapes=own_shapes), scope, self._go_on)

    def _go_on(self, stage: str, done: int, total: int | None, note: str = "") -> None:
        if self._closed:
            raise Closed
