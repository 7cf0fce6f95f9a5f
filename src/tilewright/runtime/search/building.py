"""Lowers trials in this process, and compiles them in parallel to cubins.

The caller's tensors are lowered as `ArraySpec`s, so no driver is needed. `Language.remember` puts the cubins where the
launches find them. If there are few trials, only the headers of their machine code are read, because starting nvdisasm
takes longer than launching all trials. If there are more trials than can be raced, the instructions are read too, to
predict which trials are the fastest, unless the work of a launch cannot be counted.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeVar

from tilewright.compile.compile import BUDGET_SECONDS, effort
from tilewright.compile.pool import CompilerPool
from tilewright.compile.screen import RACED, same_work
from tilewright.errors import TilewrightError, ToolFailed, in_one_line
from tilewright.languages.base import Argument, ListArgument, Lowered
from tilewright.machine_code.cubin import MachineCodeError, headers, read_all
from tilewright.progress import timed
from tilewright.records import Built, Configuration, Failed, LaunchFacts, MachineCode
from tilewright.runtime.search.trials import FailedTrial, SpecifiedTrial, Trial
from tilewright.runtime.store.warn_once import warn_once
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.analysis.touched import TouchedArrays, touched
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import KernelEntry, TileModule
from tilewright.tools.background import in_thread

if TYPE_CHECKING:
    from tilewright.inspect.work import CountedWork

Aligned = TypeVar("Aligned", bound=Argument)


@dataclass(frozen=True)
class Ready:
    """A trial that can be launched."""

    described: SpecifiedTrial
    lowered: Lowered
    code: MachineCode

    @property
    def trial(self) -> Trial:
        return self.described.trial

    @cached_property
    def flat(self) -> tuple[Argument, ...]:
        """The arguments of the compiled kernel, without the constants that are in its code."""
        return self.described.arguments()

    @cached_property
    def identity(self) -> Hashable:
        """A value that is equal for trials with equal work. Of an array, only its layout in memory counts."""
        return same_work(self.code.code_hash, self.trial.grid, map(aligned, self.flat))

    @cached_property
    def touched(self) -> TouchedArrays:
        """The arrays that a launch reads and writes; all arrays if the kernel's code cannot be read."""
        every, before = self.described.arrays, self.trial.changed_before
        if self.lowered.is_tile_ir:
            entry = _entry(self.lowered)
            found = TouchedArrays(every, every) if entry is None else touched(entry, self.flat)
        else:
            names = self.described.language.touched(self.lowered, self.flat)
            found = TouchedArrays(*(names or (every, every)))
        return TouchedArrays(found.read | before, found.written | before)

    def counted(self, seconds: float, blocks: int | None) -> CountedWork | None:
        """Returns `SpecifiedTrial.counted`; None if the code cannot be read."""
        return _counted(self.described, self.lowered, seconds, blocks)


