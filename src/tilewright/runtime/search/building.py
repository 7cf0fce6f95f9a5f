"""From trials to cubins: the front end here, the compilers side by side, and what two trials have in common.

Live tensors are described as `ArraySpec`s and lowered that way, so no driver is needed; only where arrays share
memory is cuda-tile asked, since sharing is part of a launch's signature. Cubins go into cuTile's own disk cache,
where the launches find them. Machine code is read from its container alone: nvdisasm takes longer to start than
everything else here.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from tilewright.compile.compile import BUDGET_SECONDS, CompilerPool, Outcome
from tilewright.errors import RequestError, TilewrightError, in_one_line
from tilewright.languages import language_of
from tilewright.languages.base import Language, ListArgument, Lowered
from tilewright.languages.cutile.cutile import DIVISOR
from tilewright.languages.cutile.private import decorated_hints, python_function
from tilewright.machine_code.cubin import Header, headers
from tilewright.records import Built, Configuration, Failed
from tilewright.runtime.arrays import is_array
from tilewright.runtime.search.scratch import arrays_of, have_overlaps, tensor_of
from tilewright.runtime.search.trials import FailedTrial, Trial, array_spec
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.analysis.carried import must_spill
from tilewright.tileir.analysis.touched import TouchedArrays, touched
from tilewright.tileir.read.disassemble import ReadError
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import KernelEntry

LEAST_TOO_LARGE = 1 << 15
"""Elements of the smallest tile of powers of two that `must_spill` can hold against a kernel."""
_TILE = re.compile("tile|block", re.IGNORECASE)


@dataclass(frozen=True)
class SpecifiedTrial:
    """A trial with its arguments as specifications."""

    trial: Trial
    launch: Launch
    names: tuple[str, ...]
    """Of the kernel's parameters."""
    own_args: tuple[Any, ...] | None
    """The arguments themselves, where arrays share memory."""

    @property
    def size(self) -> int:
        """Elements of a tile, about: large ones compile longest."""
        return math.prod(
            value
            for name, value in zip(self.names, self.launch.args, strict=True)
            if type(value) is int and value > 0 and _TILE.search(name)
        )

    @property
    def may_be_too_large(self) -> bool:
        """Whether two of its numbers could span an accumulator that one CTA cannot hold: worth reading its code."""
        numbers = sorted(value for value in self.launch.args if type(value) is int)
        return math.prod(numbers[-2:]) >= LEAST_TOO_LARGE


@dataclass(frozen=True)
class Ready:
    """A trial that can be launched."""

    index: int
    described: SpecifiedTrial
    language: Language
    lowered: Lowered
    header: Header

    @property
    def trial(self) -> Trial:
        return self.described.trial

    @property
    def names(self) -> tuple[str, ...]:
        return self.described.names

    @cached_property
    def flat(self) -> tuple[Any, ...]:
        """What the compiled kernel is called with: constants are in its code."""
        return self.language.arguments(self.described.launch)

    @property
    def identity(self) -> Hashable:
        """Equal identity, equal work: code, grid, scalars, and how the arrays lie in memory."""
        return (self.header.code_hash, self.trial.grid, tuple((aligned(one), type(one)) for one in self.flat))

    @cached_property
    def touched(self) -> TouchedArrays:
        """Which of the launch's arrays the kernel reads and writes; all of them where its code cannot be read."""
        entry = _entry(self.lowered)
        if entry is None:
            every = frozenset(one.name for one in _specs(self.described.launch.args))
            return TouchedArrays(every, every)
        return touched(entry, self.flat)


