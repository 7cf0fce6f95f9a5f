"""Distribution-free statistics of kernel times.

Kernel times are skewed, have outliers and drift with the clock of the chip. So this module uses medians. For every
distribution, a sample lies below the median with probability 1/2. So the number of samples below the median, among n
independent samples, is binomial. The order statistics x(k) and x(n+1-k) enclose the median, unless fewer than k samples
lie on one side of the median:

    P(x(k) <= median <= x(n+1-k)) >= 1 - 2 P(Bin(n, 1/2) <= k - 1)

The two sides are equal for a continuous distribution. Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd ed.
2003, section 7.1. The interval is the inverse of the sign test (W. J. Dixon and A. M. Mood 1946).

Two candidates are compared by the ratio of their times in the same round, which cancels common influences such as a
slowly changing clock. If n samples are too few for an interval, it is (0, inf).
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.race.interval import Interval as Interval
from tilewright.race.interval import geometric_mean as geometric_mean
from tilewright.records import Json, MeasuredTime

Array: TypeAlias = NDArray[np.float64]

MAD_TO_SIGMA = 1.4826
"""Converts a median absolute deviation to a standard deviation of the normal law: 1 / 0.67449.

0.67449 is the upper quartile of that law (P. J. Huber, Robust Statistics, 1981, section 5.1).
"""


@lru_cache(maxsize=65536)
def rank(n: int, tail: float) -> int:
    """Returns the largest k with P(Bin(n, 1/2) <= k - 1) <= ``tail``; 0 if there is none. Exact, in integers."""
    allowed = math.floor(Fraction(tail) * (1 << n))
    term, cumulative, k = 1, 1, 0
    while cumulative <= allowed and k < n:
        k += 1
        term = term * (n - k + 1) // k
        cumulative += term
    return min(k, (n + 1) // 2)


def fewest(tail: float) -> int:
    """Returns the least number of samples that bounds a median on one side with error probability ``tail``.

    This is the least n with 2^-n <= tail.
    """
    return max(1, math.ceil(-math.log2(tail)))


def bounds(samples: ArrayLike, tail: float) -> tuple[Array, Array]:
    """Returns a lower and an upper bound of the median along the first axis.

    samples: positive, shape (n, …). tail: the error probability of each bound.
    The bounds have the shape (…). If n is too small, the bounds are 0 and infinity.
    """
    x: Array = np.asarray(samples, dtype=np.float64)
    n = x.shape[0]
    k = rank(n, tail)
    if k == 0:
        return np.zeros(x.shape[1:]), np.full(x.shape[1:], np.inf)
    ordered = np.sort(x, axis=0)  # np.partition is not faster for so few samples
    return ordered[k - 1], ordered[n - k]


def paired_bounds(ratios: ArrayLike, tail: float) -> tuple[float, float]:
    """Returns a lower and an upper bound of the centre of paired ratios, by the signed-rank test of their logarithms.

    The test is exact if the two sides of a pair are in random order. Then the ratios r and 1 / r of two equal versions
    are equally likely. The interval is narrower than the interval of `bounds`, which uses the signs alone, unless
    outliers are frequent (Hollander and Wolfe 1999, section 3.3). With too few ratios, it is 0 to infinity.

    ratios: positive, shape (n,).
    tail: the error probability of each bound.
    """
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    n = len(logs)
    one, other = np.triu_indices(n)
    means = np.sort((logs[one] + logs[other]) / 2.0)
    ways = np.ones(1)  # how many of the 2^n choices of signs give each sum of ranks
    for number in range(1, n + 1):
        ways = np.pad(ways, (0, number)) + np.pad(ways, (number, 0))
    k = int(np.searchsorted(np.cumsum(ways), tail * (1.0 + 1e-9) * 2.0**n, side="right"))
    if k == 0:
        return 0.0, math.inf
    return float(np.exp(means[k - 1])), float(np.exp(means[len(means) - k]))


def median_interval(samples: ArrayLike, confidence: float = 0.95) -> Interval:
    """Returns the two-sided interval of the median of positive, independent samples. An interval with 95 % needs at
    least six samples (their range covers 1 - 2/64 = 96.9 %)."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    x: Array = np.asarray(samples, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError("a median needs a flat, non-empty list of samples")
    low, high = bounds(x, (1.0 - confidence) / 2.0)
    return Interval(float(low), float(np.median(x)), float(high), confidence, x.size)


