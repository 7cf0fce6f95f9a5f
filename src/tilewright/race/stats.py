"""Statistics of times, without a distribution behind them.

Kernel times are skewed, have outliers and drift with the clock of the chip, so nothing here is a mean or assumes a
normal law. Everything rests on one fact: whatever the distribution, a sample lies below its median with probability
1/2. The number of n independent samples below the median is therefore binomial, and the order statistics x(k) and
x(n+1-k) enclose the median unless fewer than k samples fall on one side of it:

    P(x(k) <= median <= x(n+1-k)) >= 1 - 2 P(Bin(n, 1/2) <= k - 1)

with equality for a continuous law, and more than that when samples tie (a coarse timer).
Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd ed. 2003, section 7.1; the
interval is the sign test (W. J. Dixon and A. M. Mood 1946) turned round.

Two candidates are compared by their times *of the same round*: t_i / t_j cancels what both
felt, such as a clock that slowly changes. Times are positive, so what n samples cannot
support is answered by (0, inf) and never by a narrower guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.records import Json

Array: TypeAlias = NDArray[np.float64]

MAD_TO_SIGMA = 1.4826
"""1 / 0.67449, the upper quartile of the normal law: makes the median absolute deviation
comparable to a standard deviation (P. J. Huber, Robust Statistics, 1981, section 5.1)."""


@dataclass(frozen=True)
class Interval:
    """Where a median lies, with at least ``confidence``; (0, inf) if n is too small to say."""

    low: float
    centre: float
    """The sample median."""
    high: float
    confidence: float
    """What was asked for; the interval's own coverage is at least this."""
    n: int
    """Samples behind it."""

    @property
    def decided(self) -> bool:
        """False if ``n`` samples cannot give this confidence at all: nothing follows from them."""
        return math.isfinite(self.high)

    def __str__(self) -> str:
        return f"{self.low:.3f} to {self.high:.3f}" if self.decided else f"unknown from {self.n} samples"

    def to_json(self) -> dict[str, Json]:
        """``high`` is None where nothing bounds it: JSON has no infinity."""
        return {
            "low": self.low, "centre": self.centre, "high": self.high if self.decided else None,
            "confidence": self.confidence, "n": self.n,
        }  # fmt: skip


