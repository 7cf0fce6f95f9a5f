"""Races two versions of a program: in whole runs in random order, or in slices of a few steps (`slices`).

A run gives one sample: the mean time of its steady steps. For a run without steps it is the time from the import of
torch to the end, or, without torch, the wall time. Single steps are not samples: the steps of one run are correlated,
because they share the chip's clock rate and the memory addresses. A round runs both versions in random order. Each
version comes first equally often. The signed-rank test turns the ratios of the rounds into an interval of their centre
(`race.stats.paired_bounds`). If the versions are equal, the random order makes a ratio r as likely as 1 / r, whatever
else the machine does. So a race of equal versions ends as "faster" with a probability of at most `TAIL`.
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
from tilewright.program.early import Meanwhile, memory
from tilewright.program.run import ProgramFailed, ProgramRun, StepUnit, run_program
from tilewright.program.slices import Slicing, run_in_slices
from tilewright.progress import Progress, silent
from tilewright.race.stats import Interval, fewest, paired_bounds

Speed: TypeAlias = Literal["faster", "slower", "tied"]

TAIL = 0.025
"""The largest probability of a wrong verdict "faster", over all looks of a race; the same for "slower"."""
FIRST_LOOK = fewest(TAIL)
"""The fewest rounds that can decide: six. All six ratios are on one side of 1 by chance in 1 of 64 races."""
GRACE = 2.0
"""Until the first look, a race may take its seconds times this: with fewer rounds it shows nothing."""
TIE_BAND = 0.01
"""If the ratio is known to be within this of 1, the race ends as tied."""
WARM_UP = 0.25
"""The share of a run's steps, at its beginning, that are left out."""
HOST_SHARE, GPU_SHARE = 0.6, 0.9
"""The largest shares of the free memory that runs may take together, if they are started at the same time."""
GPU_CONTEXT = 700 << 20
"""Bytes of a GPU that a process takes besides the tensors."""


@dataclass(frozen=True)
class ProgramRace:
    """The result of a race between ``before`` and ``after``, the first and the second of the versions."""

    ratio: Interval
    """Median and interval of after's time / before's time, over pairs of runs."""
    before_us: float
    """Time of a step in µs: the median over the runs."""
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
    versions: Mapping[str, Sequence[Startable]], *, slicing: Slicing | None = None, rounds: int = 25,
    seconds: float = 600.0, steps: int = 20, seed: int = 0, progress: Progress = silent,
    most: float = math.inf, meanwhile: Meanwhile | None = None,
) -> ProgramRace | ProgramFailed:  # fmt: skip
    """Races two versions of a program. Run the unchanged one in a copy, too, so that both have paths of the same
    length.

    versions: name → identical copies of the program, the same number for both; the first is ``before``, the second
    ``after``. slicing: starts all copies at once, and lets them make slices of steps in turn (`run_in_slices`). The
    machine needs memory for all of them: see `pairs_at_once`. Otherwise each run is made alone. steps: the steps of a
    run that is made alone. rounds: the race ends after this many pairs of runs. seconds: it ends if the next pairs
    would pass this time, or `GRACE` times this time before the first look. most: it never begins pairs that would pass
    this time. meanwhile: called while the first copies start, if they run in slices; an exception in it ends the race.
    """
    act, aside = meanwhile, 0.0  # the seconds that ``meanwhile`` took are no part of the time of a pair

    def each_alone(programs: Sequence[Startable]) -> Sequence[ProgramRun | ProgramFailed]:
        return [run_program(program, steps=steps, seconds=max(1.0, seconds)) for program in programs]

    def in_slices(programs: Sequence[Startable]) -> Sequence[ProgramRun | ProgramFailed]:
        nonlocal slicing
        if slicing and (done := run_in_slices(programs, slicing, max(1.0, seconds), timed if act else None)):
            return done
        slicing = None  # if copies disturb each other, for example by a port, they run alone from now on
        return each_alone(programs)

    def timed() -> None:
        nonlocal aside, act
        began, once, act = time.monotonic(), act, None
        if once:
            once()
        aside += time.monotonic() - began

    run = in_slices if slicing else each_alone
    return raced(
        versions, run, warm_up=slicing is None, rounds=rounds, seconds=seconds, most=most, seed=seed,
        progress=progress, aside=lambda: aside,
    )  # fmt: skip


def gpu_bytes(run: ProgramRun) -> int:
    """Returns the bytes of the GPU that a run had, or found free at its end. Other runs beside it make it smaller."""
    return run.memory.get("gpu", 0) + run.memory.get("gpu, free", 0)


