"""How long launches take on the GPU, from few samples and without waiting for it.

A launch is timed by two events around it: the first launches of a kind, then fewer and fewer (about eight times the
logarithm of the count). The events are read after the GPU has passed them, at a later sample or at the end. If the GPU
is idle, it passes the first event before the launch is made, and the time includes the launch on the host. Such
samples are kept apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from threading import RLock
from time import perf_counter, sleep
from typing import TypeVar

from tilewright.runtime.arrays import CudaEvent, Stream
from tilewright.runtime.capture.record import Times

FIRST = 4
"""The first launches of a kind, which are all timed."""
SHARE = 8
"""After launch n, launch n + n/SHARE is timed: at most one launch in SHARE is disturbed."""
WAITING = 16
"""Pairs of events of a kind that may wait to be read. Until one is read, no more launches are timed."""


def next_sample(number: int) -> int:
    """The number of the next launch to time, after the one with ``number`` (from 1)."""
    return number + max(1, number // SHARE) if number >= FIRST else number + 1


NOTHING = Times()
Result = TypeVar("Result")


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

    busy: Times = NOTHING
    host: Times = NOTHING
    first: Times = NOTHING
    """Of the first launch on an idle GPU, which may wait there for half a second while it is compiled."""
    later: Times = NOTHING
    """Of the others on an idle GPU."""
    waiting: list[_Events] = field(default_factory=list)
    lock: AbstractContextManager[bool] = field(default_factory=RLock)
    """Reentrant, because a signal handler of the program may launch too."""

    @property
    def idle(self) -> Times:
        return self.later if self.later.samples else self.first

    def call(self, launch: Callable[[], Result], stream: Stream, number: int) -> Result:
        """Makes the launch, between two events if possible."""
        events = self._started(stream, number == 1)
        started = perf_counter()
        result = launch()
        took = (perf_counter() - started) * 1e6
        if number > 1:
            with self.lock:
                self.host = self.host + Times(1, took)
        if events is not None:
            self._ended(events)
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

    def _started(self, stream: Stream, first: bool) -> _Events | None:
        """Two events for ``stream``, the first one recorded; None if that is not possible."""
        try:
            events = self._events(stream, first)
            if events is not None:
                events.start.record(events.stream)
        except Exception:
            return None
        return events

    def _ended(self, events: _Events) -> None:
        with suppress(Exception):
            events.busy = not events.start.query()
            events.end.record(events.stream)
            with self.lock:
                self.waiting.append(events)

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
