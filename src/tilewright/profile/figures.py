"""The records of a profile. Each number cites the lines of the trace that it comes from (`sources`)."""

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
    """One number.

    value: None if it was not measured.
    unit: ``ms``, ``share`` (of 1), or "" for a count.
    how: how it follows from the trace.
    lines: the sources of some of the events, among them the first and the longest.
    """

    name: str
    value: float | None
    unit: str
    how: str
    lines: tuple[str, ...] = ()


def percent(share: float) -> str:
    """Formats a share of 1, such as ``12.5 %``."""
    return f"{share:.1%}".replace("%", " %")


@dataclass(frozen=True, kw_only=True)
class NameRow:
    """All activities or calls of one name. Times are µs; ``share`` is of the time of all rows of the table."""

    name: str
    count: int
    total_us: float
    mean_us: float
    median_us: float
    min_us: float
    max_us: float
    share: float
    kind: Kind | None = None
    """None for calls of the host."""
    lines: tuple[str, ...] = ()
    """The longest of them."""


@dataclass(frozen=True, kw_only=True)
class GapRow:
    """One gap: ``at_us`` after the first activity, between the activities ``before`` and ``after``."""

    at_us: float
    us: float
    cause: Cause
    before: str
    after: str
    lines: tuple[str, ...]
    """The activities before and after, and the call that launched the latter, if it is known."""


@dataclass(frozen=True)
class Bar:
    """Activities of one kind that lie so close that they are drawn as one. Times are µs from the line's start."""

    kind: str
    at_us: float
    us: float
    count: int
    name: str
    """The longest of them."""


@dataclass(frozen=True)
class TimeLine:
    """What happens in one step: on each stream of the GPU, and on the host. ``lanes``: name → bars."""

    name: str
    us: float
    lanes: Mapping[str, tuple[Bar, ...]]


@dataclass(frozen=True, kw_only=True)
class GpuProfile:
    """One GPU in one trace."""

    trace: str
    device: int
    rank: int | None
    board: str
    figures: Mapping[str, Figure]
    """By name: ``compute``, ``idle``, ``host late`` and so on."""
    kernels: tuple[NameRow, ...]
    """All activities by name, the longest total first."""
    gaps: tuple[GapRow, ...]
    """The longest."""
    timeline: TimeLine

    @property
    def label(self) -> str:
        """Such as ``GPU 0`` or ``rank 3, GPU 0``."""
        return f"rank {self.rank}, GPU {self.device}" if self.rank is not None else f"GPU {self.device}"

    def value(self, name: str) -> float | None:
        return self.figures[name].value


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """One trace file."""

    file: str
    digest: str
    rank: int | None
    events: int
    steps: int
    span_us: float
    """From the first activity or call to the last."""
    calls: tuple[NameRow, ...]
    """The calls of the host into CUDA, by name."""
    counters: tuple[Figure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProfileFinding:
    """Something that costs time, and what to do.

    id: the beginning of the trace's hash, the kind, and the GPU; the same trace gives the same ids.
    impact: the share of the GPU's time that it concerns.
    evidence: the numbers that made it a finding, with their thresholds.
    specialist: who can mend it. tag: the principle by which.
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


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Where the time goes.

    command: the program, if Tilewright started it.
    steps_us: the times of optimizer steps that no profiler disturbed, by events.
    rung: how it was measured. why_not_higher: what the next rung would need.
    raw: the quoted lines.
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
        """The finding with the greatest impact; None without one."""
        return self.findings[0] if self.findings else None
