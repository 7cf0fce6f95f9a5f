"""Who is verified and raced, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.race.stats import median_interval
from tilewright.records import Checked, Json, MachineCode, MeasuredTime
from tilewright.worker.messages import Source


@dataclass(frozen=True)
class Contestant:
    """Who is verified and timed."""

    name: str
    source: Source
    cost: tuple[int, ...] = ()
    """What it occupies: among the tied the smaller is preferred."""


@dataclass(frozen=True)
class Eliminated:
    """A contestant that did not get through: it crashed, hung, could not be launched, or was wrong."""

    name: str
    reason: str
    checked: Checked | None = None
    """The verdict, where its outputs are what is wrong."""


@dataclass(frozen=True)
class Finisher:
    """What a race says of a contestant that went through it."""

    name: str
    state: str
    """Of `protocol.Raced`: leader, tied, dropped, undecided, failed."""
    reason: str
    measured: MeasuredTime | None


@dataclass(frozen=True)
class RaceResult:
    """A race on one workload; ``raced`` is empty if none went through."""

    raced: tuple[Finisher, ...]
    eliminated: tuple[Eliminated, ...]
    winner: str | None = None
    record: Mapping[str, Json] = field(default_factory=dict)
    """Policy, A/A noise, rounds, monitor."""
    lost: str = ""
    """Why nothing could be raced, where that is no contestant's fault."""


def wrong_after(name: str, reason: str) -> Eliminated:
    """The outputs of ``name`` were wrong after it had been timed."""
    return Eliminated(name, reason, Checked("incorrect", reason))


def cost_of(code: MachineCode | None) -> tuple[int, ...]:
    """What a configuration occupies; among the tied the smaller is preferred: CTAs in a cluster, then
    registers of a CTA, shared memory, instructions."""
    if code is None:
        return (1 << 30,)
    return (code.cluster, code.registers * code.threads, code.shared_bytes, code.instructions)


def measured_of(samples: Sequence[float]) -> MeasuredTime:
    """Median and its 95 % distribution-free interval, in µs."""
    interval = median_interval(samples, 0.95)
    return MeasuredTime(interval.centre, (interval.low, interval.high), tuple(samples))