def pairs_at_once(*runs: ProgramRun, gpu: int = 0, apart: bool = False) -> int:
    """Returns how many pairs of such runs fit into the machine's memory at the same time; 0 if not even one
    pair does. ``gpu``: the bytes of the GPU that are known to be free without these runs. ``apart``: whether the
    processes of a run find each other, and not those of another run; else runs of several processes are made alone.
    """
    gpu = max([gpu, *map(gpu_bytes, runs)])
    if any(run.unit == "process" or (run.processes > 1 and not apart) or not run.memory for run in runs):
        return 0
    processes = max(run.processes for run in runs)
    most = min(2 * FIRST_LOOK, max(2, (os.cpu_count() or 1) // processes))
    for run in runs:
        most = min(most, int(HOST_SHARE * memory()["MemAvailable"] / (processes * run.memory["host"])))
        if used := run.memory.get("gpu"):
            most = min(most, int(GPU_SHARE * gpu / (used + GPU_CONTEXT)))
    return most // 2


def raced(
    versions: Mapping[str, Sequence[Startable]],
    run: Callable[[Sequence[Startable]], Sequence[ProgramRun | ProgramFailed]], *, rounds: int, seconds: float,
    seed: int, most: float = math.inf, warm_up: bool = True, progress: Progress = silent,
    now: Callable[[], float] = time.monotonic, aside: Callable[[], float] = lambda: 0.0,
) -> ProgramRace | ProgramFailed:  # fmt: skip
    """Races like `race_programs`, but ``run`` runs the programs, in the order in which it gets them.

    warm_up: whether a first pair runs only to fill caches, and is not counted. aside: the seconds so far that ``run``
    spent on something else. They count for ``most``, but not for ``seconds``.
    """
    before, after = names = tuple(versions)
    pairs, orders, load = _Pairs(before, after, dict(looks(rounds))), _orders(random.Random(seed)), _load()
    began, longest = now(), 0.0
    while pairs.count < rounds and not pairs.decided:
        allowed = seconds if pairs.count >= FIRST_LOOK else GRACE * seconds
        if now() - began + longest > min(most, allowed + aside()):
            break
        progress("race", pairs.count, rounds, pairs.shown)
        many = 1 if warm_up else min(len(versions[before]), pairs.until_look)
        order = [(at, n) for n in range(many) for at in next(orders)]
        started = now() - aside()
        ran = dict(zip(order, run([versions[names[at]][n] for at, n in order]), strict=True))
        longest = max(longest, now() - aside() - started)
        for n in range(many):
            done = _comparable(ran[0, n], ran[1, n], names)
            if isinstance(done, ProgramFailed):
                return done
            if not warm_up:
                pairs.add(*done)
        warm_up = False
    if not pairs.count:
        return ProgramFailed("race", f"one pair of runs takes {longest:.3g} s; give the race more than {seconds:g} s")
    progress("race", pairs.count, pairs.count, pairs.shown)  # decided: no further rounds
    return pairs.result(f"{os.cpu_count()} processors, load {load} before the race and {_load()} after it")


def looks(rounds: int) -> Iterator[tuple[int, float]]:
    """Yields the looks: the number of rounds after which a race may decide, and its error of each side. The errors add
    up to at most `TAIL`.
    """
    if rounds >= FIRST_LOOK:
        yield FIRST_LOOK, 2.0**-FIRST_LOOK
    later = [*range(13, rounds, 6), *([rounds] if rounds > FIRST_LOOK else [])]
    for at in later:  # only a few looks: they share the error, so each has a larger part of it
        yield at, (TAIL - 2.0**-FIRST_LOOK) / len(later)


def time_us(run: ProgramRun) -> float:
    """Returns the time of a step of a run, in µs: the mean of its steady steps; without steps, the wall time."""
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
        return f"time {self.names[1]} / {self.names[0]}: {self.ratio}" if self.ratio.decided else ""

    @property
    def until_look(self) -> int:
        """The number of pairs until the next look."""
        return next((at for at in sorted(self.planned) if at > self.count), self.count + 1) - self.count

    def add(self, before: ProgramRun, after: ProgramRun) -> None:
        """Adds a pair of runs, and decides the race if it is time to look."""
        for name, run in zip(self.names, (before, after), strict=True):
            self.samples[name].append(time_us(run))
        self.last = before
        if self.count in self.planned:
            self._look(self.planned[self.count])

    def _look(self, tail: float) -> None:
        before, after = (np.asarray(self.samples[name]) for name in self.names)
        low, high = paired_bounds(after / before, tail)
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
            pairs = "1 pair of runs is" if self.count == 1 else f"{self.count} pairs of runs are"
            return "tied", f"{pairs} too few to tell; a verdict needs {FIRST_LOOK}: raise --seconds"
        return "tied", f"{measured}: no difference was shown"


def _orders(rng: random.Random) -> Iterator[tuple[int, int]]:
    """Yields orders of the two versions: a random one, then its reverse, and so on."""
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