class Building:
    """Compiles trials while the caller goes on. ``first``: the one that is wanted first.

    Those whose accumulators cannot but spill compile longest, up to ten times as long as the winner. They wait in
    `hopeless` until somebody calls `build_hopeless`.
    """

    def __init__(
        self, trials: Sequence[Trial | Failed], arch: str, first: int, jobs: int | None, seconds: float | None
    ) -> None:
        self.seconds = {"lower": 0.0, "compile": 0.0}
        self._arch = arch
        self._done: dict[int, Ready | FailedTrial] = {}
        self._lowered: dict[int, tuple[SpecifiedTrial, Language, Lowered]] = {}
        self._futures: dict[Future[Outcome], list[int]] = {}
        self._pool = CompilerPool(jobs or os.cpu_count() or 1, seconds or BUDGET_SECONDS, headers)
        self._first = first
        self._trials = trials
        self.hopeless: dict[int, str] = {}
        """Place → why it is not compiled."""

    def __enter__(self) -> Building:
        self._pool.__enter__()
        try:
            self._start()
        except BaseException as error:
            self._pool.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        _entry.cache_clear()  # what the search needs of them it has by now; they are large
        self._pool.__exit__(*raised)

    def get(self, index: int) -> Ready | FailedTrial:
        """Waits for one."""
        if index not in self._done:
            future = next(one for one, indices in self._futures.items() if index in indices)
            started = time.perf_counter()
            future.exception()
            self.seconds["compile"] += time.perf_counter() - started
            self._finish(future)
        return self._done[index]

    def all(self) -> Iterator[tuple[int, Ready | FailedTrial]]:
        """Every trial, as they become ready."""
        yield from list(self._done.items())
        started = time.perf_counter()
        for future in as_completed([one for one, indices in self._futures.items() if indices[0] not in self._done]):
            self.seconds["compile"] += time.perf_counter() - started
            self._finish(future)
            yield from ((index, self._done[index]) for index in self._futures[future])
            started = time.perf_counter()

    def _start(self) -> None:
        """Lowers all and hands them to the compilers: the one wanted first, then large tiles before small ones."""
        started = time.perf_counter()
        described: dict[int, SpecifiedTrial] = {}
        for index, trial in enumerate(self._trials):
            one = trial if isinstance(trial, Failed) else specified(trial)
            if isinstance(one, Failed):
                self._done[index] = _failed(trial, one)
            else:
                described[index] = one
        shared: dict[Hashable, tuple[Language, Lowered] | Failed] = {}
        wanted: Hashable = None
        for index in sorted(described, key=lambda i: (i != self._first, -described[i].size)):
            found = self._lower(described[index], shared)
            if isinstance(found, Failed):
                self._done[index] = _failed(self._trials[index], found)
            else:
                self._lowered[index] = (described[index], *found)
                if index == self._first:
                    wanted = found[1].identity
                is_compiled_anyway = found[1].identity == wanted
                is_sm_90 = self._arch == "sm_90"
                if is_sm_90 and not is_compiled_anyway and _is_hopeless(described[index], found[1]):
                    self.hopeless[index] = HOPELESS
                else:
                    self._submit(index)
        self.seconds["lower"] = time.perf_counter() - started

    def build_hopeless(self) -> None:
        """Compiles them after all; `all` then yields them."""
        for index in self.hopeless:
            self._submit(index)
        self.hopeless = {}

    def _submit(self, index: int) -> None:
        _, language, lowered = self._lowered[index]
        self._futures.setdefault(self._pool.submit(language, lowered), []).append(index)

    def _lower(
        self, one: SpecifiedTrial, shared: dict[Hashable, tuple[Language, Lowered] | Failed]
    ) -> tuple[Language, Lowered] | Failed:
        """Equal kernel objects with equal arguments are lowered once: the grid is no part of the code."""
        key = (id(one.trial.kernel), repr(one.launch.args))
        if key not in shared:
            language = language_of(one.launch.kernel)
            launch = one.launch if one.own_args is None else Launch(one.launch.kernel, one.launch.grid, one.own_args)
            try:
                lowered = language.lower(launch, {}, Configuration(()), self._arch)
            except TilewrightError:
                raise
            except Exception as error:
                lowered = Failed("front end", in_one_line(error))
            shared[key] = lowered if isinstance(lowered, Failed) else (language, lowered)
        return shared[key]

    def _finish(self, future: Future[Outcome]) -> None:
        built, header = future.result()
        for index in self._futures[future]:
            described, language, lowered = self._lowered[index]
            if isinstance(header, Failed):
                self._done[index] = _failed(described.trial, header)
            else:
                self._done[index] = Ready(index, described, language, lowered, header)
        if isinstance(built, Built):
            with suppress(Exception):  # a full disk, a locked cache: the launch then compiles once more
                language.remember([built])


