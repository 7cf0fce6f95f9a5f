"""Decides whether a test became slower: compares the medians of whole runs, for each test and direction.

One run is not enough, because the median of the same code changes by several percent from run to run. The deviation
within one record does not show this. If there are too few runs, the verdict says how many more are needed.

Runs before and after a change are not paired, so `stats.ratio_interval` does not apply. The interval here is computed
from ranks. It assumes that a change multiplies every time by one factor, and that without a change the runs could have
come in any order. It does not assume a normal distribution. Of the m·n ratios after/before, the k-th smallest and the
k-th largest enclose the factor. U counts the pairs with after < before (H. B. Mann and D. R. Whitney 1947). k is the
largest number with P(U <= k - 1) <= tail. The interval is L. E. Moses's (M. Hollander and D. A. Wolfe, Nonparametric
Statistical Methods, 2nd ed. 1999, section 4.3). With ties, the interval covers the factor even more often. The most
extreme split of m and n runs has the probability 1 / C(m + n, m). So 95 % needs C(m + n, m) >= 40, for example 4 and 4
runs, or 3 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from statistics import median
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from tilewright.latencies.runs import SuiteRun
from tilewright.race.stats import Array, Interval

CONFIDENCE = 0.95
FEWEST = 3
"""The fewest runs on each side. The formula would allow 1 run against 40. But then one disturbance of the single run,
such as another program on the GPU, would decide the verdict."""

Verdict: TypeAlias = Literal["faster", "slower", "no difference shown", "not enough runs", "new"]
Key: TypeAlias = tuple[str, str, str]
"""Test, backend, direction."""


@dataclass(frozen=True)
class LatencyChange:
    """The change of one test and direction. ``ratio`` is after / before; below 1 is faster."""

    test: str
    backend: str
    direction: str
    verdict: Verdict
    reason: str
    before_ms: float | None
    """The median of the runs' medians; None if the baseline has no such test."""
    after_ms: float
    ratio: Interval | None
    after_runs: tuple[float, ...] = ()
    before_runs: tuple[float, ...] = ()
    """The medians of the runs, in ms."""

    @property
    def decided(self) -> bool:
        """Whether there are enough runs for a decision."""
        return self.ratio is not None and self.ratio.decided


@dataclass(frozen=True)
class LatencyComparison:
    """The changes of all tests of the current run, with notes about the whole comparison."""

    results: tuple[LatencyChange, ...]
    notes: tuple[str, ...]

    @property
    def decidable(self) -> int:
        """The number of results with enough runs for a decision."""
        return sum(change.decided for change in self.results)


def compare(run: SuiteRun, beside: Sequence[SuiteRun], baseline: Sequence[SuiteRun]) -> LatencyComparison:
    """Compares the current ``run`` and the earlier runs in ``beside`` with the runs of the ``baseline``.

    Only runs on the same host count. Of ``beside``, only runs of the same revision of the code count.
    """
    here, old = ([other for other in runs if other.place == run.place] for runs in (beside, baseline))
    same = [other for other in here if other.revision == run.revision]
    after, before = _medians((*same, run)), _medians(old)
    results = tuple(_change(key, after[key], before.get(key, ())) for key in _medians((run,)))
    notes = []
    if elsewhere := [other for other in (*baseline, *beside) if other.place != run.place]:
        places = ", ".join(sorted({str(other.place) for other in elsewhere}))
        notes.append(f"{len(elsewhere)} runs are not compared: they ran elsewhere ({places}; here: {run.place})")
    if others := len(here) - len(same):
        notes.append(f"{others} earlier runs are not counted: they ran other revisions of the code")
    if len({other.revision for other in old}) > 1:
        notes.append("the baseline mixes runs of several revisions of the code")
    return LatencyComparison(results, (*notes, *_differences(run, old)))


def _medians(runs: Iterable[SuiteRun]) -> Mapping[Key, tuple[float, ...]]:
    medians: dict[Key, tuple[float, ...]] = {}
    for run in runs:
        for record in run.records:
            for direction, latency in record.directions.items():
                key = (record.test, record.backend, direction)
                medians[key] = (*medians.get(key, ()), latency.median)
    return medians