def expected_half_width(sigma: float, n: int, tail: float) -> float:
    """Estimates the distance between the median of ``n`` samples and its bounds (`bounds`).

    sigma: the spread of one sample. The estimate is the large-sample error of the median under a normal law (David and
    Nagaraja 2003, section 10.3).
    """
    return NormalDist().inv_cdf(1.0 - tail) * math.sqrt(math.pi / 2.0) * sigma / math.sqrt(n)


def ratio_interval(numerator: ArrayLike, denominator: ArrayLike, confidence: float) -> Interval:
    """Returns the interval of the median of the ratios numerator[r] / denominator[r] over rounds r."""
    a: Array = np.asarray(numerator, dtype=np.float64)
    b: Array = np.asarray(denominator, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"paired samples need equal lengths, got {a.size} and {b.size}")
    return median_interval(a / b, confidence)


def by_capture(numerator: Sequence[float], denominator: Sequence[float], captures: Sequence[int]) -> Array:
    """Returns one ratio for each capture of CUDA graphs: the median of numerator / denominator over its rounds.

    numerator, denominator: the times in all rounds, in order. Times with the same index are of the same round.
    captures: how many of these rounds each capture has, in order. A capture without rounds has no ratio.

    Raises ValueError if the lengths differ.
    """
    if not len(numerator) == len(denominator) == sum(captures):
        raise ValueError(f"captures of {sum(captures)} rounds have {len(numerator)} and {len(denominator)} samples")
    ratios = map(operator.truediv, numerator, denominator)
    return np.array([statistics.median(islice(ratios, rounds)) for rounds in captures if rounds])


def spread(samples: ArrayLike) -> float:
    """Returns the relative spread of one sample: 1.4826 × median |x / median - 1|, which is one sigma if x is normal.
    Up to half of the samples may be outliers."""
    x: Array = np.asarray(samples, dtype=np.float64)
    return MAD_TO_SIGMA * float(np.median(np.abs(x / np.median(x) - 1.0)))


def tail_per_look(confidence: float, candidates: int, looks: int) -> float:
    """Returns the error probability of each one-sided comparison, so that a whole race keeps ``confidence``.

    At each look, two claims about each candidate may be wrong. One claim is that the candidate is too slow, the other
    claim is that it is within the tie band of the fastest. The sum of the error probabilities of all claims bounds the
    error of the race (C. E. Bonferroni 1936).
    """
    return (1.0 - confidence) / (2 * max(1, candidates) * max(1, looks))


def measured_of(samples_us: Sequence[float]) -> MeasuredTime:
    """Returns the median and its 95 % interval, in µs. The interval of fewer than six samples is (0, inf)."""
    interval = median_interval(samples_us, 0.95)
    return MeasuredTime(interval.centre, (interval.low, interval.high), tuple(samples_us))


def fastest(times: Array) -> int:
    """Returns the index of the column with the smallest median. ``times``: paired, shape (rounds, n)."""
    first = int(np.argmin(np.median(times, axis=0)))
    # A ratio of two times of the same round cancels a drift of the clock.
    return int(np.argmin(np.median(times / times[:, [first]], axis=0)))


@dataclass(frozen=True)
class Noise:
    """The result of an A/A check: two copies of one kernel, timed against each other."""

    ratio: Interval  # median of the paired ratios; the true value is 1
    spread: float  # relative spread of one sample within a round (one robust sigma)
    rounds: int
    biased: bool  # the interval is further from 1 than half the tie band: position or buffer influence the time
    why: str

    def to_json(self) -> dict[str, Json]:
        return asdict(self) | {"ratio": self.ratio.to_json()}


def noise_of(
    a_us: Sequence[float], b_us: Sequence[float], *, tie_band: float = 0.01, confidence: float = 0.99
) -> Noise:
    """Judges an A/A check by its paired times in µs."""
    ratio = ratio_interval(a_us, b_us, confidence)
    sample_spread = spread(np.asarray(a_us) / np.asarray(b_us)) / 2**0.5  # a ratio has the noise of two samples
    biased = ratio.decided and (ratio.low > 1.0 + tie_band / 2 or ratio.high < 1.0 - tie_band / 2)
    why = f"two copies of one kernel differ by {ratio.centre - 1.0:+.2%} ({ratio})"
    why += f"; spread of a sample {sample_spread:.2%}"
    if not ratio.decided:
        why = f"{len(a_us)} rounds are too few for an interval"
    elif biased:
        why += f": biased by more than half the tie band of {tie_band:.1%}; do not trust small differences"
    elif (distinct := len(set(a_us))) * 8 < len(a_us):
        why += f"; the timer's resolution is coarse: {distinct} different times in {len(a_us)} rounds"
    return Noise(ratio, sample_spread, len(a_us), biased, why)
