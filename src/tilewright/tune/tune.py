"""The main path of `tune`: from a task to the best configuration of each workload, with its evidence.

    task → space → compile → screen → verify → race → decide → ledger

`tune` calls the stages in this order. `schedule.py` compiles some workloads while others are verified and raced.
`field.py` collects the results for the candidates of a workload. Without a GPU of the requested architecture, the
interpreter verifies and nothing is raced. The result is then predicted, not measured.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Literal

from tilewright.compile.compile import BUDGET_SECONDS, Unit, one_language, refuse_broken_tools
from tilewright.compile.screen import RACED
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import machine_of, target_of
from tilewright.progress import Progress, silent
from tilewright.race.rules import Policy
from tilewright.records import Bound, TuningResult, Workload
from tilewright.space.heuristics import with_seeds
from tilewright.strategies import strategy_of
from tilewright.task.loading import task_of
from tilewright.task.task import Task
from tilewright.tune.run import PREDICTED, TuneRequest, TuningRun
from tilewright.tune.schedule import Schedule

if TYPE_CHECKING:
    from tilewright.executors.base import Executor
    from tilewright.ledger.tunings import TuneLedger


def tune(
    task: Task | str,
    *,
    arch: str | None = None,
    workloads: Sequence[str] | str | None = None,
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
    """Finds the best configuration for each workload.

    task: a task, or ``FILE[:TASK]``.
    arch: an architecture such as ``sm_90``; the default is this machine's GPU. Other architectures get predicted times.
    workloads: names, or one name; the default is all workloads of the task.
    policy: how the races measure.
    top: the number of configurations, best predicted first, that are verified and raced.
    strategy: name of the search strategy that chooses these configurations.
    seeds: a source of configurations in addition to the space; one of `heuristics.SEEDS`.
    jobs: the number of compilers at a time; the default depends on the number of cores.
    seconds: processor time for the compiler of one candidate.
    seed: seed of the inputs for verification and timing; the default is random. It is recorded.
    store: the ledger for the result; the default is the ledger in `ledger.file.home`; False stores nothing. An
        interrupted run with the same key continues where it stopped, unless ``fresh`` is True.
    executor: runs verification and race, and is closed at the end; the default is a worker process on this machine.
    Raises RequestError for a wrong argument or task, MachineError if a compiler, the GPU or the ledger cannot be used.
    """
    task = task_of(task)
    target, policy, search = target_of(arch, detect()), policy or Policy(), strategy_of(strategy).search
    selected = task.selected(workloads)
    language = one_language(task, selected, target.board)
    request = TuneRequest(task, target, policy, selected, top, strategy, seed, seeds, language)
    machine, started = machine_of(target), time.perf_counter()
    with ExitStack() as stack:
        if executor is not None:
            stack.enter_context(executor)
        run = TuningRun(stack.enter_context(_ledger(store)), request, machine, fresh)
        space = _space(request, run.open)
        schedule = stack.enter_context(Schedule(task, space, jobs or _jobs(target.measured), seconds, progress))

        from tilewright.tune.field import Field  # late import, as the next: the first compilers run meanwhile
        from tilewright.tune.judge import judge_of

        judge = stack.enter_context(judge_of(request, executor, progress))
        _before_all(request, run.open, schedule)
        for workload in run.open:
            bound = _bound(request, workload)
            judge.prepare(workload.name)
            least = bound.result()
            run.begin()
            for compiled in schedule.compiled(workload, judge, ahead=target.measured):
                field = Field.screened(request, workload, least, compiled.so_far, judge)
                for batch in compiled.batches(search(field.space), field):
                    verified = field.verify(batch, ahead=not compiled.all)
                    if verified and compiled.enough_to_race:
                        raced = judge.race(workload.name, field.contestants, baseline=field.baseline)
                        field.note(raced)
                        schedule.limit(workload, field.compile_limit)
                if compiled.all and field.to_compile:
                    schedule.compile_left_out(workload, field.to_compile)
            refuse_broken_tools(compiled.so_far)
            run.save(field.decided(judge.seed))
    return run.finish({"compile": schedule.seconds} | judge.seconds | {"total": time.perf_counter() - started})


def _ledger(store: TuneLedger | Literal[False] | None) -> AbstractContextManager[TuneLedger | None]:
    if store is not None:
        return nullcontext(store or None)
    from tilewright.ledger.tunings import TuneLedger  # not loaded where nothing is stored

    return TuneLedger()


def _space(request: TuneRequest, workloads: Sequence[Workload]) -> list[Unit]:
    """Returns the compile jobs: one for each workload and configuration, including the configurations of the seeds."""
    space, board, dtype = request.task.space, request.target.board, request.task.compute_dtype
    return [
        Unit(workload, config, board)
        for workload in workloads
        for config in with_seeds(space, request.seeds, workload.dims, dtype=dtype, gpu=board.name, arch=board.sm)
    ]


def _before_all(request: TuneRequest, workloads: Sequence[Workload], schedule: Schedule) -> None:
    task = request.task
    if workloads and not request.target.measured:  # checks the shapes of the reference before any prediction
        from tilewright.verify import tolerance

        cheapest = min(workloads, key=lambda workload: task.work(workload.dims))
        tolerance.try_reference(task, cheapest.dims)
    if request.target.measured and request.policy.launch == "eager":  # compilers would slow down the timed CPU part
        schedule.finish()


def _bound(request: TuneRequest, workload: Workload) -> Future[Bound]:
    """Computes the bound of a workload in another thread, because the worker process starts and prepares meanwhile.

    The thread is a daemon, so that an interrupted command does not wait for it.
    """
    found: Future[Bound] = Future()

    def work() -> None:
        try:
            from tilewright.inspect.work import bound_of  # late import: it loads the interpreter

            found.set_result(bound_of(request.task, workload, request.target.board))
        except BaseException as error:  # raised again in the caller's thread
            found.set_exception(error)

    threading.Thread(target=work, name="bound", daemon=True).start()
    return found


def _jobs(measured: bool) -> int:
    """Returns how many compilers run at a time: one per core.

    If the worker process verifies meanwhile and there are more than 4 cores, one core is left for it.
    """
    cores = os.cpu_count() or 1
    return cores - 1 if measured and cores > 4 else cores
