"""The records of a profile. Each number cites the lines of the trace from which it was computed (`sources`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tilewright.profile.kinds import Kind
from tilewright.profile.ladder import Rung
from tilewright.profile.sources import RawLine
from tilewright.profile.split import Cause

Level: TypeAlias = Literal["High", "Medium", "Low"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of a profile.

    value: the number in ``unit``; None if it was not measured.
    unit: ``ms``, ``share`` (from 0 to 1), or "" for a count.
    how: how the number was computed from the trace.
    lines: the places in the trace of some events behind the number, including the first and the longest event.
    """

    name: str
    value: float | None
    unit: str
    how: str
    lines: tuple[str, ...] = ()


def percent(share: float) -> str:
    """Formats a share from 0 to 1 in percent, such as ``12.5 %``."""
    return f"{share:.1%}".replace("%", " %")


@dataclass(frozen=True, kw_only=True)
class NameRow:
    """All activities or calls of one name. Times are in µs. ``share``: this name's share of the summed time of all
    rows."""

    name: str
    count: int
    total_us: float
    mean_us: float
    median_us: float
    min_us: float
    max_us: float
    share: float
    kind: Kind | None = None
    """The kind of the activity; None for calls of the host."""
    lines: tuple[str, ...] = ()
    """The places in the trace of the longest activities or calls of this name."""


@dataclass(frozen=True, kw_only=True)
class GapRow:
    """One gap between the activities ``before`` and ``after``. ``at_us``: the start of the gap, in µs after the start
    of the first activity."""

    at_us: float
    us: float
    cause: Cause
    before: str
    after: str
    lines: tuple[str, ...]
    """The places in the trace of both activities and, if known, of the call that launched the later one."""


@dataclass(frozen=True)
class Bar:
    """Activities of one kind with so little time between them that they are drawn as one bar. Times are in µs from the
    start of the time line."""

    kind: str
    at_us: float
    us: float
    count: int
    name: str
    """The name of the longest activity."""


@dataclass(frozen=True)
class TimeLine:
    """The activities of one step. ``lanes``: the bars of the host and of each stream, by name."""

    name: str
    us: float
    lanes: Mapping[str, tuple[Bar, ...]]


@dataclass(frozen=True, kw_only=True)
class GpuProfile:
    """The profile of one GPU in one trace."""

    trace: str
    device: int
    rank: int | None
    board: str
    figures: Mapping[str, Figure]
    """The figures by name: ``compute``, ``idle``, ``host late`` and so on."""
    kernels: tuple[NameRow, ...]
    """All activities by name. The name with the longest total time is first."""
    gaps: tuple[GapRow, ...]
    """The longest gaps."""
    timeline: TimeLine

    @property
    def label(self) -> str:
        """The name of the GPU in reports, such as ``GPU 0`` or ``rank 3, GPU 0``."""
        return f"rank {self.rank}, GPU {self.device}" if self.rank is not None else f"GPU {self.device}"

    def value(self, name: str) -> float | None:
        return self.figures[name].value


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """Facts about one trace file."""

    file: str
    digest: str
    rank: int | None
    events: int
    steps: int
    span_us: float
    """Time in µs from the start of the first activity or call to the end of the last."""
    calls: tuple[NameRow, ...]
    """The host's calls of CUDA functions, by name."""
    counters: tuple[Figure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProfileFinding:
    """A cause of lost time, and the advice to remove it.

    id: the beginning of the trace's hash, the kind, and the GPU. The same trace gives the same ids.
    impact: the share of the GPU's time that the finding concerns.
    evidence: the numbers behind the finding. threshold: the limits that they exceed.
    specialist: the specialist who can remove the cause. tag: the principle of the remedy, such as fusion.
    places: lines of the program's source that may be the cause, such as ``train.py:12 (sum total)``; read from the
        source, not from the trace. Empty if the program is not known.
    """

    id: str
    kind: str
    level: Level
    impact: float
    text: str
    evidence: tuple[Figure, ...]
    threshold: str
    advice: str
    specialist: str
    tag: str
    places: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The result of `profile`: how the GPUs spend their time.

    command: the program, if Tilewright started it.
    steps_us: the times of optimizer steps that ran without a profiler, measured with CUDA events.
    rung: the method of measurement (`ladder`). why_not_higher: the reason why no more detailed method was used.
    raw: the quoted lines of the trace.
    """

    traces: tuple[TraceFacts, ...]
    gpus: tuple[GpuProfile, ...]
    findings: tuple[ProfileFinding, ...]
    rung: Rung
    why_not_higher: str
    command: Sequence[str] = ()
    steps_us: tuple[float, ...] = ()
    raw: tuple[RawLine, ...] = field(default=(), repr=False)

    @property
    def bottleneck(self) -> ProfileFinding | None:
        """The finding with the greatest impact; None if there is no finding."""
        return self.findings[0] if self.findings else None
