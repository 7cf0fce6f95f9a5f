"""Lowers trials in this process, and compiles them in parallel to cubins.

The caller's tensors are lowered as `ArraySpec`s, so no driver is needed. If arrays share memory, cuda-tile gets the
tensors themselves, because sharing is part of a launch's signature. The cubins go into cuTile's own disk cache, where
the launches find them. If there are few trials, only the headers of their machine code are read, because starting
nvdisasm takes longer than launching all trials. If there are more trials than can be raced, the instructions are read
too, to predict which trials are the fastest.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeVar

from tilewright.compile.compile import BUDGET_SECONDS, effort
from tilewright.compile.pool import CompilerPool
from tilewright.compile.screen import RACED, same_work
from tilewright.errors import RequestError, TilewrightError, ToolFailed, in_one_line
from tilewright.languages import language_of
from tilewright.languages.base import Argument, Language, ListArgument, Lowered
from tilewright.languages.cutile.private import python_function
from tilewright.machine_code.cubin import headers, read_all
from tilewright.progress import timed
from tilewright.records import Built, Configuration, Failed, MachineCode
from tilewright.runtime.arrays import CallValue, is_array
from tilewright.runtime.search.scratch import arrays_of, have_overlaps, tensor_of
from tilewright.runtime.search.trials import FailedTrial, Trial, array_spec
from tilewright.runtime.store.warn_once import warn_once
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.analysis.touched import TouchedArrays, touched
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import KernelEntry, TileModule

if TYPE_CHECKING:
    from tilewright.inspect.work import CountedWork

Aligned = TypeVar("Aligned", bound=Argument)


@dataclass(frozen=True)
class SpecifiedTrial:
    """A trial whose arguments are specifications. ``names``: the kernel's parameters. ``arrays``: names of arrays.
    ``own_args``: the caller's arguments if arrays share memory, else None."""

    trial: Trial
    language: Language
    launch: Launch
    names: tuple[str, ...]
    arrays: frozenset[str]
    own_args: tuple[CallValue, ...] | None

    def counted(self, lowered: Lowered, seconds: float, blocks: int | None) -> CountedWork | None:
        """Returns the counted work of a launch on ``blocks`` blocks, or on all blocks; None if counting is
        impossible."""
        from tilewright.inspect.work import count_launch
        from tilewright.tileir.run.launching import Runnable

        module = _module(lowered) if lowered.is_tile_ir else None
        if module is None:
            return None
        flat = (each for arg in self.launch.args for each in (arg if isinstance(arg, list) else [arg]))
        arrays = {each.name: each for each in flat if isinstance(each, ArraySpec)}
        runnable = Runnable(self.launch, module, self.language.arguments(self.launch), lowered.code)
        with suppress(Exception):  # the user's search goes on without a count
            return count_launch(runnable, arrays, seconds, blocks)
        return None


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
        return self.described.language.arguments(self.described.launch)

    @cached_property
    def identity(self) -> Hashable:
        """A value that is equal for trials with equal work. Of an array, only its layout in memory counts."""
        return same_work(self.code.code_hash, self.trial.grid, map(aligned, self.flat))

    @cached_property
    def touched(self) -> TouchedArrays:
        """The arrays that the kernel reads and writes; all arrays if its code cannot be read."""
        entry, every = _entry(self.lowered), self.described.arrays
        return TouchedArrays(every, every) if entry is None else touched(entry, self.flat)


