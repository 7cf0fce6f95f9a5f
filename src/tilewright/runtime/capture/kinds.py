"""Counts the launches of each kind, and samples how long they take on the GPU.

Launches of one kind have equal kernels, hints and grids. Their arrays have equal shapes, strides, dtypes and
alignments, and all other arguments are equal. Only floating-point scalars that are not constants may differ.

Counting: finding the kind of a launch takes as long as the launch itself. So most launches are only counted, which is
one step of an iterator. The first `EXACT` launches of a kernel are examined. Later launches are divided into blocks,
and one launch of each block, drawn at random, is examined. The draw must be random, because launches repeat with the
layers of a model: every 64th launch might belong to one layer. Thanks to the blocks, every phase of the program counts.
The other launches are assigned to kinds in proportion to the examined ones, so the counts add up to all launches.

Timing: two events around a launch measure its time. The first launches of a kind are timed, then fewer and fewer (about
eight times the logarithm of the count). The events are read without waiting, after the GPU has passed them. An idle GPU
passes the first event before the launch is made, so the time includes the launch overhead. Such samples are kept apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import repeat
from operator import length_hint
from random import Random
from threading import RLock
from time import perf_counter, sleep
from types import FunctionType
from typing import Any, TypeAlias, TypeVar

from tilewright.runtime.arrays import CallValue, CudaEvent, Stream
from tilewright.runtime.capture.described import DescribedLaunch, LiveDescriptor, array_of
from tilewright.runtime.capture.program_call import ProgramCall
from tilewright.runtime.capture.record import Recorded, Times
from tilewright.task.tensors import DIVISOR

EXACT = 1000
"""The first launches of a kernel that are all examined. 1,000 launches are twenty steps of a model with 50 layers."""
ALWAYS = sys.maxsize
"""A number of launches that no program reaches. With this value instead of `EXACT`, every launch is examined."""
GROWTH, BLOCK = 64, 128
"""After n launches, a block has n/GROWTH launches, so about a hundred of a few thousand launches are examined. A block
has at most BLOCK launches, because then examining costs less per launch than counting. Of 100,000 launches, about 850
are examined. If a kind has 10 % of these launches, its share is then known within 2 percentage points (95 %
confidence)."""
FIRST = 4
"""The first launches of a kind that are all timed."""
SHARE = 8
"""After launch n, the next launch to be timed is n + n/SHARE. So timing disturbs at most one launch in SHARE."""
WAITING = 16
"""The most pairs of events of a kind that may wait to be read. While so many wait, no launch is timed."""
ALIGNMENT = DIVISOR - 1
"""The bits of an address on which compiled code may depend, as a mask."""
PLAIN = frozenset({int, bool, str, type(None)})
"""Types of arguments whose value is part of the key."""

NONE = Times()
Result = TypeVar("Result")
LaunchKey: TypeAlias = tuple[Hashable, ...]


class LaunchCounter:
    """Counts the launches of one kernel and decides which are examined. Each launch takes an item of the iterator
    `skip`, which needs no lock. If no item is left, the launch calls `count`, under a lock."""

    __slots__ = ("_before", "_block", "_exact", "_length", "_random", "_size", "skip")

    def __init__(self, exact: int, random: Random) -> None:
        self._exact, self._random = exact, random
        self.skip: repeat[None] = repeat(None, 0)
        self._before, self._length = 0, 0
        """The number of launches that were counted before the present `skip` was made, and the length of this
        `skip`."""
        self._block, self._size = exact, 1
        """The number of launches before the next block, and the size of the block with the next examined launch."""

    @property
    def total(self) -> int:
        return self._before + self._length - length_hint(self.skip)

    @property
    def is_exact(self) -> bool:
        """Whether the next launch will be examined, too, as all launches before it were."""
        return self._size == 1

    def count(self) -> int:
        """Counts a launch. Returns how many launches this launch represents; 0 if it need not be examined."""
        for _ in self.skip:  # the kernel object is new, or another thread has just made a new `skip`
            return 0
        size, number = self._size, self._before + self._length + 1
        self._before, self._length = number, 0
        if number >= self._exact:
            self._size = min(BLOCK, 1 + number // GROWTH)
            drawn = self._block + int(self._random.random() * self._size)
            self._block += self._size
            self._length = drawn - number
            self.skip = repeat(None, self._length)
        return size


@dataclass(eq=False, slots=True)
class Cell:
    """The number of examined launches of one kind."""

    certain: int = 0
    """The number of examined launches that represent only themselves, such as the first `EXACT` of a kernel."""
    samples: int = 0
    """The number of examined launches that were drawn from a block. Each represents all launches of its block."""
    represented: int = 0
    """The number of launches in the blocks that the ``samples`` represent, together."""

    @property
    def seen(self) -> int:
        return self.certain + self.samples

    def add(self, size: int, sign: int = 1) -> None:
        """Adds an examined launch that represents ``size`` launches. With ``sign`` = -1, removes it again."""
        if size == 1:
            self.certain += sign
        else:
            self.samples += sign
            self.represented += sign * size


def estimated(total: int, cells: Sequence[Cell]) -> dict[Cell, int]:
    """Distributes ``total`` launches over the cells, in proportion to the examined launches."""
    weights = [cell.represented for cell in cells]
    if not any(weights):  # hardly any launch came after the first ones, which were all examined
        weights = [cell.certain for cell in cells]
    shares = shared_out(max(0, total - sum(cell.certain for cell in cells)), weights)
    return {cell: cell.certain + share for cell, share in zip(cells, shares, strict=True)}


def shared_out(total: int, weights: Sequence[int]) -> list[int]:
    """Returns integers in proportion to ``weights`` that add up to ``total``; zeros if all weights are 0."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda index: -(total * weights[index] % whole))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares


