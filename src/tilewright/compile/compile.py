"""Compiles candidates: the front end runs in the calling thread, the compilers run as parallel child processes.

The front end holds Python's global lock for 10 to 50 ms per candidate, so more threads would not make it faster. A pool
of threads gets the front end's results, and each thread waits for one compiler (`compile.pool`). An error in a
candidate fails only this candidate. No GPU, driver or torch is needed.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

from tilewright.compile.accumulators import is_likely_unfit
from tilewright.compile.pool import CompilerPool
from tilewright.compile.skipped import CompileLimit, NotStarted, expected_slow
from tilewright.errors import TaskError, TilewrightError, ToolFailed, choices, in_task
from tilewright.hardware.architectures import Board
from tilewright.languages import is_kernel, language_of
from tilewright.languages.base import Language, Lowered
from tilewright.languages.kept_cubins import KeptCubins
from tilewright.machine_code.cubin import read_all
from tilewright.records import Built, Configuration, Failed, MachineCode, Value, Workload
from tilewright.space.union import implementation_of
from tilewright.task.task import Launch, Task
from tilewright.task.tensors import ArraySpec
from tilewright.tools.background import in_thread

BUDGET_SECONDS = 10.0
"""Processor time that one candidate's compiler may take; typical kernels need 0.2 to 4 s."""
_TILE = re.compile("tile|block", re.IGNORECASE)
WARP_HINTS, WARPS = ("num_worker_warps", "num_warps"), 4
"""The hints that set the number of a kernel's warps, and the number of warps to assume if the compiler chooses."""

Arrays: TypeAlias = Mapping[str, ArraySpec]
TRIED = 500
"""How many configurations of a space are tried to find out whether the task itself is wrong."""


class Stopped(Exception):
    """The caller stopped `compile_all`: the argument ``stopped`` returned True."""


@dataclass(frozen=True)
class Unit:
    """One compile job: a configuration on a workload, for the architecture of a GPU model."""

    workload: Workload
    configuration: Configuration
    board: Board


ExpectedUs: TypeAlias = Callable[[Unit], float | None]
"""Returns the expected time of a unit in µs; None if it is not known."""


@dataclass(frozen=True)
class Compiled:
    """The outcome of a unit: its cubin and machine code, or the stage that failed."""

    unit: Unit
    built: Built | Failed
    code: MachineCode | Failed


def launch_of(task: Task, unit: Unit, arrays: Arrays | None = None) -> tuple[Launch, dict[str, Value]]:
    """Returns the launch of a unit, with array specifications as arguments, and its compiler hints.

    arrays: the specifications by name. The default is row-major and aligned arrays.
    """
    dims = unit.workload.dims
    launch = task.launched(unit.configuration, dims, task.arrays(dims) if arrays is None else arrays, unit.board)
    return launch, hints_of(task, unit.configuration)


def hints_of(task: Task, config: Configuration) -> dict[str, Value]:
    """Returns the compiler hints of a configuration. The value None removes a hint of the kernel's decorator, so that
    the compiler chooses. A configuration has the hints of its own implementation only."""
    return {name: config[name] for name in task.space.hints if name in config}


def compile_all(
    tasks: Task | Sequence[Task],
    units: Sequence[Unit],
    *,
    jobs: int | None = None,
    seconds: float = BUDGET_SECONDS,
    on_done: Callable[[Compiled], None] = lambda compiled: None,
    stopped: Callable[[], bool] = lambda: False,
    unfit: bool = True,
    limit_of: Callable[[Unit], CompileLimit | None] | None = None,
    kept: KeptCubins | None = None,
    on_busy: Callable[[], None] = lambda: None,
    expected_us: ExpectedUs | None = None,
) -> list[Compiled]:
    """Compiles every unit; the results are in the order of the units.

    tasks: the task of all units, or one task for each unit.
    jobs: the number of compilers at a time (default: the cores of this machine).
    seconds: the limit of processor time for one compiler run.
    on_done: called in this thread as units finish, for progress.
    stopped: called between units. Once it returns True, the compilers are ended and Stopped is raised.
    unfit: False skips units whose accumulators cannot fit, but never a configuration that a task ships.
    limit_of: returns the limit of a unit's compiler as it is now. A unit over it is a `NotCompiled`.
    kept: as in `CompilerPool`.
    on_busy: called in this thread, perhaps several times, once each compiler has a candidate or the front end is done.
    expected_us: if given, units that wait for a compiler and are expected to be slow are left out, but never a
        configuration that a task ships.
    """
    each_task = [tasks] * len(units) if isinstance(tasks, Task) else tasks
    done: dict[int, Compiled] = {}

    def finish(index: int, built: Built | Failed, code: MachineCode | Failed) -> None:
        if isinstance(built, Built):  # units with the same bytecode share the cubin, but not the configuration
            built = replace(built, configuration=units[index].configuration)
            code = code if isinstance(code, Failed) else code.launched_with(built.facts)
        done[index] = Compiled(units[index], built, code)
        on_done(done[index])

    limit = None if limit_of is None else lambda index: limit_of(units[index])
    with CompilerPool(jobs or os.cpu_count() or 1, seconds, read_all, limit_of=limit, kept=kept) as pool:
        for index in _in_order(each_task, units, unfit_last=not unfit):
            if stopped():
                raise Stopped
            task, unit = each_task[index], units[index]
            lowered = lower(task, unit)
            if isinstance(lowered, Failed):
                finish(index, lowered, lowered)
            else:
                pool.add(index, *lowered, always=unfit or unit.configuration == task.space.shipped)
            if pool.is_busy:
                on_busy()
        on_busy()
        for index, why in pool.unfit().items():
            finish(index, why, why)
        with nullcontext() if expected_us is None else _leaving_out_slow(pool, each_task, units, expected_us):
            for index, built, code in pool.outcomes():
                if stopped():
                    raise Stopped
                finish(index, built, code)
    return [done[index] for index in range(len(units))]


