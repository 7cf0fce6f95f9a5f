"""`tilewright check`: is a task's kernel right, and that of its gradient?

    plan → compile → run → judge → minimise → report

Each case runs and is judged (`examining`) before the next begins. The limits of time and the tools that work beside
the cases are in `schedule`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from tilewright.hardware.architectures import DEFAULT_ARCH
from tilewright.progress import Progress, silent
from tilewright.space.space import Choice
from tilewright.task.loading import task_of
from tilewright.task.task import Task
from tilewright.verify import shapes
from tilewright.verify.cases import Case
from tilewright.verify.examining import Examiner
from tilewright.verify.planning import SECONDS, WHOLE_CHECK, Scope, plan
from tilewright.verify.reference import FloatReference, check_gradients
from tilewright.verify.schedule import Equipment, board_here, engine_name, equipped, minimised, run_and_judge
from tilewright.verify.verdict import Verdict, report


def check(
    task: Task | str, *, engine: str | None = None, arch: str | None = None,
    configurations: Choice | Sequence[Choice] = (), workloads: Sequence[str] | str = (), case: Case | None = None,
    seed: int = 0, quick: bool = False, seconds: float = SECONDS, progress: Progress = silent,
) -> tuple[Verdict, ...]:  # fmt: skip
    """Checks a task, and its backward task where it declares one. Returns one verdict for each.

    task: a task, or ``FILE[:TASK]``.
    engine: ``interpreter`` or ``gpu``; by default the GPU if there is one that the compiler knows.
    arch: the architecture for which the interpreter compiles.
    workloads: names, or one name; by default all.
    configurations: one or several, as text or as mappings of knob to value; by default the shipped one.
    case, seed, quick, seconds: as in `planning.Scope`.

    Raises TaskError if a reference fails, does not depend on its inputs, or is not the gradient. Raises UnknownChoice
    for an unknown engine, and NoGpu if the GPU is asked for and there is none.
    """
    task, name = task_of(task), engine_name(engine)
    board = board_here(name, arch or DEFAULT_ARCH)
    scope = Scope(task.space.chosen(configurations), task.selected(workloads), case, seed, quick, seconds)
    with equipped(task, name, board, quick) as tools:
        forward = check_on(task, tools, scope, progress)
    if task.backward is None or case is not None:
        return (forward,)
    dims = scope.workloads[0].dims
    tiles = shapes.moduli(task, task.backward.space.shipped, dims)
    check_gradients(task, shapes.reduced(task, dims, tiles, most=1), seed)
    with equipped(task.backward, name, board, quick) as tools:
        return forward, check_on(task.backward, tools, replace(scope, configurations=(), workloads=()), progress)


def check_on(task: Task, tools: Equipment, scope: Scope = WHOLE_CHECK, progress: Progress = silent) -> Verdict:
    """Checks one task. Raises TaskError if the task's reference fails or does not depend on its inputs."""
    started, scope = time.perf_counter(), scope.completed(task)
    examiner = Examiner(task, tools.engine, FloatReference(task, tools.trusted), tools.compiles, tools.reaches)
    planned = plan(task, scope, own_shapes=tools.engine.name == "gpu", addresses=tools.reaches is not None)
    tools.ahead([(step.configuration, step.case) for step in planned if step.case.run != "addresses"])
    results, skipped = run_and_judge(examiner, planned, started, scope.seconds, progress)
    if scope.case is None:
        examiner.reference.refuse_degenerate(planned[0].case.sizes, planned[0].case.seed)
    smallest = minimised(examiner, results, scope.case)
    verdict = report(examiner, scope, planned, results, skipped, smallest, time.perf_counter() - started)
    return tools.watching.joined(verdict) if tools.watching is not None else verdict
