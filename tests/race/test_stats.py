"""The statistics hold what they promise, on noise that is not normal (trust.md 24; X-13, X-23)."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.race import stats

positive = st.floats(1e-3, 1e6, allow_nan=False)
samples = st.lists(positive, min_size=1, max_size=60)


def binomial_tail(n: int, k: int) -> float:
    """P(Bin(n, 1/2) <= k - 1), the long way."""
    return float(Fraction(sum(math.comb(n, i) for i in range(k)), 2**n))


@given(st.integers(1, 200), st.floats(1e-9, 0.49))
def test_rank_is_the_largest_that_keeps_the_tail(n: int, tail: float) -> None:
    k = stats.rank(n, tail)
    assert 0 <= k <= (n + 1) // 2
    assert binomial_tail(n, k) <= tail
    assert binomial_tail(n, k + 1) > tail


@pytest.mark.parametrize(("n", "k"), [(5, 0), (6, 1), (8, 1), (9, 2), (10, 2), (15, 4), (20, 6), (25, 8), (50, 18)])
def test_rank_agrees_with_the_published_table(n: int, k: int) -> None:
    """Two-sided 95 % of the median; values of the sign-test table (Dixon and Massey, table A-10)."""
    assert stats.rank(n, 0.025) == k


def test_rank_is_exact_where_floats_overflow() -> None:
    """2^5000 is no float; the large-sample formula n/2 - z sqrt(n)/2 is the check."""
    assert stats.rank(5000, 0.025) == pytest.approx(2500 - 1.96 * math.sqrt(5000) / 2, abs=1.5)


def test_fewest_is_where_a_bound_begins() -> None:
    for tail in (0.025, 1e-3, 2.3e-5):
        assert stats.rank(stats.fewest(tail), tail) == 1
        assert stats.rank(stats.fewest(tail) - 1, tail) == 0


HEAVY: dict[str, tuple[Callable[[np.random.Generator, tuple[int, int]], stats.Array], float]] = {
    "log-normal": (lambda rng, size: np.exp(0.3 * rng.standard_normal(size)), 1.0),
    "pareto, infinite variance": (lambda rng, size: 1 + rng.pareto(1.1, size), 2 ** (1 / 1.1)),
    "10 % of 5 x outliers": (lambda rng, size: rng.uniform(1, 2, size) * (1 + 4 * (rng.random(size) < 0.1)), 1 + 5 / 9),
}  # fmt: skip


@pytest.mark.parametrize("law", HEAVY)
@pytest.mark.parametrize(("n", "confidence"), [(7, 0.95), (31, 0.95), (101, 0.99)])
def test_interval_covers_the_median_as_often_as_it_says(law: str, n: int, confidence: float) -> None:
    """And not much more often: the exact coverage is known for a continuous law."""
    draw, median = HEAVY[law]
    races = 4000
    low, high = stats.bounds(draw(np.random.default_rng(n), (n, races)), (1 - confidence) / 2)
    covered = float(np.mean((low <= median) & (median <= high)))
    exact = 1 - 2 * binomial_tail(n, stats.rank(n, (1 - confidence) / 2))
    slack = 4 * math.sqrt(exact * (1 - exact) / races)
    assert exact >= confidence
    assert abs(covered - exact) < slack


def test_ties_of_a_coarse_timer_keep_the_coverage() -> None:
    """X-23: a step of the timer may widen the coverage, never narrow it."""
    times = np.round(np.exp(0.1 * np.random.default_rng(0).standard_normal((25, 4000))), 1)
    low, high = stats.bounds(times, 0.025)
    assert np.mean((low <= 1.0) & (high >= 1.0)) >= 0.95


@given(samples, st.floats(0.5, 0.9999), st.floats(0.5, 0.9999))
def test_more_confidence_is_never_narrower(times: list[float], a: float, b: float) -> None:
    loose, strict = (stats.median_interval(times, c) for c in sorted((a, b)))
    assert strict.low <= loose.low <= loose.centre <= loose.high <= strict.high


@given(samples, st.integers(0, 2**32))
def test_order_of_the_samples_does_not_matter(times: list[float], seed: int) -> None:
    shuffled = random.Random(seed).sample(times, len(times))
    assert stats.median_interval(shuffled) == stats.median_interval(times)


@pytest.mark.parametrize("seed", range(5))
def test_paired_bounds_are_where_the_signed_rank_test_turns(seed: int) -> None:
    """The test is done by counting all choices of signs."""
    logs = 0.1 * np.random.default_rng(seed).standard_normal(8)
    low, high = stats.paired_bounds(np.exp(logs), 0.03)

    def chance(shifted: np.ndarray) -> float:
        ranks = np.argsort(np.argsort(np.abs(shifted))) + 1
        sums = [np.dot(ranks, signs) for signs in itertools.product((0, 1), repeat=8)]
        return float(np.mean(np.asarray(sums) <= ranks[shifted > 0].sum()))

    for sided, bound in ((logs, math.log(high)), (-logs, -math.log(low))):
        assert chance(sided - bound - 1e-9) <= 0.03 < chance(sided - bound + 1e-9)
    assert stats.paired_bounds(np.exp(logs[:5]), 0.03) == (0.0, math.inf)


@given(samples)
def test_too_few_samples_are_undecided_never_narrow(times: list[float]) -> None:
    interval = stats.median_interval(times, 0.95)
    assert interval.decided == (len(times) >= 6)
    if not interval.decided:
        assert (interval.low, interval.high) == (0.0, math.inf)
        assert interval.to_json()["high"] is None
    json.dumps(interval.to_json(), allow_nan=False)


@given(st.lists(st.tuples(positive, st.floats(0.5, 2.0)), min_size=1, max_size=40))
def test_what_a_round_shares_cancels(rounds: list[tuple[float, float]]) -> None:
    """A clock that drifts by any factor leaves the ratio where it is (trust.md 25)."""
    drift, ratio = np.array(rounds).T
    paired = stats.ratio_interval(drift * ratio, drift, 0.95)
    plain = stats.median_interval(ratio, 0.95)
    assert paired.low == pytest.approx(plain.low)
    assert paired.centre == pytest.approx(plain.centre)
    assert paired.high == pytest.approx(plain.high)


def test_fastest_is_not_fooled_by_drift_or_by_a_candidate_in_the_middle() -> None:
    true = np.array([1.015, 1.004, 1.0])
    for seed in range(30):
        rng = np.random.default_rng(seed)
        drift = np.exp(np.cumsum(0.05 * rng.standard_normal((300, 1)), axis=0))
        times = true * drift * np.exp(0.01 * rng.standard_normal((300, 3)))
        assert stats.fastest(times) == 2


def test_a_capture_is_the_median_of_its_pairs() -> None:
    ratios = stats.by_capture([2.0, 9.0, 2.0, 6.0, 8.0], [1.0, 1.0, 2.0, 2.0, 2.0], [3, 0, 2])
    assert ratios.tolist() == [2.0, 3.5]
    with pytest.raises(ValueError, match="captures of 4 rounds have 5 and 5 samples"):
        stats.by_capture([1.0] * 5, [1.0] * 5, [4])


def test_spread_is_sigma_in_spite_of_outliers() -> None:
    rng = np.random.default_rng(2)
    times = 100 * (1 + 0.01 * rng.standard_normal(2000)) * np.where(rng.random(2000) < 0.1, 5.0, 1.0)
    assert stats.spread(times) == pytest.approx(0.01, rel=0.2)
    assert np.std(times) / np.mean(times) > 0.5


def test_expected_half_width_is_about_the_real_one() -> None:
    rng = np.random.default_rng(3)
    low, high = stats.bounds(1 + 0.01 * rng.standard_normal((400, 2000)), 1e-3)
    assert np.mean(high - low) / 2 == pytest.approx(stats.expected_half_width(0.01, 400, 1e-3), rel=0.1)


@given(st.integers(1, 300), st.integers(1, 60), st.floats(0.5, 0.999))
def test_all_looks_together_keep_the_error_budget(candidates: int, looks: int, confidence: float) -> None:
    tail = stats.tail_per_look(confidence, candidates, looks)
    assert 2 * candidates * looks * tail <= (1 - confidence) * (1 + 1e-9)


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="non-empty"):
        stats.median_interval([])
    with pytest.raises(ValueError, match="between 0 and 1"):
        stats.median_interval([1.0], 95)
    with pytest.raises(ValueError, match="equal lengths"):
        stats.ratio_interval([1.0, 2.0], [1.0], 0.95)