def _change(key: Key, after: tuple[float, ...], before: tuple[float, ...]) -> LatencyChange:
    if not before:
        return LatencyChange(*key, "new", "not in the baseline", None, median(after), None, after)
    ratio = unpaired_ratio_interval(after, before, CONFIDENCE)
    runs = f"{len(after)} run{'s' if len(after) > 1 else ''} against {len(before)}"
    if ratio.decided:
        low, high = (f"{(edge - 1.0) * 100.0:+.1f} %" for edge in (ratio.low, ratio.high))
        verdict: Verdict = "slower" if ratio.low > 1.0 else "faster" if ratio.high < 1.0 else "no difference shown"
        reason = f"{low} to {high}, {runs}"
    else:
        lacking = in_words(*more_runs(len(after), len(before), CONFIDENCE))
        verdict, reason = "not enough runs", f"{runs}: {lacking}"
    return LatencyChange(*key, verdict, reason, median(before), median(after), ratio, after, before)


def _differences(run: SuiteRun, old: Sequence[SuiteRun]) -> Iterator[str]:
    """Yields a sentence for each difference between the runs in driver, versions and settings."""
    settings = sorted({*run.settings, *(name for other in old for name in other.settings)})

    def environment(one: SuiteRun) -> dict[str, str]:
        versions = {name: one.versions.get(name, "none") for name in run.versions}
        return {"driver": str(one.driver), **versions, **{name: one.settings.get(name, "unset") for name in settings}}

    for what, now in environment(run).items():
        then = {environment(other)[what] for other in old}
        if old and then != {now}:
            yield f"{what}: {', '.join(sorted(then))} in the baseline, {now} here"


def unpaired_ratio_interval(after: ArrayLike, before: ArrayLike, confidence: float = 0.95) -> Interval:
    """Returns a confidence interval of the factor between two groups of positive times. Below 1, ``after`` is faster.

    Its centre is the median of all ratios (J. L. Hodges and E. L. Lehmann 1963). If the groups are too small for the
    confidence, the interval is (0, inf).
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    a: Array = np.asarray(after, dtype=np.float64)
    b: Array = np.asarray(before, dtype=np.float64)
    if a.ndim != 1 or b.ndim != 1 or not a.size or not b.size:
        raise ValueError("a ratio needs two flat, non-empty lists of times")
    ratios = np.sort(np.divide.outer(a, b), axis=None)
    k = enclosing_rank(a.size, b.size, (1.0 - confidence) / 2.0) if min(a.size, b.size) >= FEWEST else 0
    low, high = (float(ratios[k - 1]), float(ratios[-k])) if k else (0.0, math.inf)
    return Interval(low, float(np.median(ratios)), high, confidence, a.size + b.size)


def more_runs(after: int, before: int, confidence: float = 0.95) -> tuple[int, int]:
    """Returns the numbers of further runs ``(after, before)`` that an interval needs, with the smallest sum.

    If several pairs have the smallest sum, prefers runs on one side only, and then runs of the new code.
    """
    needed = 2.0 / (1.0 - confidence) * (1.0 - 1e-12)

    def enough(now: int, then: int) -> bool:
        m, n = after + now, before + then
        return min(m, n) >= FEWEST and math.comb(m + n, m) >= needed

    for more in count():
        if choices := [(now, more - now) for now in range(more + 1) if enough(now, more - now)]:
            return min(choices, key=lambda lacking: (min(lacking) > 0, lacking[1]))
    raise AssertionError


def in_words(now: int, then: int) -> str:
    """Formats the result of `more_runs`, such as ``1 more of this code and 2 more in the baseline``."""
    lacking = [f"{now} more of this code"] * (now > 0) + [f"{then} more in the baseline"] * (then > 0)
    return " and ".join(lacking)


@lru_cache(maxsize=1024)
def enclosing_rank(m: int, n: int, tail: float) -> int:
    """Returns the largest k with P(U <= k - 1) <= ``tail``; 0 if there is none. Counts with exact integers."""
    allowed = tail * math.comb(m + n, m)
    cumulative, k = 0, 0
    for ways in splits(m, n):
        cumulative += ways
        if cumulative > allowed * (1.0 + 1e-12):
            break
        k += 1
    return k


def splits(m: int, n: int) -> list[int]:
    """Returns the number of splits of m + n runs with each U from 0 to m·n (coefficients of a Gaussian binomial)."""
    ways = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):  # multiplies by 1 - q^(n + i)
            ways[u] -= ways[u - n - i]
        for u in range(i, m * n + 1):  # divides by 1 - q^i
            ways[u] += ways[u - i]
    return ways