@contextmanager
def _leaving_out_slow(
    pool: CompilerPool, tasks: Sequence[Task], units: Sequence[Unit], expected_us: ExpectedUs
) -> Iterator[None]:
    """During the block, another thread leaves out the units that wait for a compiler and are expected to be slow."""
    ended = threading.Event()

    def leave_out() -> None:
        reasons: dict[int, NotStarted] = {}
        workloads: dict[str, list[int]] = {}
        for index, unit in enumerate(units):
            workloads.setdefault(unit.workload.name, []).append(index)
        for indices in workloads.values():
            expected: dict[int, float] = {}
            for index in indices:
                if ended.is_set() or not pool.has_waiting:
                    return
                try:
                    us = expected_us(units[index])
                except Exception:  # a kernel of a kind that nobody expected: it is compiled as a whole
                    return
                if us:
                    expected[index] = us
            slow = expected_slow(expected)
            reasons |= {at: why for at, why in slow.items() if units[at].configuration != tasks[at].space.shipped}
            pool.leave_out(reasons)

    done = in_thread(leave_out, "expected times")
    try:
        yield
    finally:
        ended.set()
    done.result()  # from now on, no other thread calls the task's code


def languages_of(task: Task, workloads: Sequence[Workload], board: Board) -> tuple[str, ...]:
    """Returns the names of the languages of the task's kernels; () if no configuration can be launched.

    Of a large space, only the first configurations are tried. Raises TaskError if a launch, or two configurations of
    one implementation, mix languages.
    """
    first: dict[tuple[str, str], Configuration] = {}
    for workload in workloads:
        for config in islice(task.space.each(board.sm, workload.dims), TRIED):
            try:
                launched = _launched(task, Unit(workload, config, board))
            except TaskError:  # compiling or checking this configuration reports the error
                continue
            if isinstance(launched, Failed):
                continue
            language = language_of(launched[0].kernel)
            if problem := _mixed(launched[0], language, launched[1]):
                raise TaskError(f"task '{task.name}': {problem}")
            first.setdefault((implementation_of(config), language.name), config)
    many = Counter(implementation for implementation, _ in first)
    if mixed := [name for name, languages in many.items() if languages > 1]:
        kernels = ((config, language) for (name, language), config in first.items() if name == mixed[0])
        each = ", ".join(f"{config} launches a kernel of '{language}'" for config, language in kernels)
        raise TaskError(f"task '{task.name}' mixes languages: {each}; fix: write one implementation for each language "
                        "(implementations=)")  # fmt: skip
    return tuple(dict.fromkeys(name for _, name in first))


def one_language(task: Task, workloads: Sequence[Workload], board: Board) -> str:
    """Returns the name of the language of the task's kernels; "" if no configuration can be launched.

    Raises TaskError if the task has several implementations, or mixes languages.
    """
    refuse_implementations(task)
    return next(iter(languages_of(task, workloads, board)), "")


def refuse_implementations(task: Task) -> None:
    """Raises TaskError if the task has several implementations."""
    if task.implementations:
        raise TaskError(f"task '{task.name}' has {len(task.implementations)} implementations, but only one kernel "
                        "can be optimized; fix: write a task with one of them (launch= and space=)")  # fmt: skip


def refuse_broken_task(
    task: Task, board: Board, workloads: Iterable[Workload], configurations: Sequence[Configuration] = ()
) -> None:
    """Raises TaskError if the launch function or the front end fails for every configuration: the task itself is wrong.

    configurations: by default all configurations of the space. Of many, only the first are tried.
    """
    units = (
        Unit(workload, configuration, board)
        for workload in workloads
        for configuration in configurations or task.space.each(board.sm, workload.dims)
    )
    failures = []
    for unit in islice(units, TRIED):
        lowered = lower(task, unit)
        if not isinstance(lowered, Failed):
            return
        failures.append(lowered)
    if failures:
        what = "launch function fails for every" if failures[0].stage == "launch" else "kernel compiles for no"
        raise TaskError(f"{failures[0].reason} (task '{task.name}': the {what} configuration)")


