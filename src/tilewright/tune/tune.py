"""The tuning path, from a task to the best configuration of each workload with its evidence.

    space → compile → screen → verify → race → result

The compiler runs in this thread's pool; a second thread talks to the GPU's worker process, so that
one workload is verified and raced while the next compiles. Without a GPU, or for another
architecture than the GPU's, the path ends after the screen: predicted, not measured.
"""

from __future__ import annotations

import itertools
import os
import platform
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.compile.compile import BUDGET_SECONDS, Compiled, Unit, compile_all
from tilewright.hardware.architectures import DEFAULT_ARCH, Board, default_board
from tilewright.hardware.gpu import Gpu, detect
from tilewright.hardware.monitor import driver_version
from tilewright.hardware.packages import installed_version
from tilewright.ledger.file import key_of
from tilewright.ledger.records import TuneRun
from tilewright.ledger.tunings import TuneLedger
from tilewright.progress import Progress, silent
from tilewright.race.rules import Policy
from tilewright.records import Candidate, Machine, TuningResult, Workload, WorkloadResult
from tilewright.task.loading import where_is
from tilewright.task.task import Task
from tilewright.tune.workload import Arrivals, WorkloadTuner
from tilewright.verify import tolerance as verify
from tilewright.worker.client import Measuring
from tilewright.worker.session import Session

if TYPE_CHECKING:
    from tilewright.verify.quick import QuickChecker

VERSIONED = ("tilewright", "cuda-tile", "nvidia-cuda-tileiras", "torch", "numpy")
"""The packages whose versions belong to a result."""

RACED = 10
"""How many of the best predicted are verified and raced, besides the one shipped today."""


@dataclass(frozen=True)
class Target:
    """What is tuned for: the board, and whether it is the one in this machine."""

    board: Board
    gpu: Gpu | None
    note: str | None = None

    @property
    def measured(self) -> bool:
        return self.gpu is not None


def target_of(arch: str | None, gpu: Gpu | None) -> Target:
    """The board to tune for: that of ``arch``, else this machine's, else the default's, with a note."""
    if gpu is not None and arch in (None, gpu.arch):
        return Target(gpu.board, gpu)
    board = default_board(arch or DEFAULT_ARCH)
    if gpu is not None:
        return Target(board, None, f"this machine's GPU is {gpu.arch}; {arch} is predicted, not measured")
    if arch is None:
        return Target(board, None, f"no GPU here: tuning for {DEFAULT_ARCH} ({board.name}); choose with --arch")
    return Target(board, None)


def tune(
    task: Task,
    *,
    arch: str | None = None,
    workloads: Sequence[str] | None = None,
    policy: Policy | None = None,
    top: int = RACED,
    jobs: int | None = None,
    seconds: float = BUDGET_SECONDS,
    seed: int | None = None,
    store: TuneLedger | None = None,
    fresh: bool = False,
    session: Session | None = None,
    progress: Progress = silent,
) -> TuningResult:
    """The best configuration for each workload.

    workloads: names; all of the task's where none are given.
    top: how many of the best predicted are verified and raced.
    seconds: wall time that one candidate's compiler may take.
    seed: of the inputs that are verified and timed; drawn where none is given, and recorded.
    store: where the result is kept; an interrupted run with the same key goes on where it stopped,
        unless ``fresh``.
    session: a worker process that is starting already (`session.early_session`); tuning ends it.
    """
    target, policy = target_of(arch, detect()), policy or Policy()
    chosen, machine, started = task.selected(workloads), machine_of(target), time.perf_counter()
    with ExitStack() as stack:
        if target.measured:
            session = _opened(stack, session, task)
        elif session is not None:
            session.close(wait=False)
            session = None
        run, finished = _begin(store, task, target, policy, chosen, machine, top, seed, fresh)
        seed = seed if seed is not None else secrets.randbits(31)
        work = _Work(
            task=task,
            target=target,
            workloads=[workload for workload in chosen if workload.name not in finished],
            measuring=Measuring(task, session, policy, seed, progress),
            top=top,
            verdicts=None if target.measured else stack.enter_context(_verdicts(task, target, seed)),
            gpu=stack.enter_context(_OneThread()),
        )
        stack.callback(work.stop)  # before the thread is waited for

        def keep(result: WorkloadResult) -> None:
            finished[result.workload.name] = result
            if store is not None:
                store.save(run, result)

        seconds_of = {"compile": work.compile(jobs or _jobs(target), seconds, progress, keep)}
        work.finish(keep)
    seconds_of |= work.measuring.seconds | {"total": time.perf_counter() - started}
    if store is not None:
        store.finish(run, seconds_of)
    results = tuple(finished[workload.name] for workload in chosen)
    return TuningResult(task.name, machine, target.measured, results, run, seconds_of)


