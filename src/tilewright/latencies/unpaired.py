"""Two groups of times that were not taken in the same rounds: how much slower is one than the other?

`stats.ratio_interval` pairs times of one round. Whole runs of a test suite, made before and after a change, have no
pairs. The assumption here: without a change the runs of both groups could have come in any order, and a change
multiplies every time by one factor. Then every split of all runs into the two groups is equally likely. That gives an
interval from ranks, without a normal distribution: of the m·n ratios after/before, the k-th smallest and the k-th
largest enclose the factor. Here k is the largest number with P(U <= k - 1) <= tail, and U counts the pairs in which
after < before (H. B. Mann and D. R. Whitney 1947; the interval is L. E. Moses's, in M. Hollander and D. A. Wolfe,
Nonparametric Statistical Methods, 2nd ed. 1999, section 4.3). Ties only widen its coverage.

The fewest runs that suffice follow from counting: with m and n runs the most extreme split has probability
1 / C(m + n, m), so 95 % needs C(m + n, m) >= 40, for example 4 and 4, or 3 and 5.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from tilewright.race.stats import Array, Interval

FEWEST = 3
"""On each side. One run against forty would satisfy the arithmetic, but a disturbance of that one run, such as another
program on the GPU, would then decide alone."""


def unpaired_ratio_interval(after: ArrayLike, before: ArrayLike, confidence: float = 0.95) -> Interval:
    """Interval of the factor between two groups of positive times; below 1, ``after`` is faster.

    ``centre`` is the median of all ratios (J. L. Hodges and E. L. Lehmann 1963). (0, inf) where the
    groups are too small for the confidence.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    a: Array = np.asarray(after, dtype=np.float64)
    b: Array = np.asarray(before, dtype=np.float64)
    if a.ndim != 1 or b.ndim != 1 or not a.size or not b.size:
        raise ValueError("a ratio needs two flat, non-empty lists of times")
    ratios = np.sort(np.divide.outer(a, b), axis=None)
    k = _rank(a.size, b.size, (1.0 - confidence) / 2.0) if min(a.size, b.size) >= FEWEST else 0
    low, high = (float(ratios[k - 1]), float(ratios[-k])) if k else (0.0, math.inf)
    return Interval(low, float(np.median(ratios)), high, confidence, a.size + b.size)


def more_runs(after: int, before: int, confidence: float = 0.95) -> tuple[int, int]:
    """How many runs each side lacks before an interval is possible: as few as possible in all.

    Of equally few, those on one side are preferred, and those of the new code: the old code may be gone.
    """
    needed = 2.0 / (1.0 - confidence)
    most = math.ceil(needed)
    choices = (
        (max(0, m - after), max(0, n - before))
        for m in range(FEWEST, most + 1)
        for n in range(FEWEST, most + 1)
        if math.comb(max(m, after) + max(n, before), max(m, after)) >= needed * (1.0 - 1e-12)
    )
    return min(choices, key=lambda lacking: (sum(lacking), min(lacking) > 0, lacking[1]))


@lru_cache(maxsize=1024)
def _rank(m: int, n: int, tail: float) -> int:
    """The largest k with P(U <= k - 1) <= ``tail``; 0 if there is none. Exact, in integers."""
    allowed = tail * math.comb(m + n, m)
    cumulative, k = 0, 0
    for ways in _ways(m, n):
        cumulative += ways
        if cumulative > allowed * (1.0 + 1e-12):
            break
        k += 1
    return k


def _ways(m: int, n: int) -> list[int]:
    """In how many of the C(m + n, m) splits U is 0, 1, … m·n: the coefficients of a Gaussian binomial."""
    ways = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):  # times 1 - q^(n + i)
            ways[u] -= ways[u - n - i]
        for u in range(i, m * n + 1):  # over 1 - q^i
            ways[u] += ways[u - i]
    return ways
