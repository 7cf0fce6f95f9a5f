"""Computes the figures of one GPU in one trace."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tilewright.profile import intervals
from tilewright.profile.figures import Figure, GapRow, GpuProfile
from tilewright.profile.kinds import GRAPH_LAUNCH, KINDS, PAGEABLE, SINGLE_PRECISION, WAIT
from tilewright.profile.rows import by_name
from tilewright.profile.sources import Sources
from tilewright.profile.split import Cause, Gap, Launches, Split, busy_with, gaps, split
from tilewright.profile.thresholds import SHORT_KERNEL_US
from tilewright.profile.timeline import timeline
from tilewright.profile.trace import Events, KinetoTrace

GAPS = 5
"""The number of gaps that are listed."""
CAUSES: dict[Cause, str] = {
    "host late": "idle time before activities whose launching call began after the gap did",
    "dependency": "idle time before activities that were launched earlier",
    "unknown": "idle time before activities whose launching call is not in the trace",
}


def gpu_profile(trace: KinetoTrace, device: int, sources: Sources) -> GpuProfile | None:
    """Returns the profile of one GPU. Returns None if no activity on the GPU has a duration."""
    every = trace.activities
    table = every.where((every.device == device) & (every.end > every.start))
    if not len(table):
        return None
    parts = split(table)
    launches = Launches(trace.calls)
    found = gaps(parts, table, launches)
    figures = _Figures(trace, table, parts, found, sources)
    return GpuProfile(
        trace=trace.path.name,
        device=device,
        rank=trace.rank,
        board=trace.boards.get(device, ""),
        figures={figure.name: figure for figure in figures.every()},
        kernels=by_name(table, sources, kinds=True),
        gaps=tuple(_row(gap, parts, trace, table, sources) for gap in sorted(found, key=lambda g: -g.length)[:GAPS]),
        timeline=timeline(trace, table, launches),
    )


def _row(gap: Gap, parts: Split, trace: KinetoTrace, table: Events, sources: Sources) -> GapRow:
    return GapRow(
        at_us=(gap.start - parts.start) / 1e3, us=gap.length / 1e3, cause=gap.cause,
        before=table.name_of(gap.before), after=table.name_of(gap.after), lines=_cited(gap, trace, table, sources),
    )  # fmt: skip


def _cited(gap: Gap, trace: KinetoTrace, table: Events, sources: Sources) -> tuple[str, ...]:
    """Returns where the trace has the two activities around a gap, and the call that ended it."""
    places = [table.place(gap.before), table.place(gap.after)]
    places += [] if gap.launch is None else [trace.calls.place(gap.launch)]
    return sources.cite(*places)


class _Figures:
    """Computes the figures of one GPU."""

    def __init__(self, trace: KinetoTrace, table: Events, parts: Split, found: list[Gap], sources: Sources):
        self.trace, self.table, self.parts, self.gaps, self.sources = trace, table, parts, found, sources
        self.lasted = table.end - table.start

    def every(self) -> Iterator[Figure]:
        yield self._of_all("time", self.parts.span / 1e6, "ms", "from the first activity to the end of the last")
        yield from self._split()
        yield from self._idle()
        yield from self._kernels()
        yield from self._copies()
        yield from self._host()

    def _split(self) -> Iterator[Figure]:
        parts, kinds = self.parts, self.table.kind
        of = {kind: kinds == n for n, kind in enumerate(KINDS)}
        yield self._share("compute", parts.compute, of["compute"], "union of the kernels that compute")
        how = "union of the communication kernels, without the times at which something computes"
        yield self._share("exposed communication", parts.communication, of["communication"], how)
        how = "union of copies and fills, without the times at which something computes or communicates"
        yield self._share("exposed copy", parts.copy, of["copy"], how)
        communicating = busy_with(self.table, "communication")
        yield self._share("communication", communicating, of["communication"], "union of the communication kernels")
        lines = self._cite_gaps(self.gaps)
        yield self._percent("idle", intervals.total(parts.idle), "the rest of the time: no activity runs", lines)

    def _idle(self) -> Iterator[Figure]:
        for cause, how in CAUSES.items():
            mine = [gap for gap in self.gaps if gap.cause == cause]
            yield self._percent(cause, sum(gap.length for gap in mine), how, self._cite_gaps(mine))
        idle = intervals.total(self.parts.idle)
        late = sum(gap.length for gap in self.gaps if gap.cause == "host late")
        how = "share of the idle time in which the host was late"
        yield Figure(name="host late of idle", value=late / idle if idle else None, unit="share", how=how)
        waited = list(self._after_waits())
        how = "idle time in which the host waited for the GPU (synchronize, or a blocking copy) before it launched"
        yield self._percent("host waited", sum(gap.length for gap in waited), how, self._cite_gaps(waited))

    def _after_waits(self) -> Iterator[Gap]:
        """Yields the gaps caused by the host waiting for the GPU.

        During such a gap, a waiting call of the host returns, and then the host launches the next activity.
        """
        calls = self.trace.calls
        waits = self._calls_like(WAIT)
        ends = np.sort(calls.end[waits])
        for gap in self.gaps:
            if gap.cause == "host late" and gap.launch is not None:
                at = np.searchsorted(ends, gap.start, "left")
                if at < len(ends) and ends[at] <= calls.start[gap.launch]:
                    yield gap

    def _kernels(self) -> Iterator[Figure]:
        kernels = self.table.kind != KINDS.index("copy")
        short = kernels & (self.lasted < SHORT_KERNEL_US.limit * 1000)
        yield self._count("kernels", kernels, "kernels, also of communication")
        yield self._count("short kernels", short, f"kernels that take less than {SHORT_KERNEL_US.limit:g} µs")
        share = short.sum() / kernels.sum() if kernels.any() else None
        yield self._union("time of short kernels", short, "union of the short kernels")
        how = "share of the kernels that are short"
        yield Figure(name="short kernels of all", value=share, unit="share", how=how, lines=self._cite(short))
        launches = self._calls_like(GRAPH_LAUNCH)
        inside = (self.table.graph > 0) | np.isin(self.table.correlation, self.trace.calls.correlation[launches])
        cited = [self.trace.calls.place(int(row)) for row in np.flatnonzero(launches)[:1]]
        yield Figure(
            name="graph launches", value=int(launches.sum()), unit="", how="calls of cudaGraphLaunch",
            lines=self.sources.cite(*cited),
        )  # fmt: skip
        yield self._count("activities of graphs", inside, "activities that a CUDA graph launched")
        single = kernels & self._named(SINGLE_PRECISION)
        yield self._union("float32 products", single, "union of matrix products of float32 on the CUDA cores")

    def _copies(self) -> Iterator[Figure]:
        pageable = (self.table.kind == KINDS.index("copy")) & self._named(PAGEABLE)
        yield self._union("pageable copies", pageable, "union of the copies from or to pageable memory")
        yield self._count("pageable copy count", pageable, "copies from or to pageable memory")

    def _host(self) -> Iterator[Figure]:
        waits = np.flatnonzero(self._calls_like(WAIT))
        cited = [self.trace.calls.place(int(row)) for row in waits[:1]]
        how = "calls in which the host waits for the GPU, in the whole trace"
        yield Figure(name="host waits", value=len(waits), unit="", how=how, lines=self.sources.cite(*cited))

    def _named(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Returns a mask of the activities whose name matches."""
        fits = np.array([bool(pattern.search(name)) for name in self.table.names], bool)
        return fits[self.table.name]

    def _calls_like(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        calls = self.trace.calls
        fits = np.array([bool(pattern.match(name)) for name in calls.names], bool)
        return fits[calls.name] if len(calls) else np.zeros(0, bool)

    def _share(self, name: str, times: intervals.Times, chosen: NDArray[np.bool_], how: str) -> Figure:
        return self._percent(name, intervals.total(times), how, self._cite(chosen))

    def _union(self, name: str, chosen: NDArray[np.bool_], how: str) -> Figure:
        """Returns the share of the time during which at least one of the chosen activities runs."""
        return self._share(name, intervals.union(self.table.start[chosen], self.table.end[chosen]), chosen, how)

    def _percent(self, name: str, length: int, how: str, lines: tuple[str, ...]) -> Figure:
        return Figure(name=name, value=length / self.parts.span, unit="share", how=how, lines=lines)

    def _count(self, name: str, chosen: NDArray[np.bool_], how: str) -> Figure:
        return Figure(name=name, value=int(chosen.sum()), unit="", how=how, lines=self._cite(chosen))

    def _of_all(self, name: str, value: float, unit: str, how: str) -> Figure:
        first, last = int(np.argmin(self.table.start)), int(np.argmax(self.table.end))
        lines = self.sources.cite(self.table.place(first), self.table.place(last))
        return Figure(name=name, value=value, unit=unit, how=how, lines=lines)

    def _cite(self, chosen: NDArray[np.bool_]) -> tuple[str, ...]:
        """Returns where the trace has the first and the longest of the chosen activities."""
        rows = np.flatnonzero(chosen)
        if not len(rows):
            return ()
        longest = rows[np.argmax(self.lasted[rows])]
        return self.sources.cite(*(self.table.place(int(row)) for row in (rows[0], longest)))

    def _cite_gaps(self, found: list[Gap]) -> tuple[str, ...]:
        """Returns where the trace has the two activities around the longest gap, and the call that ended it."""
        if not found:
            return ()
        return _cited(max(found, key=lambda gap: gap.length), self.trace, self.table, self.sources)