Keep = Callable[[WorkloadResult], None]


class _Work:
    """The compilers of this thread and the GPU's thread, which takes the workloads one by one."""

    def __init__(
        self,
        task: Task,
        target: Target,
        workloads: list[Workload],
        measuring: Measuring,
        top: int,
        verdicts: QuickChecker | None,
        gpu: _OneThread,
    ) -> None:
        self.task, self.workloads, self.measuring = task, workloads, measuring
        self.units = [
            Unit(workload, config, target.board)
            for workload in workloads
            for config in task.space.configurations(target.board.sm, workload.dims)
        ]
        self.arrivals = {w.name: Arrivals(sum(unit.workload == w for unit in self.units)) for w in workloads}
        # Eager launches are timed with the host's part, so the compilers must be done by then.
        self.compiled = threading.Event()
        if measuring.policy.launch == "graph":
            self.compiled.set()
        self.first = gpu.submit(self._before_all)
        self.jobs: dict[str, Future[WorkloadResult]] = {
            w.name: gpu.submit(
                WorkloadTuner(task, w, target.board, measuring, top, verdicts).result, self.arrivals[w.name]
            )
            for w in workloads
        }

    def compile(self, jobs: int, seconds: float, progress: Progress, keep: Keep) -> float:
        """Compiles everything, handing on each candidate as it is done; the wall seconds it took."""
        started, counter = time.perf_counter(), itertools.count(1)

        def on_done(one: Compiled) -> None:
            self._collect(keep)
            self.arrivals[one.unit.workload.name].add(one)
            progress("compile", next(counter), len(self.units), f"{one.unit.workload.name} {one.unit.configuration}")

        compile_all(self.task, self.units, jobs=jobs, seconds=seconds, on_done=on_done)
        self.compiled.set()
        return time.perf_counter() - started

    def finish(self, keep: Keep) -> None:
        """Waits for the workloads that are still open."""
        self.first.result()
        for name in list(self.jobs):
            keep(self.jobs.pop(name).result())

    def stop(self) -> None:
        """Nobody waits any more."""
        self.compiled.set()
        for one in self.arrivals.values():
            one.stop()

    def _before_all(self) -> None:
        if self.measuring.session is None:
            _try_reference(self.task, self.workloads)
        self.compiled.wait()

    def _collect(self, keep: Keep) -> None:
        """Keeps what is done now, lest Ctrl-C lose it. A reference of the wrong shape ends the run now
        too, not after the last compiler."""
        if self.first.done():
            self.first.result()
        for name in [name for name, job in self.jobs.items() if job.done()]:
            keep(self.jobs.pop(name).result())


class _OneThread(ThreadPoolExecutor):
    """The thread that talks to the GPU. Leaving early drops what has not begun."""

    def __init__(self) -> None:
        super().__init__(1, "gpu")

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.shutdown(wait=kind is None, cancel_futures=True)


def _opened(stack: ExitStack, session: Session | None, task: Task) -> Session:
    session = session or Session()
    stack.enter_context(session)
    session.open(where_is(task))
    return session


def _verdicts(task: Task, target: Target, seed: int) -> closing[QuickChecker]:
    from tilewright.verify.quick import QuickChecker  # not loaded where a GPU verifies

    return closing(QuickChecker(task, target.board, seed))


