"""Makes the time line of one step: activities on each stream of a GPU, and simultaneous calls of the host."""

from __future__ import annotations

import numpy as np

from tilewright.profile.figures import Bar, TimeLine
from tilewright.profile.kinds import KINDS, LAUNCH, WAIT
from tilewright.profile.split import Launches
from tilewright.profile.trace import NONE, Events, KinetoTrace, ProfilerStep

MOST_BARS = 600
"""The most bars of one kind in one row of the time line. Activities become one bar if the time between them is less
than the step's length divided by this number."""


def timeline(trace: KinetoTrace, table: Events, launches: Launches) -> TimeLine:
    """Returns the time line of the step of median length. If the trace has no steps, returns the time line of the whole
    trace.

    On the GPU, a step begins with the first activity that the step's host code launched, and ends with the last.
    """
    step, launched = _median_step(trace, table, launches)
    name = f"step {step.number}" if step else "the whole trace"
    begin = min(int(launched.start.min()), step.start) if step else int(launched.start.min())
    end = max(int(launched.end.max()), step.end) if step else int(launched.end.max())
    table = table.where((table.start < end) & (table.end > begin))
    lanes: dict[str, tuple[Bar, ...]] = {}
    calls = trace.calls.where((trace.calls.start < end) & (trace.calls.end > begin))
    kinds = [_kind_of_call(calls.name_of(row)) for row in range(len(calls))]
    if calls := calls.where(np.array([kind != "" for kind in kinds], bool)):
        lanes["host"] = _bars(calls, [kind for kind in kinds if kind], begin, end)
    for stream in np.unique(table.stream).tolist():
        mine = table.where(table.stream == stream)
        lanes[f"stream {stream}"] = _bars(mine, [KINDS[kind] for kind in mine.kind], begin, end)
    return TimeLine(name, (end - begin) / 1e3, lanes)


def _kind_of_call(name: str) -> str:
    return "wait" if WAIT.match(name) else "launch" if LAUNCH.match(name) else ""


def _median_step(trace: KinetoTrace, table: Events, launches: Launches) -> tuple[ProfilerStep | None, Events]:
    """Returns the step of median length with its activities. Returns None and all activities if the trace has no
    steps."""
    rows = launches.of(table.correlation)
    known = rows != NONE
    called = np.zeros(len(rows), np.int64)
    called[known] = trace.calls.start[rows[known]]
    for step in _around_the_median(trace.steps):
        mine = known & (called >= step.start) & (called < step.end)
        if mine.any():
            return step, table.where(mine)
    return None, table


def _around_the_median(steps: tuple[ProfilerStep, ...]) -> list[ProfilerStep]:
    by_length = sorted(steps, key=lambda step: step.end - step.start)
    return by_length[len(by_length) // 2 :] + by_length[: len(by_length) // 2][::-1]


def _bars(table: Events, kinds: list[str], begin: int, end: int) -> tuple[Bar, ...]:
    """Returns the activities between two times as bars."""
    apart = (end - begin) / MOST_BARS
    bars = []
    for kind in dict.fromkeys(kinds):
        rows = [row for row, each in enumerate(kinds) if each == kind]
        group = [rows[0]]
        reach = int(table.end[rows[0]])
        for row in rows[1:]:
            if table.start[row] - reach > apart:
                bars.append(_bar(table, kind, group, begin, end))
                group = []
            group.append(row)
            reach = max(reach, int(table.end[row]))
        bars.append(_bar(table, kind, group, begin, end))
    return tuple(bars)


def _bar(table: Events, kind: str, rows: list[int], begin: int, end: int) -> Bar:
    start = max(begin, int(table.start[rows].min()))
    stop = min(end, int(table.end[rows].max()))
    longest = max(rows, key=lambda row: int(table.end[row] - table.start[row]))
    return Bar(kind, (start - begin) / 1e3, (stop - start) / 1e3, len(rows), table.name_of(longest))