@lru_cache(maxsize=65536)
def rank(n: int, tail: float) -> int:
    """The largest k with P(Bin(n, 1/2) <= k - 1) <= ``tail``; 0 if there is none.

    Exact in integers, so that it holds for the tails of 1e-5 that repeated looks ask for and for
    any n. k = 0 means: not even the smallest of n samples is that surely below the median.
    """
    allowed = math.floor(Fraction(tail) * (1 << n))
    term, cumulative, k = 1, 1, 0
    while cumulative <= allowed and k < n:
        k += 1
        term = term * (n - k + 1) // k
        cumulative += term
    return min(k, (n + 1) // 2)


def fewest(tail: float) -> int:
    """The fewest samples that can bound a median on one side with error ``tail``: 2^-n <= tail."""
    return max(1, math.ceil(-math.log2(tail)))


def bounds(samples: ArrayLike, tail: float) -> tuple[Array, Array]:
    """Lower and upper bound of the median along the first axis, each wrong with at most ``tail``.

    ``samples``: positive, shape (n, …). Returns two arrays of shape (…); (0, inf) if n is too small.
    """
    x: Array = np.asarray(samples, dtype=np.float64)
    n = x.shape[0]
    k = rank(n, tail)
    if k == 0:
        return np.zeros(x.shape[1:]), np.full(x.shape[1:], np.inf)
    # A full sort is no slower than np.partition at these sizes, and says the same.
    ordered = np.sort(x, axis=0)
    return ordered[k - 1], ordered[n - k]


def median_interval(samples: ArrayLike, confidence: float = 0.95) -> Interval:
    """Distribution-free interval of the median of positive, independent ``samples``.

    Two-sided: [x(k), x(n+1-k)] with the largest k whose two tails sum to at most 1 - ``confidence``.
    At 95 % six samples are the fewest (their range covers 1 - 2/64 = 96.9 %).
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    x: Array = np.asarray(samples, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError("a median needs a flat, non-empty list of samples")
    low, high = bounds(x, (1.0 - confidence) / 2.0)
    return Interval(float(low), float(np.median(x)), float(high), confidence, x.size)


def expected_half_width(sigma: float, n: int, tail: float) -> float:
    """About how far the bounds of a median of ``n`` samples with spread ``sigma`` lie from it.

    z(tail) × sqrt(pi / 2) × sigma / sqrt(n), the large-sample error of the median under a normal law
    (David and Nagaraja 2003, section 10.3). For planning only: nothing is decided from it.
    """
    return NormalDist().inv_cdf(1.0 - tail) * math.sqrt(math.pi / 2.0) * sigma / math.sqrt(n)


def ratio_interval(numerator: ArrayLike, denominator: ArrayLike, confidence: float) -> Interval:
    """Interval of the median of the paired ratios numerator[r] / denominator[r] over rounds r.

    A common factor of a round (clock, temperature, other load) cancels. Not the ratio of the two
    medians: for noise of the same shape on both sides the two have the same true value.
    """
    a: Array = np.asarray(numerator, dtype=np.float64)
    b: Array = np.asarray(denominator, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"paired samples need equal lengths, got {a.size} and {b.size}")
    return median_interval(a / b, confidence)


def spread(samples: ArrayLike) -> float:
    """Relative spread of one sample: 1.4826 × median |x / median - 1|; one sigma if x is normal.

    Up to half of the samples may be outliers before it breaks down.
    """
    x: Array = np.asarray(samples, dtype=np.float64)
    relative = x / np.median(x)
    return MAD_TO_SIGMA * float(np.median(np.abs(relative - 1.0)))


def tail_per_look(confidence: float, candidates: int, looks: int) -> float:
    """The error that one one-sided comparison may have, so that a whole race keeps ``confidence``.

    Bonferroni: two wrong claims are possible of each candidate (too slow; within the band), at each look, against the
    one candidate that is truly the fastest. Dependence between them only makes the sum smaller (C. E. Bonferroni 1936).
    """
    return (1.0 - confidence) / (2 * max(1, candidates) * max(1, looks))


def geometric_mean(values: Iterable[float]) -> float | None:
    """Of positive numbers; None of none at all."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def fastest(times: Array) -> int:
    """The column of (rounds, n) paired times with the smallest median.

    Medians are first taken as they are, then once more relative to the first answer's time in the
    same round, so that a drift of the clock over the rounds does not choose.
    """
    first = int(np.argmin(np.median(times, axis=0)))
    return int(np.argmin(np.median(times / times[:, [first]], axis=0)))


@dataclass(frozen=True)
class Noise:
    """What this machine's clock says of two copies of one kernel: the A/A check."""

    ratio: Interval
    """Median of the paired ratios; the truth is 1."""
    spread: float
    """Relative spread of one sample within a round (one sigma, robust)."""
    rounds: int
    biased: bool
    """The interval is further from 1 than half the tie band: the clock prefers a position or a buffer."""
    why: str

    def to_json(self) -> dict[str, Json]:
        return asdict(self) | {"ratio": self.ratio.to_json()}


def noise_of(
    a_us: Sequence[float], b_us: Sequence[float], *, tie_band: float = 0.01, confidence: float = 0.99
) -> Noise:
    """The verdict of an A/A check on its paired times in µs."""
    ratio = ratio_interval(a_us, b_us, confidence)
    # The ratio carries the noise of two samples: sqrt 2 of one.
    sample_spread = spread(np.asarray(a_us) / np.asarray(b_us)) / 2**0.5
    biased = ratio.decided and (ratio.low > 1.0 + tie_band / 2 or ratio.high < 1.0 - tie_band / 2)
    why = f"two copies of one kernel differ by {ratio.centre - 1.0:+.2%} ({ratio})"
    why += f"; one sample spreads {sample_spread:.2%}"
    if not ratio.decided:
        why = f"{len(a_us)} rounds are too few for an interval"
    elif biased:
        why += f": biased by more than half the tie band of {tie_band:.1%}; do not trust small differences"
    elif (distinct := len(set(a_us))) * 8 < len(a_us):
        why += f"; the timer's step shows: {distinct} different times in {len(a_us)} rounds"
    return Noise(ratio, sample_spread, len(a_us), biased, why)