def _jobs(target: Target) -> int:
    """Compilers at a time: all cores, less two where the worker process starts up beside them."""
    cores = os.cpu_count() or 1
    return cores - 2 if target.measured and cores > 4 else cores


def _try_reference(task: Task, workloads: Sequence[Workload]) -> None:
    """The reference once, on the cheapest workload: a wrong shape is said before anything is predicted."""
    if workloads:
        cheapest = min(workloads, key=lambda workload: task.work(workload.dims))
        verify.try_reference(task, cheapest.dims)


def _begin(
    store: TuneLedger | None, task: Task, target: Target, policy: Policy, chosen: Sequence[Workload],
    machine: Machine, top: int, seed: int | None, fresh: bool,
) -> tuple[str, dict[str, WorkloadResult]]:  # fmt: skip
    """The run's name, and what an interrupted run of the same key already has."""
    if store is None:
        return "", {}
    key = key_of(
        {
            "task": task.file.read_text() if task.file else task.name,
            "name": task.name,
            "board": target.board.name,
            "policy": policy.to_json(),
            "workloads": [workload.name for workload in chosen],
            "top": top,
            "seed": seed,
            "versions": dict(machine.versions),
        }
    )
    interrupted = None if fresh else store.resume(key)
    if interrupted is not None:
        return interrupted[0].run, interrupted[1]
    board, where = target.board, where_is(task)
    begun = store.begin(
        TuneRun(
            key=key,
            task=task.name,
            machine=machine,
            measured=target.measured,
            where=where,
            board=board.name,
            bandwidth_gbs=board.bandwidth_gbs,
            dtype=task.compute_dtype,
            policy=policy.to_json(),
            top=top,
            seed=seed,
            reproduce=shlex.join(["tilewright", "tune", where, "--arch", board.arch, "--fresh"]),
        )
    )
    return begun.run, {}


def machine_of(target: Target) -> Machine:
    return Machine(
        arch=target.board.arch,
        gpu=target.gpu.name if target.gpu else None,
        driver=driver_version() if target.gpu else None,
        host=f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        versions={name: installed_version(name) or "not installed" for name in VERSIONED},
    )


def to_json(result: TuningResult) -> dict[str, Any]:
    """What `tune --json` prints; scripts rely on these names."""
    return {
        "task": result.task,
        "run": result.run,
        "machine": {**vars(result.machine), "versions": dict(result.machine.versions)},
        "measured": result.measured,
        "note": None if result.measured else "predicted, not measured",
        "seconds": dict(result.seconds),
        "workloads": [_workload_json(one) for one in result.workloads],
    }


def _workload_json(result: WorkloadResult) -> dict[str, Any]:
    sol = result.bound.speed_of_light_us
    return {
        "workload": result.workload.name,
        "dims": dict(result.workload.dims),
        "bound": {**vars(result.bound)},
        "best": _candidate_json(result.best, sol) if result.best else None,
        "reason": result.reason,
        "tied": [dict(config) for config in result.tied],
        "shipped": dict(result.shipped),
        "candidates": [_candidate_json(one, sol) for one in result.candidates],
        "race": dict(result.race) if result.race else None,
    }


def _candidate_json(one: Candidate, speed_of_light_us: float) -> dict[str, Any]:
    measured, code = one.measured, one.code
    return {
        "config": dict(one.configuration),
        "status": one.status,
        "reason": one.reason,
        "predicted_us": one.predicted.us if one.predicted else None,
        "measured_us": measured.us if measured else None,
        "interval_us": list(measured.interval_us) if measured else None,
        "speed_of_light": speed_of_light_us / measured.us if measured else None,
        "verdict": one.checked.verdict if one.checked else "unverified",
        "verdict_reason": one.checked.reason if one.checked else None,
        "registers": code.registers if code else None,
        "local_stores": code.local_stores if code else None,
        "shared_bytes": code.shared_bytes if code else None,
        "tensor_path": code.tensor_path if code else None,
        "code_hash": code.code_hash if code else None,
        "compile_seconds": one.compile_seconds,
    }
