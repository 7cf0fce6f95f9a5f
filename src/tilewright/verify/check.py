"""`tilewright check`: is a task's kernel right, and that of its gradient?

    plan → compile → run → judge → minimise → report

Each case runs and is judged (`examining`) before the next begins. The limits of time and the tools that work beside
the cases are in `schedule`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tilewright.hardware.architectures import DEFAULT_ARCH
from tilewright.progress import Progress, silent
from tilewright.records import Configuration, Workload
from tilewright.task.loading import task_of
from tilewright.task.task import Task
from tilewright.verify import shapes
from tilewright.verify.addresses import Reaches
from tilewright.verify.cases import Case
from tilewright.verify.engine import Engine
from tilewright.verify.examining import Compiles, Examiner
from tilewright.verify.planning import Planned, plan
from tilewright.verify.reference import FloatReference, Trusting, check_gradients
from tilewright.verify.schedule import board_here, engine_name, equipped, minimised, run_and_judge
from tilewright.verify.verdict import Verdict, report

SECONDS = 120.0
"""For one check. What is not run by then is unverified, by name."""


def check(
    task: Task | str,
    *,
    engine: str | None = None,
    arch: str | None = None,
    configurations: Sequence[Configuration] = (),
    workloads: Sequence[str] = (),
    case: Case | None = None,
    seed: int = 0,
    quick: bool = False,
    seconds: float = SECONDS,
    progress: Progress = silent,
) -> tuple[Verdict, ...]:
    """The verdict on a task, and a second one on its backward where it declares one.

    task: a task, or ``FILE[:TASK]``.
    engine: ``interpreter`` or ``gpu``; by default the GPU where there is one that the compiler knows.
    arch: the architecture that the interpreter stands for.
    configurations, workloads, case, seed, quick, seconds: as of `check_on`.

    Raises TaskError where a reference fails, tells nothing, or is no gradient; UnknownChoice and NoGpu for an engine
    that does not exist or is not here.
    """
    task, name = task_of(task), engine_name(engine)
    board = board_here(name, arch or DEFAULT_ARCH)

    def verdict(part: Task, configurations: Sequence[Configuration], workloads: Sequence[str]) -> Verdict:
        with equipped(part, name, board, quick) as tools:
            judged = check_on(
                part, tools.engine, configurations=configurations, workloads=part.selected(workloads), seed=seed,
                trusted=tools.trusted, compiles=tools.compiling, ahead=tools.ahead, reaches=tools.reaching,
                only=case, quick=quick, seconds=seconds, progress=progress,
            )  # fmt: skip
            return tools.watching.joined(judged)

    forward = verdict(task, configurations, workloads)
    if task.backward is None or case is not None:
        return (forward,)
    dims = task.selected(workloads)[0].dims
    tiles = shapes.moduli(task, task.backward.space.shipped, dims)
    check_gradients(task, shapes.reduced(task, dims, tiles, most=1), seed)
    return (forward, verdict(task.backward, (), ()))


def check_on(
    task: Task,
    engine: Engine,
    *,
    configurations: Sequence[Configuration] = (),
    workloads: Sequence[Workload] = (),
    seed: int = 0,
    trusted: Trusting | None = None,
    compiles: Compiles | None = None,
    ahead: Callable[[Sequence[tuple[Configuration, Case]]], None] | None = None,
    reaches: Reaches | None = None,
    only: Case | None = None,
    quick: bool = False,
    seconds: float = SECONDS,
    progress: Progress = silent,
) -> Verdict:
    """Whether ``task``'s kernel is right on ``engine``.

    configurations, workloads: default to the shipped one and to all of them.
    trusted: gives the outputs in the declared precision; without it the float32 reference does.
    compiles: tells a kernel that does not compile from one that crashes; without it a failure before the
        run is believed to be the compiler's on shapes and layouts that no workload names.
    ahead: gets all planned cases before the first of them runs.
    reaches: follows addresses beyond 2³¹ elements; without it that is not part of the plan.
    only: one case instead of the plan.
    quick: reduced workloads and small integers only.
    seconds: after which no further case is begun.
    Raises TaskError where the task is at fault: its reference fails, or tells nothing.
    """
    started = time.perf_counter()
    configurations, workloads = tuple(configurations) or (task.space.shipped,), workloads or task.selected(None)
    examiner = Examiner(task, engine, FloatReference(task, trusted), compiles, reaches)
    if only is not None:
        planned = [Planned(configuration, only, 0, ("asked for",)) for configuration in configurations]
    else:
        own_shapes, addresses = engine.name == "gpu", reaches is not None
        planned = plan(task, configurations, workloads, seed, own_shapes=own_shapes, addresses=addresses, quick=quick)
    if ahead is not None:
        ahead([(step.configuration, step.case) for step in planned if step.case.run != "addresses"])
    results, skipped = run_and_judge(examiner, planned, started + seconds, seconds, progress)
    if only is None:
        examiner.reference.refuse_degenerate(planned[0].case.sizes, planned[0].case.seed)
    smallest = minimised(examiner, results, only)
    return report(
        examiner, planned, results, skipped, smallest,
        seed=seed, configurations=configurations, seconds=time.perf_counter() - started,
    )  # fmt: skip
