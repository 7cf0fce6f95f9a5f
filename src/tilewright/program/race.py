"""Races two versions of a program: whole runs, interleaved in random order.

A sample is one run: the mean time of its steady steps. If it has no steps, it is the time from the import of torch to
the end, or without torch the wall time. Steps of one run are correlated, because they share the clock of the chip and
the place of their memory; they are no samples of their own. A round runs both versions, in random order, and each order
is the first as often as the second. The ratios of the rounds give a distribution-free interval of their median
(`race.stats`). For two equal versions the random order makes a ratio above 1 as likely as one below, whatever else the
machine does. So a race of equal versions ends as "faster" with a probability of at most `TAIL`.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from tilewright.program.copies import Startable
from tilewright.program.run import ProgramFailed, ProgramRun, StepUnit, run_program
from tilewright.progress import Progress, silent
from tilewright.race.stats import Interval, bounds, fewest

Speed: TypeAlias = Literal["faster", "slower", "tied"]

TAIL = 0.025
"""The most probable error of a verdict "faster", over all looks of a race; the same for "slower"."""
FIRST_LOOK = fewest(TAIL)
"""The fewest rounds that can decide: six. All six ratios are on one side of 1 by chance in 1 of 64 races."""
TIE_BAND = 0.01
"""If the ratio is known to be within this of 1, the race ends as tied."""
WARM_UP = 0.25
"""The share of a run's steps, at its beginning, that are left out."""


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
    versions: Mapping[str, Startable], *, rounds: int = 25, seconds: float = 600.0, steps: int = 20, seed: int = 0,
    progress: Progress = silent,
) -> ProgramRace | ProgramFailed:  # fmt: skip
    """Races two versions of a program. Run the unchanged one in a copy, too, so that both have paths of one length.

    versions: name → program; the first is ``before``, the second ``after``.
    rounds, seconds: the race ends after so many pairs of runs, or if the next pair would take longer. A first pair is
    not counted: it fills caches.
    """

    def time_of(program: Startable) -> ProgramRun | ProgramFailed:
        return run_program(program, steps=steps, seconds=max(1.0, seconds))

    return raced(versions, time_of, rounds=rounds, seconds=seconds, seed=seed, progress=progress)


def raced(
    versions: Mapping[str, Startable], run: Callable[[Startable], ProgramRun | ProgramFailed], *, rounds: int,
    seconds: float, seed: int, progress: Progress = silent, now: Callable[[], float] = time.monotonic,
) -> ProgramRace | ProgramFailed:  # fmt: skip
    """Races with the given way to run a program; the rest is as in `race_programs`."""
    before, after = names = tuple(versions)
    pairs, orders, load = _Pairs(before, after, dict(looks(rounds))), _orders(random.Random(seed)), _load()
    began, longest = now(), 0.0
    for number in range(rounds + 1):  # the first pair warms up
        if now() - began + longest > seconds:
            break
        progress("race", max(0, number - 1), rounds, pairs.shown)
        started = now()
        runs = {names[at]: run(versions[names[at]]) for at in next(orders)}
        longest = max(longest, now() - started)
        done = _comparable(runs[before], runs[after], names)
        if isinstance(done, ProgramFailed):
            return done
        if number and pairs.add(*done):
            break
    if not pairs.count:
        return ProgramFailed("race", f"one pair of runs takes {longest:.3g} s; give the race more than {seconds:g} s")
    progress("race", rounds, rounds, pairs.shown)
    return pairs.result(f"{os.cpu_count()} processors, load {load} before the race and {_load()} after it")


def looks(rounds: int) -> Iterator[tuple[int, float]]:
    """Yields after which rounds a race decides, and the error of each side there; these add up to at most `TAIL`."""
    if rounds >= FIRST_LOOK:
        yield FIRST_LOOK, 2.0**-FIRST_LOOK
    later = [*range(13, rounds, 6), *([rounds] if rounds > FIRST_LOOK else [])]
    for at in later:  # few looks: each takes a part of the error
        yield at, (TAIL - 2.0**-FIRST_LOOK) / len(later)


