"""Compiles candidates: the front end in the caller's thread, the compilers as parallel child processes.

The front end holds Python's lock for 10 to 50 ms a candidate, so threads would not make it faster. It feeds a pool of
threads, each of which waits for one `tileiras`. Equal bytecode is compiled once. An error in a candidate fails that
candidate only. No GPU, driver or torch is needed.
"""

from __future__ import annotations

import math
import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

from tilewright.errors import TaskError, TilewrightError, ToolFailed, in_task
from tilewright.hardware.architectures import Board
from tilewright.languages import language_of
from tilewright.languages.base import Language, Lowered
from tilewright.machine_code.cubin import MachineCodeError, read_all
from tilewright.records import Built, Configuration, Failed, MachineCode, Workload
from tilewright.task.task import Launch, Task
from tilewright.tools.child import ToolPool

BUDGET_SECONDS = 10.0
"""Processor time that one candidate's compiler may take; typical kernels need 0.2 to 4 s."""


class Stopped(Exception):
    """The caller asked to stop compiling."""


@dataclass(frozen=True)
class Unit:
    """One compile job: a configuration on a workload, for the architecture of a board."""

    workload: Workload
    configuration: Configuration
    board: Board


@dataclass(frozen=True)
class Compiled:
    """The outcome of a unit: its cubin and machine code, or the stage that failed."""

    unit: Unit
    built: Built | Failed
    code: MachineCode | Failed


def launch_of(task: Task, unit: Unit) -> tuple[Launch, dict[str, int | None]]:
    """The launch on array specifications, and the compiler hints."""
    dims = unit.workload.dims
    launch = task.launched(unit.configuration, dims, task.arrays(dims), unit.board)
    return launch, hints_of(task, unit.configuration)


def hints_of(task: Task, config: Configuration) -> dict[str, int | None]:
    """The compiler hints of a configuration. None overrides a value in the kernel's decorator: the compiler chooses."""
    hints = {name: config[name] for name in task.space.hints}
    return {name: value for name, value in hints.items() if value is not None or name != "opt_level"}  # type: ignore[misc]


def compile_all(
    tasks: Task | Sequence[Task],
    units: Sequence[Unit],
    *,
    jobs: int | None = None,
    seconds: float = BUDGET_SECONDS,
    on_done: Callable[[Compiled], None] = lambda compiled: None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Compiled]:
    """Compiles every unit; the results are in the order of the units.

    tasks: the task of all units, or one task for each unit.
    jobs: compilers at a time (default: the cores of this machine).
    seconds: processor time for one compiler run.
    on_done: called in this thread as units finish, for progress.
    stopped: called between units. Once it returns True, the compilers are ended and Stopped is raised.
    """
    launchers = [tasks] * len(units) if isinstance(tasks, Task) else tasks
    done: dict[int, Compiled] = {}
    with CompilerPool(jobs or os.cpu_count() or 1, seconds, read_all) as pool:
        futures: dict[Future[Outcome[MachineCode]], list[int]] = {}

        def finish(index: int, built: Built | Failed, code: MachineCode | Failed) -> None:
            if isinstance(built, Built):  # units that share bytecode share the cubin, not the configuration
                built = replace(built, configuration=units[index].configuration)
            done[index] = Compiled(units[index], built, code)
            on_done(done[index])

        for index in _largest_first(units):
            if stopped():
                raise Stopped
            lowered = lower(launchers[index], units[index])
            if isinstance(lowered, Failed):
                finish(index, lowered, lowered)
            else:
                futures.setdefault(pool.submit(*lowered), []).append(index)
        for future in as_completed(futures):
            if stopped():
                raise Stopped
            for index in futures[future]:
                finish(index, *future.result())
    return [done[index] for index in range(len(units))]


def refuse_broken(task: Task, units: Sequence[Unit]) -> None:
    """Raises TaskError if the launch function or the front end fails for every unit: the task itself is wrong."""
    failures = []
    for unit in units:
        lowered = lower(task, unit)
        if not isinstance(lowered, Failed):
            return
        failures.append(lowered)
    if failures:
        what = "launch function fails for every" if failures[0].stage == "launch" else "kernel compiles for no"
        raise TaskError(f"{failures[0].reason} (task '{task.name}': the {what} configuration)")


