"""Races two versions of a program: whole runs, interleaved in random order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tilewright.program.copies import Startable
from tilewright.program.run import ProgramFailed, StepUnit
from tilewright.progress import Progress, silent
from tilewright.race.stats import Interval

Speed: TypeAlias = Literal["faster", "slower", "tied"]


@dataclass(frozen=True)
class ProgramRace:
    """The result of a race between ``before`` and ``after``, the first and the second of the versions."""

    ratio: Interval
    """Of the median of after's time / before's time, over pairs of runs."""
    before_us: float
    """Median over the runs of the time of a step, in µs."""
    after_us: float
    samples: Mapping[str, tuple[float, ...]] = field(repr=False)
    """Version → the time of a step in each of its runs, in µs; paired by position."""
    rounds: int
    """How many pairs of runs count."""
    decided: Speed
    reason: str
    unit: StepUnit = "optimizer step"
    device: str = "cpu"
    machine: str = ""
    """The state of the machine: processors, and their load before and after the race."""


def race_programs(
    versions: Mapping[str, Startable], *, rounds: int = 24, seconds: float = 600.0, steps: int = 20, seed: int = 0,
    progress: Progress = silent,
) -> ProgramRace | ProgramFailed:  # fmt: skip
    """Races two versions of a program. Use a copy for the unchanged one, too.

    rounds, seconds: the race ends after so many pairs of runs, or if the next pair would take longer.
    """
    raise NotImplementedError
