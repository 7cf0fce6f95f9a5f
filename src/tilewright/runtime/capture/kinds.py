"""Kinds of launch: how often each was made and how long it takes on the GPU, from few samples.

Launches of one kind have equal kernels, hints and grids, equal shapes, strides, dtypes and alignments of their arrays,
and equal other arguments. The value of a floating-point scalar does not count, unless it is a constant.

Counting: finding the kind of a launch takes as long as the launch. So all launches of a kernel are counted, which is
one step of an iterator. The first `EXACT` are looked at, and then one of each block of launches, drawn at random. At
random, because launches repeat with the layers of a model: every 64th launch might belong to one layer. One of each
block, so that each phase of the program has its share. The other launches are assigned to kinds in proportion to those
that were looked at, so the counts of a kernel's kinds add up to its launches.

Timing: a launch is timed by two events around it: the first launches of a kind, then fewer and fewer (about eight times
the logarithm of the count). The events are read after the GPU has passed them, at a later sample or at the end, without
waiting for it. If the GPU is idle, it passes the first event before the launch is made, and the time includes the
launch on the host. Such samples are kept apart.
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

from tilewright.runtime.arrays import CallValue, CudaEvent, KernelObject, Stream
from tilewright.runtime.capture.described import DescribedLaunch, array_of
from tilewright.runtime.capture.record import Recorded, Times

EXACT = 1000
"""Launches of a kernel that are all looked at, which takes a few milliseconds. Twenty steps of a model with 50 layers
are counted without an estimate."""
ALWAYS = sys.maxsize
"""Instead of `EXACT`: every launch is looked at."""
GROWTH, BLOCK = 64, 128
"""After n launches a block has n/GROWTH launches, so that of a few thousand launches a hundred are looked at. It never
has more than BLOCK: then a look adds less to the average launch than the count does. Of 100,000 launches about 850 are
looked at, and the share of a kind that is a tenth of them is known within 2 points (95 %)."""
FIRST = 4
"""The first launches of a kind, which are all timed."""
SHARE = 8
"""After launch n, launch n + n/SHARE is timed: at most one launch in SHARE is disturbed."""
WAITING = 16
"""Pairs of events of a kind that may wait to be read. Until one is read, no more launches are timed."""
ALIGNMENT = 15
"""Of an address: a launch specialises on whether it is a multiple of 16."""
PLAIN = frozenset({int, bool, str, type(None)})
"""Types of arguments whose value is a part of the key."""

NONE = Times()
Result = TypeVar("Result")
LaunchKey: TypeAlias = tuple[Hashable, ...]


class LaunchCounter:
    """Counts the launches of one kernel and decides which are looked at.

    Each launch takes an item of `skip`, which is atomic, and passes. If there is no item left, it calls `come`, one
    thread at a time.
    """

    __slots__ = ("_before", "_block", "_exact", "_length", "_random", "_size", "skip")

    def __init__(self, exact: int, random: Random) -> None:
        self._exact, self._random = exact, random
        self.skip: repeat[None] = repeat(None, 0)
        self._before, self._length = 0, 0
        """Launches before `skip` was made, and its length then."""
        self._block, self._size = exact, 1
        """Launches before the next block; size of the one that the next look is in."""

    @property
    def made(self) -> int:
        return self._before + self._length - length_hint(self.skip)

    def come(self) -> int:
        """Counts a launch. Returns how many launches it represents; 0 if it is not looked at."""
        for _ in self.skip:  # its kernel object is not known, or another thread came first and made a new one
            return 0
        size, number = self._size, self._before + self._length + 1
        self._before, self._length = number, 0
        if number >= self._exact:
            self._size = min(BLOCK, 1 + number // GROWTH)
            place = self._block + int(self._random.random() * self._size)
            self._block += self._size
            self._length = place - number
            self.skip = repeat(None, self._length)
        return size


@dataclass(eq=False, slots=True)
class Cell:
    """A count of launches that were looked at."""

    certain: int = 0
    """Launches that represent only themselves."""
    samples: int = 0
    """Launches that represent others too; `stand_for`: how many."""
    stand_for: int = 0

    @property
    def seen(self) -> int:
        return self.certain + self.samples

    def take_back(self, size: int) -> None:
        self.add(size, -1)

    def add(self, size: int, sign: int = 1) -> None:
        """A launch that represents ``size``."""
        if size == 1:
            self.certain += sign
        else:
            self.samples += sign
            self.stand_for += sign * size


def estimated(made: int, cells: Sequence[Cell]) -> dict[Cell, int]:
    """How many of ``made`` launches belong to each cell; together, all of them."""
    rest = made - sum(cell.certain for cell in cells)
    weights = [cell.stand_for for cell in cells]
    if not any(weights):  # too few came after the first, which were all looked at
        weights = [cell.certain for cell in cells]
    shares = shared_out(max(0, rest), weights)
    return {cell: cell.certain + share for cell, share in zip(cells, shares, strict=True)}


def shared_out(total: int, weights: Sequence[int]) -> list[int]:
    """Integers in proportion to ``weights`` that add up to ``total``; all 0 if the weights are."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda index: -(total * weights[index] % whole))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares


