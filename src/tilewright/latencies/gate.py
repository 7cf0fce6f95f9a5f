"""The gate of ``--tilewright-fail-slower``: which tests became slower by more than a limit, and what it can find.

A test fails the gate if its times are shown to be more than the limit slower, by the rank test of `comparing`. The gate
is corrected for the number of comparisons (S. Holm 1979): without a change beyond the limit, it fails by chance in at
most `CHANCE` of the sessions, however many tests there are. So more tests need more runs.

A regression as large as the limit is found in at most `CHANCE` of the cases, because the whole interval must be beyond
the limit. `findable` says which larger regression is found in `POWER` of the cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean

import numpy as np

from tilewright.latencies.comparing import CONFIDENCE, FEWEST, LatencyChange, enclosing_rank, more_runs, splits

CHANCE = (1.0 - CONFIDENCE) / 2.0
POWER = 0.8
DRAWS = 4000
"""Simulated comparisons of `_shift`. Its error is below 0.05 standard deviations."""
SHOWN = (4, 6, 8, 12, 20)
"""Numbers of runs on each side for which `table` says what is found."""


def slower_by(changes: Sequence[LatencyChange], percent: float) -> tuple[LatencyChange, ...]:
    """Returns the changes that are more than ``percent`` slower, corrected for the number of comparisons."""
    limit = 1.0 + percent / 100.0
    chances = {change: _chance(change, limit) for change in changes if change.decided}
    failing: set[LatencyChange] = set()
    for place, change in enumerate(sorted(chances, key=lambda each: chances[each])):
        if chances[change] > CHANCE / (len(chances) - place) * (1.0 + 1e-12):
            break
        failing.add(change)
    return tuple(change for change in changes if change in failing)


def _chance(change: LatencyChange, limit: float) -> float:
    """Returns the probability of ratios as large as these or larger, if the code is ``limit`` times slower."""
    after, before = change.after_runs, change.before_runs
    below = int(np.count_nonzero(np.divide.outer(np.asarray(after), np.asarray(before)) <= limit))
    ways = splits(len(after), len(before))
    return sum(ways[: below + 1]) / math.comb(len(after) + len(before), len(after))


def missing_runs(changes: Sequence[LatencyChange]) -> tuple[int, int]:
    """Returns the numbers of further runs ``(after, before)`` without which no test can fail the gate."""
    decided = [change for change in changes if change.decided]
    if not decided:
        return 0, 0
    confidence = 1.0 - 2.0 * CHANCE / len(decided)
    needed = (more_runs(len(each.after_runs), len(each.before_runs), confidence) for each in decided)
    return min(needed, key=sum)


def spread(changes: Sequence[LatencyChange]) -> float | None:
    """Returns the standard deviation of a run's median, as a factor of e; None with fewer than two runs. Typical of all
    tests: their variances are averaged."""
    groups = [group for change in changes for group in (change.after_runs, change.before_runs) if len(group) > 1]
    if not groups:
        return None
    return math.sqrt(fmean(float(np.var(np.log(group), ddof=1)) for group in groups))


def findable(after: int, before: int, comparisons: int, percent: float, sigma: float) -> float | None:
    """Returns the slowdown in percent that the gate finds in `POWER` of the cases; None if these runs can find none.

    percent: the limit of the gate. sigma: the result of `spread`. The noise of a median is taken as log-normal.
    """
    rank = enclosing_rank(after, before, CHANCE / comparisons) if min(after, before) >= FEWEST else 0
    if not rank:
        return None
    return 100.0 * ((1.0 + percent / 100.0) * math.exp(_shift(after, before, rank) * sigma) - 1.0)


@lru_cache(maxsize=256)
def _shift(after: int, before: int, rank: int) -> float:
    """Returns the distance beyond the limit, in standard deviations of a run, that is found in `POWER` of the cases."""
    draws = np.random.default_rng(0).standard_normal((DRAWS, after + before))
    differences = draws[:, :after, None] - draws[:, None, after:]
    smallest = np.partition(differences.reshape(DRAWS, -1), rank - 1, axis=1)[:, rank - 1]
    return -float(np.quantile(smallest, 1.0 - POWER))


def table(comparisons: int, percent: float, sigma: float) -> str:
    """Returns what is found with how many runs, such as ``4 and 4 runs: nothing; 6 and 6 runs: 5.4 %``."""
    found = ((runs, findable(runs, runs, comparisons, percent, sigma)) for runs in SHOWN)
    words = (f"{runs} and {runs} runs: {'nothing' if each is None else f'{each:.1f} %'}" for runs, each in found)
    return "; ".join(words)