def refuse_broken_tools(compiled: Sequence[Compiled]) -> None:
    """Raises ToolFailed where nothing was compiled because a tool failed, which is no verdict on the candidates."""
    failures = [each.code for each in compiled if isinstance(each.code, Failed)]
    broken = [failed for failed in failures if failed.stage in ("tool", "machine code")]
    if broken and len(failures) == len(compiled):
        raise ToolFailed(broken[0].reason)


def remember(task: Task, compiled: Sequence[Compiled]) -> int:
    """Stores cubins of one task where its launches find them, so that a worker compiles nothing; returns how many."""
    built = [each.built for each in compiled if isinstance(each.built, Built)]
    if not built:
        return 0
    return language_of(launch_of(task, compiled[0].unit)[0].kernel).remember(built)


Code = TypeVar("Code")
Outcome: TypeAlias = tuple[Built | Failed, Code | Failed]
"""The cubin, and the answer of `CompilerPool.read` about it."""


class CompilerPool(Generic[Code]):
    """Threads that each wait for one compiler, and a few threads that read the cubins.

    Starting nvdisasm costs 0.35 s or more of processor time, however many cubins it reads. So a reader takes all
    waiting cubins in one run. Equal bytecode is compiled once.

    read: for each cubin the facts that the caller needs, or a `MachineCodeError`.
    """

    def __init__(
        self, jobs: int, seconds: float, read: Callable[[Sequence[bytes]], Sequence[Code | MachineCodeError]]
    ) -> None:
        self.seconds, self.read = seconds, read
        self.compilers, self.readers = ToolPool(jobs, "tileiras"), ToolPool(max(1, jobs // 4), "nvdisasm")
        self.unread: queue.SimpleQueue[tuple[Built, Future[Outcome[Code]]]] = queue.SimpleQueue()
        self.seen: dict[tuple[str, int, bytes], Future[Outcome[Code]]] = {}

    def __enter__(self) -> CompilerPool[Code]:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.compilers.__exit__(*raised)
        self.readers.__exit__(*raised)

    def submit(self, language: Language, lowered: Lowered) -> Future[Outcome[Code]]:
        if lowered.identity not in self.seen:
            outcome: Future[Outcome[Code]] = Future()
            self.seen[lowered.identity] = outcome
            self.compilers.submit(self._compile, language, lowered, outcome)
        return self.seen[lowered.identity]

    def _compile(self, language: Language, lowered: Lowered, outcome: Future[Outcome[Code]]) -> None:
        try:
            built = language.assemble(lowered, self.seconds)
            if isinstance(built, Failed):
                outcome.set_result((built, built))
            else:
                self.unread.put((built, outcome))
                self.readers.submit(self._read_waiting)
        except BaseException as error:  # a missing compiler, a full disk: raised in the caller's thread
            outcome.set_exception(error)

    def _read_waiting(self) -> None:
        waiting: list[tuple[Built, Future[Outcome[Code]]]] = []
        try:
            while True:
                waiting.append(self.unread.get_nowait())
        except queue.Empty:
            pass
        try:
            codes = self.read([built.cubin for built, _ in waiting])
        except BaseException as error:
            for _, outcome in waiting:
                outcome.set_exception(error)
            return
        for (built, outcome), code in zip(waiting, codes, strict=True):
            read = Failed("machine code", str(code)) if isinstance(code, MachineCodeError) else code
            outcome.set_result((built, read))


def _largest_first(units: Sequence[Unit]) -> list[int]:
    """Returns the indices by workload, in each the largest tiles first, because they take longest to compile."""
    position = {name: place for place, name in enumerate(dict.fromkeys(unit.workload.name for unit in units))}

    def key(index: int) -> tuple[int, float]:
        values = units[index].configuration.items()
        sizes = (size for name, size in values if name.startswith(("TILE", "BLOCK")) and isinstance(size, int))
        return position[units[index].workload.name], -math.prod(sizes)

    return sorted(range(len(units)), key=key)


def lower(task: Task, unit: Unit) -> tuple[Language, Lowered] | Failed:
    """Runs the launch function and the front end of one unit."""
    try:
        launch, hints = launch_of(task, unit)
    except TilewrightError:
        raise
    except Exception as error:  # raised by the task's own code for this configuration
        return Failed("launch", in_task(error))
    language = language_of(launch.kernel)
    lowered = language.lower(launch, hints, unit.configuration, unit.board.arch)
    return lowered if isinstance(lowered, Failed) else (language, lowered)