def next_sample(number: int) -> int:
    """The number of the next launch to time, after the one with ``number`` (from 1)."""
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
    """Whether the GPU had not yet passed ``start`` when the launch was made."""


@dataclass
class Sampled:
    """The samples of one kind of launch."""

    busy: Times = NONE
    host: Times = NONE
    first: Times = NONE
    """Of the first launch on an idle GPU, which may wait there for half a second while it is compiled."""
    later: Times = NONE
    """Of the others on an idle GPU."""
    waiting: list[_Events] = field(default_factory=list)
    lock: AbstractContextManager[bool] = field(default_factory=RLock)
    """Reentrant, because a signal handler of the program may launch too."""

    @property
    def idle(self) -> Times:
        return self.later if self.later.samples else self.first

    def call(self, launch: Callable[[], Result], stream: Stream, number: int) -> Result:
        """Makes the launch, between two events if possible."""
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
        """Reads all samples. Waits for the GPU until then (`perf_counter`)."""
        with self.lock:
            self._read()
            while self.waiting and perf_counter() < until:
                sleep(0.001)
                self._read()

    def _read(self) -> None:
        """Reads the samples that the GPU has passed."""
        try:
            done = [events for events in self.waiting if events.end.query()]
            self.waiting = [events for events in self.waiting if events not in done]
            times = [(events, Times(1, events.start.elapsed_time(events.end) * 1e3)) for events in done]
        except Exception:  # the program's own calls report an error of the GPU
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
        """None without a GPU, and if many wait."""
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
    """One kind of launch."""

    __slots__ = ("data", "error", "failed", "in_graph", "launch", "next", "own", "sampled")

    def __init__(self, launch: DescribedLaunch, data: dict[str, str]) -> None:
        self.launch, self.data, self.sampled = launch, data, Sampled()
        self.own, self.in_graph = Cell(), Cell()
        """Launches that the process made, and those that it recorded into a CUDA graph."""
        self.next = 1
        """The number of its next launch to time, among its own launches that are looked at."""
        self.failed = 0
        self.error = ""


class RecordedKernel:
    """One function with its hints, for all kernel objects that the program makes of it."""

    def __init__(self, function: FunctionType, constants: tuple[bool, ...], counter: LaunchCounter) -> None:
        self.function = function
        """Kept, so that no other function gets its id."""
        self.constants = constants
        """Of each parameter, whether it is a constant."""
        self.objects: list[KernelObject] = []
        self.forget(counter)

    def forget(self, counter: LaunchCounter) -> None:
        self.counter = counter
        self.kinds: dict[LaunchKey, LaunchKind] = {}
        self.others, self.lost = Cell(), Cell()
        """Launches of more kinds than are described, and launches that cannot be described."""

    def recorded(self) -> list[Recorded]:
        kinds = list(self.kinds.values())
        cells = [self.others, self.lost, *(cell for kind in kinds for cell in (kind.own, kind.in_graph))]
        counts = estimated(self.counter.made, cells)
        return [self._recorded(kind, counts, last=kind is kinds[-1]) for kind in kinds]

    def _recorded(self, kind: LaunchKind, counts: dict[Cell, int], last: bool) -> Recorded:
        cells = [kind.own, kind.in_graph, *([self.others] if last else [])]
        times = kind.sampled
        return Recorded(
            kind.launch,
            count=sum(counts[cell] for cell in cells),
            in_graph=counts[kind.in_graph],
            failed=kind.failed,
            error=kind.error,
            busy=times.busy,
            idle=times.idle,
            host=times.host,
            data=kind.data,
            others=counts[self.others] if last else 0,
            estimated=sum(max(0, counts[cell] - cell.seen) for cell in cells),
        )


def key_of(grid: Sequence[int], args: Sequence[Any], constants: Sequence[bool]) -> LaunchKey:
    """Equal for launches of one kind of one kernel. It has the types too, because 1, 1.0 and True are equal."""
    torch = sys.modules.get("torch")
    tensor = None if torch is None else torch.Tensor
    key: list[Hashable] = [*grid]
    for value, constant in zip(args, constants, strict=False):
        made = type(value)
        key.append(made)  # type: ignore[arg-type]
        if made in PLAIN:
            key.append(value)
        elif made is tensor:  # inlined: this is most of the cost of a look
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
    if (placed := array_of(value)) is None:
        return repr(value)
    array, address = placed
    return array.shape, array.strides, array.dtype, address & ALIGNMENT
