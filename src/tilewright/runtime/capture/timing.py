"""How long launches take on the GPU, by few samples and without waiting for it.

Two events go round a launch now and then: the first launches of a kind, then ever fewer (about eight times
the logarithm of the count). They are read when they have passed, at a later sample or at the end. An event
that the GPU reaches at once, before the launch is even made, starts a time that holds the launch too: such
samples are kept apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from time import perf_counter, sleep
from typing import Any

from tilewright.runtime.capture.record import Times

FIRST = 4
"""So many launches of a kind are all timed."""
SHARE = 8
"""After n launches the next that is timed is n/SHARE further on: at most so much of the work is disturbed."""
WAITING = 16
"""So many pairs of events of a kind may wait to be read; further launches are not timed meanwhile."""


def next_sample(number: int) -> int:
    """The number of the next launch to time, after the one with ``number`` (from 1)."""
    return number + max(1, number // SHARE) if number >= FIRST else number + 1


NOTHING = Times()


@dataclass(eq=False)
class _Events:
    """Two events round one launch on ``stream``."""

    start: Any
    end: Any
    stream: Any
    first: bool
    """Whether the launch is the first of its kind."""
    busy: bool = False
    """Whether the GPU had not come to ``start`` when the launch was made."""


@dataclass
class Sampled:
    """The samples of one kind of launch."""

    busy: Times = NOTHING
    host: Times = NOTHING
    first: Times = NOTHING
    """Of the first launch on an idle GPU, which may wait half a second there while it is compiled."""
    later: Times = NOTHING
    """Of the others on an idle GPU."""
    waiting: list[_Events] = field(default_factory=list)
    lock: Any = field(default_factory=RLock)
    """Taken again where a signal comes whose handler in the program launches, too."""

    @property
    def idle(self) -> Times:
        return self.later if self.later.samples else self.first

    def call(self, launch: Callable[[], Any], stream: Any, number: int) -> Any:
        """Makes the launch between two events, if there are any to be had."""
        events = self._started(stream, number == 1)
        started = perf_counter()
        result = launch()
        took = (perf_counter() - started) * 1e6
        if number > 1:
            with self.lock:
                self.host = self.host.and_(Times(1, took))
        if events is not None:
            self._ended(events)
        return result

    def read_all(self, until: float) -> None:
        """Takes in the samples; those that the GPU has not done are waited for until then (`perf_counter`)."""
        with self.lock:
            self._read()
            while self.waiting and perf_counter() < until:
                sleep(0.001)
                self._read()

    def _read(self) -> None:
        """Takes in the samples that the GPU has done."""
        try:
            done = [one for one in self.waiting if one.end.query()]
            self.waiting = [one for one in self.waiting if one not in done]
            times = [(one, Times(1, one.start.elapsed_time(one.end) * 1e3)) for one in done]
        except Exception:  # an error of the GPU is the program's, and told by its own calls
            self.waiting.clear()
            return
        for one, time in times:
            if one.busy:
                self.busy = self.busy.and_(time)
            elif one.first:
                self.first = time
            else:
                self.later = self.later.and_(time)

    def _started(self, stream: Any, first: bool) -> _Events | None:
        """Two events for ``stream``, the first on its way; None where they cannot be had."""
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

    def _events(self, stream: Any, first: bool) -> _Events | None:
        """None without a GPU, and where many wait."""
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