class Building:
    """Compiles trials while the caller does other work.

    Trials whose accumulators cannot fit are left out until `compile_unfit` is called.
    shipped: the index of the trial that is compiled in any case; None if there is no such trial.
    order: the indices of the trials in the order in which one is the reference. Without a shipped trial, those that
        should be compiled the quickest are first.
    """

    def __init__(self, trials: Sequence[Trial | FailedTrial], arch: str, shipped: int | None) -> None:
        self.seconds = {"lower": 0.0, "compile": 0.0}
        self.shipped = shipped
        self.order: Sequence[int] = range(len(trials))
        self._trials, self._arch = trials, arch
        self._done: dict[int, Ready | FailedTrial] = {}
        self._described: dict[int, SpecifiedTrial] = {}
        self._lowered: dict[int, Lowered] = {}
        predicted = all(trial.is_predicted for trial in trials if isinstance(trial, Trial))
        self.many = predicted and len(trials) > RACED + 1
        """Whether there are more trials than can be raced, so that a prediction chooses."""
        self.predicts = self.many
        """False as soon as it is known that nothing can be predicted. Then no more instructions are read."""
        self._reading, self._ended = Future[None](), False
        self._pool = CompilerPool(os.cpu_count() or 1, BUDGET_SECONDS, self._read, _entry)
        self.unfit, self.compile_unfit = self._pool.unfit, self._pool.compile_unfit

    def __enter__(self) -> Building:
        self._pool.__enter__()
        try:
            with timed(self.seconds, "lower"), no_full_collection():
                self._start()
        except BaseException as error:
            self._pool.__exit__(type(error), error, None)
            raise
        self._reading = in_thread(self._read_ahead, "read")
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended = True
        wait((self._reading,))  # it would disturb a race
        _module.cache_clear()  # the search no longer needs these, and they are large
        self._pool.__exit__(*raised)

    @property
    def first(self) -> int:
        """The index of the trial that is needed first: of the shipped one, or else of the first one in `order`."""
        return self.order[0] if self.shipped is None else self.shipped

    def counted(self, seconds: float, blocks: int) -> CountedWork | None:
        """Returns the counted work of a launch before it is compiled; None if counting is impossible."""
        index = next((index for index in (self.first, *self.order) if index in self._lowered), None)
        return None if index is None else _counted(self._described[index], self._lowered[index], seconds, blocks)

    def _read_ahead(self) -> None:
        """Reads the Tile IR of the trials while compilers run: before a launch, it shows which arrays are written. That
        of the first is read for the count."""
        for index, lowered in list(self._lowered.items()):
            if self._ended:
                return
            if index != self.first and lowered.is_tile_ir:
                _module(lowered)

    def _read(self, cubins: Sequence[bytes]) -> Sequence[MachineCode | MachineCodeError]:
        return read_all(cubins) if self.predicts else headers(cubins)

    def get(self, index: int) -> Ready | FailedTrial:
        """Waits for the trial with this index, and returns it."""
        if index not in self._done:
            list(self._compiled(index))
        return self._done[index]

    def all(self) -> Iterator[tuple[int, Ready | FailedTrial]]:
        """Yields all trials with their indices, in the order in which they are compiled."""
        yield from list(self._done.items())
        yield from self._compiled()

    def _start(self) -> None:
        """Lowers all trials and submits them to the compilers: the trial `first`, then the trials that take longest.
        Grids that are left out are found meanwhile."""
        efforts: dict[int, float] = {}
        for index, trial in enumerate(self._trials):
            described = trial if isinstance(trial, FailedTrial) else trial.specified()
            if isinstance(described, FailedTrial):
                self._done[index] = described
            else:
                self._described[index] = described
                hints = {**described.language.decorated_hints(described.trial.kernel, self._arch), **described.hints}
                efforts[index] = effort([*zip(described.names, described.launch.args, strict=True), *hints.items()])
        if self.shipped is None:
            self.order = sorted(self.order, key=lambda index: efforts.get(index, math.inf))
        for index in sorted(efforts, key=lambda index: (index != self.first, -efforts[index])):
            described = self._described[index]
            if isinstance(lowered := self._lower(described), Failed):
                self._done[index] = described.trial.failed(lowered)
            else:
                self._lowered[index] = lowered
                self._pool.add(index, described.language, lowered, described.launch, always=index == self.shipped)
        for index in self._lowered:
            self._place(index)

    def _place(self, index: int) -> None:
        """Gives a trial its grid, while compilers run."""
        described = self._described[index]
        placed = described.trial.placed()
        if isinstance(placed, FailedTrial):
            self._done[index] = placed
            self._pool.forget(index)
        elif placed is not described.trial:
            launch = replace(described.launch, grid=placed.grid)
            self._described[index] = replace(described, trial=placed, launch=launch)

    def _lower(self, trial: SpecifiedTrial) -> Lowered | Failed:
        try:
            return trial.language.lower(trial.lowered, trial.hints, Configuration(()), self._arch)
        except TilewrightError:
            raise
        except Exception as error:
            return Failed("front end", in_one_line(error))

    def _compiled(self, index: int | None = None) -> Iterator[tuple[int, Ready | FailedTrial]]:
        """Yields the trials as they are compiled, or only the trial with ``index``. Counts the time spent waiting."""
        started = time.perf_counter()
        for each, built, code in self._pool.outcomes(index):
            self.seconds["compile"] += time.perf_counter() - started
            if each not in self._done:  # else it has no grid
                self._done[each] = self._ready(each, built, code)
                yield each, self._done[each]
            started = time.perf_counter()

    def _ready(self, index: int, built: Built | Failed, code: MachineCode | Failed) -> Ready | FailedTrial:
        described, lowered = self._described[index], self._lowered[index]
        facts, failed = built.facts if isinstance(built, Built) else LaunchFacts(), described.trial.failed
        ready = failed(code) if isinstance(code, Failed) else Ready(described, lowered, code.launched_with(facts))
        if self.predicts and isinstance(ready, Ready) and ready.code.unread:
            warn_once(f"the search goes on without predictions: {ready.code.unread}", "nvdisasm fails")
        if isinstance(built, Built):
            with suppress(Exception):  # for example a full disk or a locked cache: the launch then compiles again
                described.language.remember([built])
        return ready


NEVER = 1 << 30


@contextmanager
def no_full_collection() -> Iterator[None]:
    """Postpones full collections of garbage. The front ends make so many objects that one is due, which walks over all
    objects of the program for 0.1 s or more: better while compilers run than before they start. If searches of several
    threads overlap, the first restores the threshold."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        if old != NEVER:
            gc.set_threshold(young, middle, old)


@lru_cache(maxsize=64)
def _module(lowered: Lowered) -> TileModule | None:
    """Decodes Tile IR. If the Tile IR cannot be read, warns and returns None."""
    try:
        module = read_bytecode(lowered.code)
        module.entry()
        return module
    except (ToolFailed, LookupError) as error:
        left_out = "configurations that must spill are compiled too, and all arrays are compared"
        warn_once(f"the search goes on without the kernel's Tile IR ({left_out}): {error}", "Tile IR cannot be read")
        return None


def _counted(described: SpecifiedTrial, lowered: Lowered, seconds: float, blocks: int | None) -> CountedWork | None:
    module = _module(lowered) if lowered.is_tile_ir else None
    return None if module is None else described.counted(module, lowered, seconds, blocks)


def _entry(lowered: Lowered) -> KernelEntry | None:
    module = _module(lowered)
    return None if module is None else module.entry()


def aligned(value: Aligned) -> Aligned:
    """Returns an argument as the compiler sees it (`ArraySpec.as_compiled`)."""
    if isinstance(value, ListArgument):
        return replace(value, rows=tuple(tuple(map(aligned, row)) for row in value.rows))
    return value.as_compiled() if isinstance(value, ArraySpec) else value


def written_by(trial: Trial, arch: str) -> frozenset[str]:
    """Returns the parameters whose arrays a launch of ``trial`` writes, read from its Tile IR; empty if unknown."""
    described = trial.specified()
    if isinstance(described, FailedTrial):
        return frozenset()
    lowered = described.language.lower(described.launch, {}, Configuration(()), arch)
    if isinstance(lowered, Failed):
        return frozenset()
    entry = _entry(lowered)
    written = frozenset[str]() if entry is None else touched(entry, described.arguments()).written
    return frozenset(name.partition("[")[0] for name in written)
