"""The tuning path, from a task to the best configuration of each workload with its evidence.

    task → space → compile → screen → verify → race → decide → ledger

`tune` names the stages in this order. `schedule.py` says which workload is verified and raced while which compiles,
`field.py` what the stages find out about a workload's candidates. Without a GPU, or for another architecture than the
GPU's, the interpreter verifies and nothing is raced: predicted, not measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Literal

from tilewright.compile.compile import BUDGET_SECONDS, Unit
from tilewright.executors.base import Executor
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import Target, machine_of, target_of
from tilewright.ledger.tunings import TuneLedger
from tilewright.progress import Progress, silent
from tilewright.race.rules import Policy
from tilewright.records import Bound, TuningResult, Workload
from tilewright.space.heuristics import with_seeds
from tilewright.strategies import strategy_of
from tilewright.task.loading import task_of
from tilewright.task.task import Task
from tilewright.tune.field import Field
from tilewright.tune.judge import judge_of
from tilewright.tune.run import PREDICTED, TuningRun
from tilewright.tune.schedule import Schedule
from tilewright.verify import tolerance as verify

RACED = 10
"""How many of the best predicted are verified and raced, besides the one shipped today."""


def tune(
    task: Task | str,
    *,
    arch: str | None = None,
    workloads: Sequence[str] | None = None,
    policy: Policy | None = None,
    top: int = RACED,
    strategy: str = PREDICTED,
    seeds: str | None = None,
    jobs: int | None = None,
    seconds: float = BUDGET_SECONDS,
    seed: int | None = None,
    store: TuneLedger | Literal[False] | None = None,
    fresh: bool = False,
    executor: Executor | None = None,
    progress: Progress = silent,
) -> TuningResult:
    """The best configuration for each workload.

    task: a task, or ``FILE[:TASK]``.
    workloads: names; all of the task's where none are given.
    top: how many of the best predicted are verified and raced.
    strategy: the name of the search strategy that chooses them.
    seeds: where more configurations come from than the space lists; one of `heuristics.SEEDS`.
    seconds: wall time that one candidate's compiler may take.
    seed: of the inputs that are verified and timed; drawn where none is given, and recorded.
    store: the ledger that keeps the result; the default one is in `ledger.file.home`; False keeps nothing. An
        interrupted run with the same key goes on where it stopped, unless ``fresh``.
    executor: where candidates are verified and raced; tuning ends it. By default a worker process on this machine.
    """
    task = task_of(task)
    target, policy, search = target_of(arch, detect()), policy or Policy(), strategy_of(strategy).search
    chosen, machine, started = task.selected(workloads), machine_of(target), time.perf_counter()
    with ExitStack() as stack:
        judge = stack.enter_context(judge_of(task, target, executor, policy, seed, progress))
        ledger = stack.enter_context(TuneLedger()) if store is None else store or None
        run = TuningRun(ledger, task, target, policy, chosen, machine, top, strategy, seed, seeds, fresh)
        space = _space(task, run.open, target, seeds)
        schedule = stack.enter_context(Schedule(task, space, jobs or _jobs(target), seconds, progress))
        _before_all(task, run.open, target, policy, schedule)
        for workload in run.open:
            judge.prepare(workload.name)
            bound = _bound(task, workload, target)
            run.begin()
            for compiled in schedule.compiled(workload, judge, ahead=target.measured):
                field = Field.screened(task, workload, target, bound, compiled.so_far, top)
                for batch in compiled.batches(search(field.space), field):
                    verified = field.verify(batch, judge, ahead=not compiled.all)
                    if verified and compiled.enough_to_race:
                        raced = judge.race(workload.name, field.contestants, baseline=field.baseline)
                        field.note(raced)
            run.save(field.decided(judge.seed))
    return run.finish({"compile": schedule.seconds} | judge.seconds | {"total": time.perf_counter() - started})


def _space(task: Task, workloads: Sequence[Workload], target: Target, seeds: str | None) -> list[Unit]:
    """What is compiled: every configuration of every workload, and the seeds."""
    board, dtype = target.board, task.compute_dtype
    return [
        Unit(workload, config, board)
        for workload in workloads
        for config in with_seeds(task.space, seeds, workload.dims, dtype=dtype, gpu=board.name, arch=board.sm)
    ]


def _before_all(
    task: Task, workloads: Sequence[Workload], target: Target, policy: Policy, schedule: Schedule
) -> None:  # fmt: skip
    """Without a GPU the reference once, on the cheapest workload: a wrong shape is said before anything is predicted.
    Eager launches are timed with the host's part, so the compilers must be done by then."""
    if workloads and not target.measured:
        cheapest = min(workloads, key=lambda workload: task.work(workload.dims))
        verify.try_reference(task, cheapest.dims)
    if target.measured and policy.launch == "eager":
        schedule.finish()


def _bound(task: Task, workload: Workload, target: Target) -> Bound:
    from tilewright.inspect.work import bound_of  # the interpreter loads while the first compilers run

    return bound_of(task, workload, target.board)


def _jobs(target: Target) -> int:
    """Compilers at a time: all cores, less two where the worker process starts up beside them."""
    cores = os.cpu_count() or 1
    return cores - 2 if target.measured and cores > 4 else cores