HOPELESS = "its accumulators need more than 254 registers of each thread that has them: it cannot but spill"


def _is_hopeless(one: SpecifiedTrial, lowered: Lowered) -> bool:
    if not one.may_be_too_large:
        return False
    entry, hints = _entry(lowered), decorated_hints(one.trial.kernel, lowered.arch)
    return entry is not None and must_spill(entry, hints.get("num_ctas"), hints.get("num_worker_warps"))


@lru_cache(maxsize=64)
def _entry(lowered: Lowered) -> KernelEntry | None:
    """None for code that cannot be read."""
    try:
        return read_bytecode(lowered.code).entry()
    except (ReadError, LookupError):
        return None


def aligned(one: Any) -> Any:
    """An array as the compiler sees it: two clones that lie at other multiples of 16 are alike."""
    if isinstance(one, ListArgument):
        return ListArgument(tuple(tuple(aligned(entry) for entry in row) for row in one.rows))
    return replace(one, address_offset=one.address_offset % DIVISOR) if isinstance(one, ArraySpec) else one


def specified(trial: Trial) -> SpecifiedTrial | Failed:
    """A trial's arguments as specifications; what the caller's function raised, as its failure."""
    try:
        args = trial.arguments()
        code = python_function(trial.kernel).__code__
        names = code.co_varnames[: code.co_argcount]
        if len(names) != len(args):
            raise TypeError(f"the kernel takes {len(names)} arguments, the launch passes {len(args)}")
        arrays = arrays_of(args, names)
        specs = tuple(_spec(value, name) for name, value in zip(names, args, strict=True))
        shared = have_overlaps(arrays) and any(tensor_of(one).is_cuda for one in arrays.values())
    except RequestError as error:
        return FailedTrial("launch", str(error), trial.label, trial.config, TypeError)
    except Exception as error:  # the caller's own code, for this configuration
        return FailedTrial("launch", in_one_line(error), trial.label, trial.config, type(error))
    return SpecifiedTrial(trial, Launch(trial.kernel, trial.grid, specs), names, args if shared else None)


def written_by(trial: Trial, arch: str) -> frozenset[str]:
    """The kernel's parameters whose arrays a launch of ``trial`` writes, read from its Tile IR; empty if unknown."""
    trial_specified = specified(trial)
    if isinstance(trial_specified, Failed):
        return frozenset()
    launch = trial_specified.launch
    language = language_of(launch.kernel)
    lowered = language.lower(launch, {}, Configuration(()), arch)
    if isinstance(lowered, Failed):
        return frozenset()
    written = touched(read_bytecode(lowered.code).entry(), language.arguments(launch)).written
    return frozenset(name.partition("[")[0] for name in written)


def _spec(value: Any, name: str) -> Any:
    if is_array(value):
        return array_spec(value, name)
    if isinstance(value, (list, tuple)) and any(is_array(one) for one in value):
        return [array_spec(one, f"{name}[{n}]") if is_array(one) else one for n, one in enumerate(value)]
    return value


def _specs(args: Sequence[Any]) -> Iterator[ArraySpec]:
    for value in args:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ArraySpec):
                yield one


def _failed(trial: Trial | Failed, failure: Failed) -> FailedTrial:
    if isinstance(failure, FailedTrial):
        return failure
    label = trial.label if isinstance(trial, Trial) else ""
    return FailedTrial(failure.stage, failure.reason, label, getattr(trial, "config", None), error_of(failure))


def error_of(failure: Failed) -> type[Exception]:
    """What `cuda.tile.tune.exhaustive_search` would have caught: cuda-tile's own errors, by the stage."""
    import cuda.tile as ct

    if isinstance(failure, FailedTrial):
        return failure.error
    errors: dict[str, type[Exception]] = {"front end": ct.TileError, "compile": ct.TileCompilerExecutionError}
    if failure.stage == "compile" and "took longer than its budget" in failure.reason:
        errors["compile"] = ct.TileCompilerTimeoutError
    return errors.get(failure.stage, RuntimeError)
