"""The main path of `tune`: from a task to the best configuration of each workload, with its evidence.

    task → space → search → compile → screen → verify → race → decide → ledger

`tune` calls the stages in this order. `searching.py` asks the strategy what to compile. `schedule.py` compiles some
workloads while others are verified and raced. `field.py` collects the results for the candidates of a workload. Without
a GPU of the requested architecture, the interpreter verifies and nothing is raced. The result is then predicted, not
measured.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Literal

from tilewright.compile.compile import BUDGET_SECONDS, languages_of, refuse_broken_tools
from tilewright.compile.screen import RACED
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import machine_of, target_at, target_of
from tilewright.progress import Progress, silent
from tilewright.race.rules import Policy
from tilewright.records import Bound, TuningResult, Workload, WorkloadResult
from tilewright.task.loading import task_of, where_is
from tilewright.task.task import Task
from tilewright.tune.run import TuneRequest, TuningRun
from tilewright.tune.schedule import Schedule
from tilewright.tune.searching import Limits, TimeLimit

if TYPE_CHECKING:
    from tilewright.executors.base import Executor
    from tilewright.ledger.tunings import TuneLedger
    from tilewright.tune.judge import Judge


def tune(
    task: Task | str,
    *,
    arch: str | None = None,
    workloads: Sequence[str] | str | None = None,
    policy: Policy | None = None,
    top: int = RACED,
    strategy: str | None = None,
    seconds: float | None = None,
    candidates: int | None = None,
    seeds: str | None = None,
    jobs: int | None = None,
    budget: float = BUDGET_SECONDS,
    seed: int | None = None,
    store: TuneLedger | Literal[False] | None = None,
    fresh: bool = False,
    executor: Executor | Sequence[Executor] | None = None,
    progress: Progress = silent,
) -> TuningResult:
    """Finds the best configuration for each workload.

    task: a task, or ``FILE[:TASK]``.
    arch: an architecture such as ``sm_90``; the default is this machine's GPU. Other architectures get predicted times.
    workloads: names, or one name; the default is all workloads of the task.
    policy: how the races measure.
    top: the number of configurations, best predicted first, that are verified and raced.
    strategy: name of the search strategy, which chooses what is compiled. By default, spaces of up to
        `strategies.LISTED` configurations are compiled as a whole, and larger ones by `strategies.FOR_LARGE`.
    seconds: time limit of the whole run. What was compiled until then is verified and raced. The default is no limit.
    candidates: the most configurations to compile for each workload; the default depends on the strategy.
    seeds: sources of configurations in addition to the space: names in `heuristics.SEEDS`, separated by commas.
    jobs: the number of compilers at a time; the default depends on the number of cores.
    budget: processor time for the compiler of one candidate, in seconds.
    seed: seed of the inputs for verification and timing; the default is random. It is recorded.
    store: the ledger for the result; the default is the ledger in `ledger.file.home`; False stores nothing. An
        interrupted run with the same key continues where it stopped, unless ``fresh`` is True.
    executor: runs verification and race, and is closed at the end; the default is a worker process for each free GPU of
        the same model on this machine. Several executors share the workloads; each workload stays on one of them.
    Raises RequestError for a wrong argument or task, MachineError if a compiler, the GPU or the ledger cannot be used.
    """
    task = task_of(task)
    executors = executor if isinstance(executor, Sequence) else () if executor is None else (executor,)
    with ExitStack() as stack:
        for each in executors:
            stack.enter_context(each)
        place = executors[0].place(where_is(task)) if executors else None
        target, policy = target_at(arch, place) if place else target_of(arch, detect()), policy or Policy()
        limits, limit = Limits(seconds, candidates), TimeLimit(seconds)
        task = task.on(target.board.arch)
        selected = task.selected(workloads)
        languages = languages_of(task, selected, target.board)
        on = executors[0].on if executors else ""
        request = TuneRequest(task, target, policy, selected, top, strategy or "", seed, seeds, languages, limits, on)
        machine, started = machine_of(target, place), time.perf_counter()
        run = TuningRun(stack.enter_context(_ledger(store)), request, machine, fresh)
        jobs = jobs or _jobs(target.measured)
        searches = request.searches(run.open, jobs)
        schedule = stack.enter_context(Schedule(task, target.board, searches, jobs, budget, limit, progress))

        from tilewright.tune.judge import judges_of  # late import, as the next: the first compilers run meanwhile
        from tilewright.tune.sharing import seconds_of, share

        judges = stack.enter_context(judges_of(request, executors, limit, progress, run.note))
        _before_all(request, run.open, schedule)
        for result in share(run.open, judges, partial(_tuned, request, schedule), run.begin, run.note):
            run.save(result)
    return run.finish({"compile": schedule.seconds} | seconds_of(judges) | {"total": time.perf_counter() - started})


def _tuned(
    request: TuneRequest, schedule: Schedule, judge: Judge, begin: Callable[[], None], workload: Workload
) -> WorkloadResult:
    """Tunes one workload with one judge. ``begin``: called when the workload is prepared."""
    from tilewright.tune.field import Field

    measured, bound = request.target.measured, _bound(request, workload)
    schedule.searches[workload.name].forget()  # if a judge that failed had begun it
    judge.prepare(workload.name)
    least = bound.result()
    begin()
    for compiled in schedule.compiled(workload, judge, ahead=measured):
        field = Field.screened(request, workload, least, compiled.so_far, judge, compiled.earlier)
        if compiled.all and not measured and schedule.search_on(workload, field):
            continue  # predicted times are known without verification, so only the last batch is verified
        for batch in compiled.batches(field.chosen(), field):
            verified = field.verify(batch, ahead=not compiled.all)
            if verified and compiled.enough_to_race:
                raced = judge.race(workload.name, field.contestants, baseline=field.baseline)
                field.note(raced)
                schedule.limit(workload, field.compile_limit)
        left_out = field.to_compile if compiled.all else ()
        if compiled.all and not (left_out and schedule.compile_left_out(workload, left_out)):
            schedule.search_on(workload, field)
    refuse_broken_tools(compiled.so_far)
    return field.decided(judge.seed, schedule.searches[workload.name])


def _ledger(store: TuneLedger | Literal[False] | None) -> AbstractContextManager[TuneLedger | None]:
    if store is not None:
        return nullcontext(store or None)
    from tilewright.ledger.tunings import TuneLedger  # not loaded where nothing is stored

    return TuneLedger()


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