def time_us(run: ProgramRun) -> float:
    """Returns the time of a step of a run, in µs: the mean of its steady steps, else that of the process."""
    steady = run.step_us[int(len(run.step_us) * WARM_UP) :]
    return statistics.fmean(steady) if steady else 1e6 * run.wall_s


class _Pairs:
    """The pairs of runs so far, and what they decide."""

    def __init__(self, before: str, after: str, planned: Mapping[int, float]) -> None:
        self.names, self.planned = (before, after), planned
        self.samples: dict[str, list[float]] = {before: [], after: []}
        self.ratio, self.decided = Interval(0.0, math.nan, math.inf, 1.0 - 2.0 * TAIL, 0), ""
        self.last: ProgramRun | None = None

    @property
    def count(self) -> int:
        return len(self.samples[self.names[0]])

    @property
    def shown(self) -> str:
        return f"time {self.names[1]} / {self.names[0]}: {self.ratio}" if self.count else ""

    def add(self, before: ProgramRun, after: ProgramRun) -> bool:
        """Adds a pair of runs. Returns whether the race is decided."""
        for name, run in zip(self.names, (before, after), strict=True):
            self.samples[name].append(time_us(run))
        self.last = before
        if self.count in self.planned:
            self._look(self.planned[self.count])
        return bool(self.decided)

    def _look(self, tail: float) -> None:
        before, after = (np.asarray(self.samples[name]) for name in self.names)
        low, high = (float(bound) for bound in bounds(after / before, tail))
        self.ratio = Interval(low, float(np.median(after / before)), high, 1.0 - 2.0 * tail, self.count)
        if high < 1.0 or low > 1.0:
            self.decided = "faster" if high < 1.0 else "slower"
        elif low >= 1.0 - TIE_BAND and high <= 1.0 + TIE_BAND:
            self.decided = "tied"

    def result(self, machine: str) -> ProgramRace:
        """Returns the result, after a last look if time ran out between two looks."""
        if not self.decided and self.count not in self.planned:
            self._look(next((tail for at, tail in self.planned.items() if at > self.count), TAIL))
        assert self.last is not None
        us = [statistics.median(self.samples[name]) for name in self.names]
        samples = {name: tuple(each) for name, each in self.samples.items()}
        decided, reason = self._verdict()
        return ProgramRace(
            self.ratio, us[0], us[1], samples, self.count, decided, reason, self.last.unit, self.last.device, machine
        )

    def _verdict(self) -> tuple[Speed, str]:
        after, before = reversed(self.names)
        measured = f"{after} takes {self.ratio} × the time of {before} in {self.count} pairs of runs"
        if self.decided == "faster":
            return "faster", measured
        if self.decided == "slower":
            return "slower", measured
        if self.decided == "tied":
            return "tied", f"{measured}: within {TIE_BAND:.0%}"
        if self.count < FIRST_LOOK:
            return "tied", f"{self.count} pairs of runs are too few to tell; a verdict needs {FIRST_LOOK}"
        return "tied", f"{measured}: no difference was shown"


def _orders(rng: random.Random) -> Iterator[tuple[int, int]]:
    """Yields random orders of the two versions. Of two orders one after the other, each is one of the two."""
    while True:
        first = rng.randrange(2)
        yield (first, 1 - first)
        yield (1 - first, first)


def _comparable(
    before: ProgramRun | ProgramFailed, after: ProgramRun | ProgramFailed, names: Sequence[str]
) -> tuple[ProgramRun, ProgramRun] | ProgramFailed:
    """Returns the two runs, or why they cannot be compared."""
    if isinstance(before, ProgramFailed):
        return replace(before, reason=f"{names[0]}: {before.reason}")
    if isinstance(after, ProgramFailed):
        return replace(after, reason=f"{names[1]}: {after.reason}")
    if before.unit != after.unit:
        return ProgramFailed("race", f"a step of {names[0]} is a {before.unit}, and of {names[1]} a {after.unit}")
    return before, after


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"