def next_sample(number: int) -> int:
    """Returns the number of the next launch to time, if launch ``number`` (from 1) was timed last."""
    return number + max(1, number // SHARE) if number >= FIRST else number + 1


@dataclass(eq=False)
class _Events:
    """Two events around one launch on ``stream``."""

    start: CudaEvent
    end: CudaEvent
    stream: Stream
    first: bool
    """Whether the launch is the first of its kind."""
    busy: bool = False
    """Whether the GPU was still busy with earlier work when the launch was made."""


@dataclass
class Sampled:
    """The timed samples of one kind of launch."""

    busy: Times = NONE
    host: Times = NONE
    first: Times = NONE
    """The time of the first launch, if the GPU was idle. It may include up to half a second of compiling."""
    later: Times = NONE
    """The times of the other launches on an idle GPU."""
    waiting: list[_Events] = field(default_factory=list)
    lock: AbstractContextManager[bool] = field(default_factory=RLock)
    """This lock is reentrant, because a signal handler of the program may launch, too."""

    @property
    def idle(self) -> Times:
        return self.later if self.later.samples else self.first

    def call(self, launch: Callable[[], Result], stream: Stream, number: int) -> Result:
        """Makes launch ``number`` (from 1), between two events if possible. Returns the result of ``launch``."""
        try:
            events = self._events(stream, number == 1)
            if events is not None:
                events.start.record(events.stream)
        except Exception:
            events = None
        started = perf_counter()
        result = launch()
        took = (perf_counter() - started) * 1e6
        if number > 1:
            with self.lock:
                self.host = self.host + Times(1, took)
        if events is not None:
            with suppress(Exception):
                events.busy = not events.start.query()
                events.end.record(events.stream)
                with self.lock:
                    self.waiting.append(events)
        return result

    def read_all(self, until: float) -> None:
        """Reads all samples. Waits for the GPU at most until ``until``, a time of `perf_counter`."""
        with self.lock:
            self._read()
            while self.waiting and perf_counter() < until:
                sleep(0.001)
                self._read()

    def _read(self) -> None:
        """Reads the samples whose events the GPU has passed."""
        try:
            done = [events for events in self.waiting if events.end.query()]
            self.waiting = [events for events in self.waiting if events not in done]
            times = [(events, Times(1, events.start.elapsed_time(events.end) * 1e3)) for events in done]
        except Exception:  # an error of the GPU: the program's own calls report it
            self.waiting.clear()
            return
        for events, time in times:
            if events.busy:
                self.busy = self.busy + time
            elif events.first:
                self.first = time
            else:
                self.later = self.later + time

    def _events(self, stream: Stream, first: bool) -> _Events | None:
        """Returns two new events. Returns None without a GPU, or if too many events wait to be read."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return None
        with self.lock:
            self._read()
            if len(self.waiting) >= WAITING:
                return None
        if isinstance(stream, int):
            stream = torch.cuda.ExternalStream(stream)
        event = torch.cuda.Event
        return _Events(event(enable_timing=True), event(enable_timing=True), stream, first)


class LaunchKind:
    """One kind of launch, while the program runs."""

    __slots__ = ("call", "data", "error", "failed", "in_graph", "launch", "next", "own", "sampled")

    def __init__(self, launch: DescribedLaunch, data: dict[str, str], call: ProgramCall | None = None) -> None:
        self.launch, self.data, self.call, self.sampled = launch, data, call, Sampled()
        self.own, self.in_graph = Cell(), Cell()
        """Counts of launches that ran directly, and of launches that were captured into a CUDA graph."""
        self.next = 1
        """The number of the next launch to time, among the examined launches in `own`."""
        self.failed = 0
        self.error = ""


class RecordedKernel:
    """One kernel function with its hints. A program may make several kernel objects of one function."""

    def __init__(self, function: FunctionType, constants: tuple[bool, ...], counter: LaunchCounter) -> None:
        self.function = function
        """Kept alive, so that no other function gets its id."""
        self.constants = constants
        """For each parameter: whether it is a constant."""
        self.objects: dict[Hashable, Any] = {}
        """The kernel objects by handle. They are kept alive, because a handle may be the id of its object."""
        self.forget(counter)

    def forget(self, counter: LaunchCounter) -> None:
        self.counter = counter
        self.kinds: dict[LaunchKey, LaunchKind] = {}
        self.others, self.lost = Cell(), Cell()
        """Counts of two groups: launches of kinds beyond the limit, and launches that cannot be described."""

    def recorded(self) -> list[Recorded]:
        kinds = list(self.kinds.values())
        cells = [self.others, self.lost, *(cell for kind in kinds for cell in (kind.own, kind.in_graph))]
        counts = estimated(self.counter.total, cells)
        return [self._recorded(kind, counts, last=kind is kinds[-1]) for kind in kinds]

    def _recorded(self, kind: LaunchKind, counts: dict[Cell, int], last: bool) -> Recorded:
        cells = [kind.own, kind.in_graph, *([self.others] if last else [])]
        samples = kind.sampled
        return Recorded(
            kind.launch, count=sum(counts[cell] for cell in cells), in_graph=counts[kind.in_graph],
            failed=kind.failed, error=kind.error, data=kind.data, call=kind.call,
            busy=samples.busy, idle=samples.idle, host=samples.host,
            others=counts[self.others] if last else 0,
            estimated=sum(max(0, counts[cell] - cell.seen) for cell in cells),
        )  # fmt: skip


def key_of(grid: Sequence[int], args: Sequence[Any], constants: Sequence[bool]) -> LaunchKey:
    """Returns a key that is equal for all launches of one kind. The key has the types, because 1, 1.0 and True are
    equal."""
    torch = sys.modules.get("torch")
    tensor = None if torch is None else torch.Tensor
    key: list[Hashable] = [*grid]
    for value, constant in zip(args, constants, strict=False):
        made = type(value)
        key.append(made)  # type: ignore[arg-type]
        if made in PLAIN:
            key.append(value)
        elif made is tensor:  # inlined, because examining a launch spends most of its time here
            key += (value.shape, value.stride(), value.dtype, value.data_ptr() & ALIGNMENT)
        else:
            key.append(_part(value, constant, tensor))
    return tuple(key)


def _part(value: CallValue, constant: bool, tensor: type[Any] | None) -> Hashable:
    if isinstance(value, float):
        return value if constant else None
    if isinstance(value, (int, str)):
        return value
    if tensor is not None and isinstance(value, tensor):
        return value.shape, value.stride(), value.dtype, value.data_ptr() & ALIGNMENT
    if isinstance(value, (list, tuple)):
        return key_of((), value, (constant,) * len(value))
    if isinstance(value, LiveDescriptor):
        return _part(value.base, constant, tensor), value.shape, value.strides, value.block_shape, value.padding
    if (placed := array_of(value)) is None:
        return repr(value)
    array, address = placed
    return array.shape, array.strides, array.dtype, address & ALIGNMENT
