"""The main path of `tune`: from a task to the best configuration of each workload, with its evidence.

    task → space → search → compile → screen → verify → race → decide → ledger

`tune_kinds` calls the stages in this order, once for each kind of GPU. `workload_search.py` asks the strategy what to
compile. `schedule.py` compiles some workloads while others are verified and raced. `field.py` collects the results for
the candidates of a workload. Without a GPU of the requested architecture, the interpreter verifies and nothing is
raced. The result is then predicted, not measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from tilewright.compile.compile import BUDGET_SECONDS, languages_of, refuse_broken_tools
from tilewright.compile.screen import RACED
from tilewright.errors import MachineError, NoGpu, RequestError
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import machine_of, target_at, target_of
from tilewright.progress import Progress, named, silent
from tilewright.race.rules import Policy
from tilewright.records import Bound, TuningResult, Workload, WorkloadResult
from tilewright.task.loading import task_of, where_is
from tilewright.task.task import Task
from tilewright.tools.background import in_thread
from tilewright.tune.run import GpuKind, TuneOptions, TuneRequest, TuningRun
from tilewright.tune.schedule import Schedule
from tilewright.tune.workload_search import Limits, TimeLimit

if TYPE_CHECKING:
    from tilewright.executors.base import Executor
    from tilewright.ledger.tunings import TuneLedger
    from tilewright.tune.judge import Judge
    from tilewright.tune.sharing import Share


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
        `strategies.LISTED` configurations are compiled as a whole, and larger ones by `strategies.FOR_LARGE`,
        without configurations that are expected to be slow (`compile.skipped`).
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
    options = TuneOptions(
        workloads, policy or Policy(), top, strategy, Limits(seconds, candidates), seeds, jobs, budget, seed, fresh
    )
    task = task_of(task)
    given = executor if isinstance(executor, Sequence) else (executor,)
    with closed_at_end(given):
        kinds = gpu_kinds(task, (arch,), given or (None,))
        if len(kinds) > 1:
            models = ", ".join(kind.name for kind in kinds)
            raise RequestError(f"the executors have GPUs of different models ({models}); fix: tilewright.tune_each")
        (result,) = tune_kinds(task, kinds, options, store, progress)
    if isinstance(result, MachineError):
        raise result
    return result


def tune_each(
    task: Task | str,
    *,
    archs: Sequence[str] = (),
    executors: Sequence[Executor | None] = (),
    store: TuneLedger | Literal[False] | None = None,
    progress: Progress = silent,
    **options: Any,
) -> tuple[TuningResult | MachineError, ...]:
    """Finds the best configurations for several kinds of GPU at once. Returns the result for each kind.

    archs: the architectures; those that are not this machine's get predicted times.
    executors: where to measure; None: on this machine. Executors whose GPUs are of one model share its workloads. All
        are closed at the end.
    options: the other arguments of `tune`.
    The result for a kind of GPU is an error if all its GPUs failed, after others had begun.
    """
    task, limits = task_of(task), Limits(options.pop("seconds", None), options.pop("candidates", None))
    with closed_at_end(executors):
        kinds = gpu_kinds(task, tuple(archs) or (None,), tuple(executors) or (None,))
        return tune_kinds(task, kinds, TuneOptions(limits=limits, **options), store, progress)


@contextmanager
def closed_at_end(executors: Sequence[Executor | None]) -> Iterator[None]:
    """Closes the executors after the block, also those that `gpu_kinds` has connected before it refuses another one."""
    with ExitStack() as stack:
        for executor in filter(None, executors):
            stack.enter_context(executor)
        yield


def gpu_kinds(task: Task, archs: Sequence[str | None], executors: Sequence[Executor | None]) -> tuple[GpuKind, ...]:
    """Returns the kinds of GPU that a task is tuned for. ``archs`` and ``executors``: as for `tune_each`.

    Raises RequestError if they do not fit together, and NoGpu if nothing can be measured on one of several executors.
    """
    if tuple(executors) == (None,):
        return tuple(GpuKind(target_of(arch, detect()), None, (None,)) for arch in archs)
    if len(archs) > 1:
        raise RequestError(
            "--on tunes for the GPUs that are there, and not for several architectures; fix: leave out --arch"
        )
    if list(executors).count(None) > 1:  # two worker processes on one GPU would disturb each other's races
        raise RequestError("this machine is named twice, but all its free GPUs take part at once; fix: name it once")
    (arch,) = archs
    found: dict[str, GpuKind] = {}
    for each in executors:
        place = each.place(where_is(task)) if each else None
        target = target_at(arch, place) if place else target_of(arch, detect())
        if not target.measured and len(executors) > 1:
            raise NoGpu("this machine has no GPU to measure on; fix: --on only where GPUs are")
        kind = GpuKind(target, place, (each,))
        before = found.setdefault(kind.name, kind)
        if before is not kind:
            found[kind.name] = replace(before, executors=(*before.executors, each))
    return tuple(found.values())


def tune_kinds(
    task: Task,
    kinds: Sequence[GpuKind],
    options: TuneOptions,
    store: TuneLedger | Literal[False] | None,
    progress: Progress,
) -> tuple[TuningResult | MachineError, ...]:
    """Does the work of `tune` and `tune_each`, inside of `closed_at_end`."""
    with ExitStack() as stack:
        runs = [_Run(task, kind, options, len(kinds), progress) for kind in kinds]
        ledger = stack.enter_context(_ledger(store))
        shares = [run.started(stack, ledger) for run in runs]

        from tilewright.tune.sharing import share, share_each

        if len(shares) == 1:
            for result in share(shares[0]):
                runs[0].save(result)
        else:
            for number, each in share_each(shares):
                runs[number].save(each)
    return tuple(run.finished() for run in runs)


class _Run:
    """The run for one kind of GPU, of ``several``."""

    def __init__(self, task: Task, kind: GpuKind, options: TuneOptions, several: int, progress: Progress) -> None:
        self.kind, self.options, self.several = kind, options, several
        self.progress = progress if several == 1 else named(progress, kind.name)
        self.limit, self._begun = TimeLimit(options.limits.seconds), time.perf_counter()
        task = task.on(kind.target.board.arch)
        selected = task.selected(options.workloads)
        languages = languages_of(task, selected, kind.target.board)
        self.request = TuneRequest(
            task, kind.target, options.policy, selected, options.top, options.strategy, options.seed,
            options.seeds, languages, options.limits, kind.on,
        )  # fmt: skip
        self.failed: MachineError | None = None

    def started(self, stack: ExitStack, ledger: TuneLedger | None) -> Share:
        """Starts compilers and judges, which end with ``stack``. Returns what there is to do."""
        request, options, board = self.request, self.options, self.kind.target.board
        self.record = run = TuningRun(ledger, request, machine_of(self.kind.target, self.kind.place), options.fresh)
        jobs = max(1, (options.jobs or _jobs(request.target.measured)) // self.several)
        searches = request.searches(run.open, jobs)
        self.schedule = stack.enter_context(
            Schedule(request.task, board, searches, jobs, options.budget, self.limit, self.progress, run.kept)
        )

        from tilewright.tune.judge import judges_of  # late import, as the next: the first compilers run meanwhile
        from tilewright.tune.sharing import Share

        executors = [*self.kind.executors, *map(stack.enter_context, self.kind.others(len(run.open)))]
        self.judges = stack.enter_context(judges_of(request, executors, self.limit, self.progress, self._note))
        _before_all(request, run.open, self.schedule)
        return Share(run.open, self.judges, partial(_tuned, request, self.schedule), run.begin, self._note)

    def _note(self, remark: str) -> None:
        self.record.note(remark if self.several == 1 else f"{self.kind.name}: {remark}")

    def save(self, result: WorkloadResult | MachineError) -> None:
        if isinstance(result, MachineError):
            self.failed = result
        else:
            self.record.save(result)

    def finished(self) -> TuningResult | MachineError:
        from tilewright.tune.sharing import seconds_of

        if self.failed is not None:
            return self.failed
        total = time.perf_counter() - self._begun
        return self.record.finish({"compile": self.schedule.seconds} | seconds_of(self.judges) | {"total": total})


def _tuned(
    request: TuneRequest, schedule: Schedule, judge: Judge, begin: Callable[[], None], workload: Workload
) -> WorkloadResult:
    """Tunes one workload with one judge. ``begin``: called when the workload is prepared."""
    from tilewright.tune.field import Field

    measured, bound = request.target.measured, _bound(request, workload, schedule)
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
        left_out = field.to_compile(schedule.searches[workload.name].expected_us) if compiled.all else ()
        if compiled.all and not (left_out and schedule.compile_left_out(workload, left_out)):
            schedule.search_on(workload, field)
    refuse_broken_tools(compiled.so_far)
    return field.decided(judge.seed, schedule.searches[workload.name])


def refuse_without_code(result: TuningResult) -> None:
    """Raises RequestError if no candidate compiled: the kernel is wrong, not a candidate."""
    rows = [candidate for each in result.workloads for candidate in each.candidates]
    if rows and not any(candidate.code for candidate in rows):
        raise RequestError(f"{rows[0].reason} (task '{result.task}': the kernel compiles for no configuration)")


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


def _bound(request: TuneRequest, workload: Workload, schedule: Schedule) -> Future[Bound]:
    """Computes the bound of a workload in another thread, because the worker process starts and prepares meanwhile."""

    def work() -> Bound:
        schedule.wait_until_busy()
        from tilewright.inspect.work import bound_of  # late import: it loads the interpreter

        return bound_of(request.task, workload, request.target.board)

    return in_thread(work, "bound")


def _jobs(measured: bool) -> int:
    """Returns how many compilers run at a time: one per core.

    If the worker process verifies meanwhile and there are more than 4 cores, one core is left for it.
    """
    cores = os.cpu_count() or 1
    return cores - 1 if measured and cores > 4 else cores