class Building:
    """Compiles trials while the caller does other work.

    Trials whose accumulators cannot fit are left out until `compile_unfit` is called.
    first: the index of the trial that is needed first.
    """

    def __init__(self, trials: Sequence[Trial | FailedTrial], arch: str, first: int) -> None:
        self.seconds = {"lower": 0.0, "compile": 0.0}
        self._trials, self._arch, self._first = trials, arch, first
        self._done: dict[int, Ready | FailedTrial] = {}
        self._described: dict[int, SpecifiedTrial] = {}
        self._lowered: dict[int, Lowered] = {}
        self.many = len(trials) > RACED + 1
        """Whether there are more trials than can be raced."""
        self._pool = CompilerPool(os.cpu_count() or 1, BUDGET_SECONDS, read_all if self.many else headers, _entry)
        self.left_out, self.compile_unfit = self._pool.left_out, self._pool.compile_unfit

    def __enter__(self) -> Building:
        self._pool.__enter__()
        try:
            with timed(self.seconds, "lower"):
                self._start()
        except BaseException as error:
            self._pool.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        _module.cache_clear()  # the search no longer needs these, and they are large
        self._pool.__exit__(*raised)

    def counted(self, index: int, seconds: float, blocks: int) -> CountedWork | None:
        """Returns the counted work of a trial before it is compiled; None if counting is impossible."""
        lowered = self._lowered.get(index)
        return None if lowered is None else self._described[index].counted(lowered, seconds, blocks)

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
        """Lowers all trials and submits them to the compilers: the trial `first`, then the trials that take longest."""
        efforts: dict[int, float] = {}
        for index, trial in enumerate(self._trials):
            described = trial if isinstance(trial, FailedTrial) else specified(trial)
            if isinstance(described, FailedTrial):
                self._done[index] = described
            else:
                self._described[index] = described
                hints = described.language.decorated_hints(described.trial.kernel, self._arch)
                efforts[index] = effort([*zip(described.names, described.launch.args, strict=True), *hints.items()])
        for index in sorted(efforts, key=lambda index: (index != self._first, -efforts[index])):
            described = self._described[index]
            if isinstance(lowered := self._lower(described), Failed):
                self._done[index] = _failed(lowered)
            else:
                self._lowered[index] = lowered
                self._pool.add(index, described.language, lowered, described.launch, always=index == self._first)

    def _lower(self, trial: SpecifiedTrial) -> Lowered | Failed:
        launch = trial.launch if trial.own_args is None else replace(trial.launch, args=trial.own_args)
        try:
            return trial.language.lower(launch, {}, Configuration(()), self._arch)
        except TilewrightError:
            raise
        except Exception as error:
            return Failed("front end", in_one_line(error))

    def _compiled(self, index: int | None = None) -> Iterator[tuple[int, Ready | FailedTrial]]:
        """Yields the trials as they are compiled, or only the trial with ``index``. Counts the time spent waiting."""
        started = time.perf_counter()
        for each, built, code in self._pool.outcomes(index):
            self.seconds["compile"] += time.perf_counter() - started
            described, lowered = self._described[each], self._lowered[each]
            ready = _failed(code) if isinstance(code, Failed) else Ready(described, lowered, code)
            if self.many and isinstance(ready, Ready) and ready.code.unread:
                warn_once(f"the search goes on without predictions: {ready.code.unread}", "nvdisasm fails")
            self._done[each] = ready
            if isinstance(built, Built):
                with suppress(Exception):  # for example a full disk or a locked cache: the launch then compiles again
                    described.language.remember([built])
            yield each, ready
            started = time.perf_counter()


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


def _entry(lowered: Lowered) -> KernelEntry | None:
    module = _module(lowered)
    return None if module is None else module.entry()


def aligned(value: Aligned) -> Aligned:
    """Returns an argument as the compiler sees it (`ArraySpec.as_compiled`)."""
    if isinstance(value, ListArgument):
        return replace(value, rows=tuple(tuple(map(aligned, row)) for row in value.rows))
    return value.as_compiled() if isinstance(value, ArraySpec) else value


def specified(trial: Trial) -> SpecifiedTrial | FailedTrial:
    """Describes the arguments of a trial. Returns a `FailedTrial` if the caller's function raises."""
    try:
        args = trial.arguments()
        code = python_function(trial.kernel).__code__
        names = code.co_varnames[: code.co_argcount]
        if len(names) != len(args):
            raise TypeError(f"the kernel takes {len(names)} arguments, the launch passes {len(args)}")
        arrays = arrays_of(args, names)
        specs = tuple(_spec(value, name) for name, value in zip(names, args, strict=True))
        shared = have_overlaps(arrays) and any(tensor_of(array).is_cuda for array in arrays.values())
    except RequestError as error:
        return FailedTrial("launch", str(error), error=TypeError)
    except Exception as error:  # the caller's own code, for this configuration
        return FailedTrial("launch", in_one_line(error), error=type(error))
    language, launch = language_of(trial.kernel), Launch(trial.kernel, trial.grid, specs)
    return SpecifiedTrial(trial, language, launch, names, frozenset(arrays), args if shared else None)


def written_by(trial: Trial, arch: str) -> frozenset[str]:
    """Returns the parameters whose arrays a launch of ``trial`` writes, read from its Tile IR; empty if unknown."""
    described = specified(trial)
    if isinstance(described, FailedTrial):
        return frozenset()
    language, launch = described.language, described.launch
    lowered = language.lower(launch, {}, Configuration(()), arch)
    if isinstance(lowered, Failed):
        return frozenset()
    entry = _entry(lowered)
    written = frozenset[str]() if entry is None else touched(entry, language.arguments(launch)).written
    return frozenset(name.partition("[")[0] for name in written)


def _spec(value: CallValue, name: str) -> CallValue:
    if isinstance(value, (list, tuple)) and any(map(is_array, value)):
        return [_spec(item, f"{name}[{n}]") for n, item in enumerate(value)]
    return array_spec(value, name) if is_array(value) else value


def _failed(failure: Failed) -> FailedTrial:
    """Adds the error class of cuda-tile that `cuda.tile.tune.exhaustive_search` reports for this failure."""
    import cuda.tile as ct

    errors: dict[str, type[Exception]] = {"front end": ct.TileError, "compile": ct.TileCompilerExecutionError}
    in_time = not re.search("took longer than its budget|did not end", failure.reason)
    errors["tool"] = ct.TileCompilerExecutionError if in_time else ct.TileCompilerTimeoutError
    return FailedTrial(failure.stage, failure.reason, error=errors.get(failure.stage, RuntimeError))
