"""Splits the time of one GPU into computation, exposed communication, exposed copies and idle time.

The time of a GPU runs from the start of its first activity to the end of its last. The four parts add up to this time.
Communication is exposed while nothing computes. A copy is exposed while nothing computes or communicates.

A gap is idle time between two activities. The activity after a gap has a cause:

    host late    the call that launched the activity began after the gap had begun: the GPU waited for the host
    dependency   the activity was launched before the gap: it waited for another stream, for an event or for its start
    unknown      the trace does not contain the call
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.profile import intervals
from tilewright.profile.intervals import Times
from tilewright.profile.kinds import KINDS, Kind
from tilewright.profile.trace import NONE, Events, KinetoTrace

Cause: TypeAlias = Literal["host late", "dependency", "unknown"]


@dataclass(frozen=True)
class Split:
    """The time of one GPU from ``start`` to ``end``, as disjoint sets of times in nanoseconds."""

    start: int
    end: int
    compute: Times
    communication: Times
    """Exposed communication. ``copy`` also holds only exposed copies."""
    copy: Times
    idle: Times

    @property
    def span(self) -> int:
        return self.end - self.start


def split(activities: Events) -> Split:
    """Splits the time of one GPU into compute, exposed communication, exposed copies and idle time. ``activities``: at
    least one; each has a duration.
    """
    busy = {kind: busy_with(activities, kind) for kind in KINDS}
    start, end = int(activities.start.min()), int(activities.end.max())
    computing = busy["compute"]
    communicating = intervals.both(computing, busy["communication"])
    working = intervals.both(communicating, busy["copy"])
    return Split(
        start,
        end,
        compute=computing,
        communication=intervals.without(busy["communication"], computing),
        copy=intervals.without(busy["copy"], communicating),
        idle=intervals.gaps(working, start, end),
    )


def busy_with(activities: Events, kind: Kind) -> Times:
    """Returns the times during which an activity of this kind runs."""
    mine = activities.kind == KINDS.index(kind)
    return intervals.union(activities.start[mine], activities.end[mine])


@dataclass(frozen=True)
class Gap:
    """Idle time between two activities. ``before``, ``after`` and ``launch`` are indices of events; None if unknown."""

    start: int
    end: int
    cause: Cause
    before: int
    after: int
    launch: int | None

    @property
    def length(self) -> int:
        return self.end - self.start


def gaps(split: Split, activities: Events, launches: Launches) -> list[Gap]:
    """Returns the gaps of one GPU with their causes, in order."""
    by_end = np.argsort(activities.end, kind="stable")
    starts, ends = split.idle[:, 0], split.idle[:, 1]
    after = np.searchsorted(activities.start, ends, "left")
    before = by_end[np.searchsorted(activities.end[by_end], starts, "right") - 1]
    launched = launches.of(activities.correlation[after])
    found = []
    for start, end, first, last, launch in np.stack((starts, ends, before, after, launched), axis=1).tolist():
        late = launch != NONE and int(launches.calls.start[launch]) > start
        cause: Cause = "unknown" if launch == NONE else "host late" if late else "dependency"
        found.append(Gap(start, end, cause, first, last, None if launch == NONE else launch))
    return found


def within_steps(trace: KinetoTrace, first: int, last: int) -> KinetoTrace | None:
    """Returns the part of a trace that the steps from ``first`` to before ``last`` launched. Returns None if there are
    no such steps.

    An activity without a known call belongs to the steps if it runs during them.
    """
    steps = tuple(step for step in trace.steps if first <= step.number < last)
    if not steps:
        return None
    begin, end = min(step.start for step in steps), max(step.end for step in steps)
    called = Launches(trace.calls).of(trace.activities.correlation)
    at = trace.activities.start.copy()
    at[called != NONE] = trace.calls.start[called[called != NONE]]
    activities = trace.activities.where((at >= begin) & (at < end))
    calls = trace.calls.where((trace.calls.start >= begin) & (trace.calls.start < end))
    return replace(trace, steps=steps, activities=activities, calls=calls)


class Launches:
    """Finds the call of the host that launched an activity."""

    def __init__(self, calls: Events):
        self.calls = calls
        self._order = np.argsort(calls.correlation, kind="stable")
        self._sorted = calls.correlation[self._order]

    def of(self, correlations: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the indices of the launching calls; `NONE` if the trace does not contain the call."""
        if not len(self._sorted):
            return np.full(len(correlations), NONE)
        at = np.minimum(np.searchsorted(self._sorted, correlations, "left"), len(self._sorted) - 1)
        found = (self._sorted[at] == correlations) & (correlations > 0)
        return np.where(found, self._order[at], NONE)