def refuse_broken_tools(compiled: Sequence[Compiled]) -> None:
    """Raises ToolFailed if no unit was compiled because a tool failed. Such a failure says nothing about the
    candidates."""
    failures = [each.code for each in compiled if isinstance(each.code, Failed)]
    broken = [failed for failed in failures if failed.stage in ("tool", "machine code")]
    if broken and len(failures) == len(compiled):
        raise ToolFailed(broken[0].reason)


def remember(task: Task, compiled: Sequence[Compiled]) -> int:
    """Stores the cubins of one task where its launches find them, so that a worker need not compile.

    Returns the number of stored cubins.
    """
    units: dict[str, Unit] = {}
    built: dict[str, list[Built]] = {}
    for each in compiled:
        if isinstance(each.built, Built):
            name = implementation_of(each.unit.configuration)
            units.setdefault(name, each.unit)
            built.setdefault(name, []).append(each.built)
    return sum(language_of(launch_of(task, units[name])[0].kernel).remember(built[name]) for name in built)


def effort(constants: Iterable[tuple[str, object]]) -> float:
    """Estimates how long a kernel takes to compile, as a number without a unit; larger is longer.

    constants: names and values of the kernel's constants and hints. Large tiles take longest, above all tiles with one
        long side. With more warps, each warp has less work.
    """
    named = {name: value for name, value in constants if type(value) is int and value > 0}
    sizes = tile_sizes(named)
    warps = next((named[hint] for hint in WARP_HINTS if hint in named), WARPS)
    return max(sizes, default=1) * math.sqrt(math.prod(sizes)) / warps


def tile_sizes(constants: Mapping[str, object]) -> list[int]:
    """Returns the positive integers whose names say that they are sizes of tiles."""
    return [value for name, value in constants.items() if type(value) is int and value > 0 and _TILE.search(name)]


def _in_order(tasks: Sequence[Task], units: Sequence[Unit], unfit_last: bool) -> list[int]:
    """Returns the indices of the units, workload by workload. Within a workload, the slowest to compile are first.

    Units that differ only in hints share most of the front end's work. So all units of a kernel are at the place of its
    slowest one: the compilers get the first units sooner.

    unfit_last: whether units whose accumulators are not likely to fit come last within their workload. They are not
        compiled, so the compilers would wait while the front end works on them. A configuration that a task ships is
        always compiled.
    """
    position = {name: place for place, name in enumerate(dict.fromkeys(unit.workload.name for unit in units))}
    efforts = [-effort(unit.configuration.items()) for unit in units]
    late = [
        unfit_last and unit.configuration != task.space.shipped
        and is_likely_unfit(unit.configuration, tile_sizes(unit.configuration), unit.board.arch)
        for task, unit in zip(tasks, units, strict=True)
    ]  # fmt: skip
    kernels = [(is_late, *_kernel_of(task, unit)) for is_late, task, unit in zip(late, tasks, units, strict=True)]
    slowest: dict[Hashable, tuple[float, int]] = {}
    for index, kernel in enumerate(kernels):
        slowest[kernel] = min(slowest.get(kernel, (0.0, 0)), (efforts[index], index))
    order = [
        (position[unit.workload.name], late[at], *slowest[kernels[at]], efforts[at]) for at, unit in enumerate(units)
    ]
    return sorted(range(len(units)), key=order.__getitem__)


def _kernel_of(task: Task, unit: Unit) -> tuple[Hashable, ...]:
    """Returns a key that is equal for units of one task and workload whose configurations differ only in hints."""
    constants = ((name, value) for name, value in unit.configuration.items() if name not in task.space.hints)
    return id(task), unit.workload.name, *constants


def lower(task: Task, unit: Unit, arrays: Arrays | None = None) -> tuple[Language, Lowered, Launch] | Failed:
    """Runs the launch function and the front end of one unit. Returns Failed if one of them fails.

    arrays: as in `launch_of`.
    """
    launched = _launched(task, unit, arrays)
    if isinstance(launched, Failed):
        return launched
    launch, hints = launched
    language = language_of(launch.kernel)
    if problem := _mixed(launch, language, hints):
        return Failed("launch", problem)
    lowered = language.lower(launch, hints, unit.configuration, unit.board.arch)
    return lowered if isinstance(lowered, Failed) else (language, lowered, launch)


def _launched(task: Task, unit: Unit, arrays: Arrays | None = None) -> tuple[Launch, dict[str, Value]] | Failed:
    try:
        return launch_of(task, unit, arrays)
    except TilewrightError:
        raise
    except Exception as error:  # raised by the task's own code for this configuration
        return Failed("launch", in_task(error))


def _mixed(launch: Launch, language: Language, hints: Mapping[str, Value]) -> str | None:
    """Returns a message about a hint or argument that belongs to another language; None if there is none."""
    known = [hint.name for hint in language.hints]
    if known and (foreign := [name for name in hints if name not in known]):
        return f"'{foreign[0]}' is no hint of language '{language.name}'; {choices(foreign[0], known)}"
    for arg in launch.args:
        if is_kernel(arg) and language_of(arg).name != language.name:
            return (
                f"the launch passes a kernel of language '{language_of(arg).name}' to one of '{language.name}'; "
                "fix: use only one language in a launch"
            )
    return None
