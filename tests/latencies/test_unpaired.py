"""The interval of a factor between two groups of runs: its coverage, its law, and when it says nothing (X-13)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.latencies.comparing import FEWEST, more_runs, splits, unpaired_ratio_interval

TIMES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9)


@given(TIMES, TIMES, st.floats(0.1, 10.0))
def test_it_scales_and_turns_round(after: list[float], before: list[float], factor: float) -> None:
    one = unpaired_ratio_interval(after, before)
    scaled = unpaired_ratio_interval([factor * t for t in after], before)
    turned = unpaired_ratio_interval(before, after)
    assert one.low <= one.centre <= one.high
    assert one.decided == scaled.decided == turned.decided
    assert scaled.centre == pytest.approx(factor * one.centre)
    if one.decided:
        assert (turned.low, turned.high) == pytest.approx((1 / one.high, 1 / one.low))


@given(st.integers(1, 6), st.integers(1, 6))
def test_the_splits_are_counted_exactly(m: int, n: int) -> None:
    """Against all C(m + n, m) splits, one by one."""
    counts = [0] * (m * n + 1)
    for places in itertools.combinations(range(m + n), m):
        counts[sum(place - i for i, place in enumerate(places))] += 1
    assert splits(m, n) == counts


@pytest.mark.parametrize(
    ("m", "n", "decided"), [(4, 4, True), (3, 5, True), (5, 3, True), (3, 4, False), (2, 40, False)]
)
def test_the_fewest_runs(m: int, n: int, decided: bool) -> None:
    assert unpaired_ratio_interval([1.0] * m, [1.0] * n).decided == decided
    assert (more_runs(m, n) == (0, 0)) == decided


@given(st.integers(0, 6), st.integers(0, 12))
def test_what_is_lacking_is_enough_and_not_too_much(m: int, n: int) -> None:
    now, then = more_runs(m, n)
    assert unpaired_ratio_interval([1.0] * (m + now), [1.0] * (n + then)).decided
    if now + then:
        fewer = [(a, now + then - 1 - a) for a in range(now + then)]
        assert not any(
            min(m + a, n + b) >= FEWEST and unpaired_ratio_interval([1.0] * (m + a), [1.0] * (n + b)).decided
            for a, b in fewer
        )


def test_equal_code_is_called_different_no_more_often_than_promised() -> None:
    """Skewed times, 5 and 4 runs: the true factor lies outside in at most 5 % of 4000 comparisons."""
    random = np.random.default_rng(7)
    outside = 0
    for _ in range(4000):
        a, b = np.exp(0.05 * random.exponential(size=5)), np.exp(0.05 * random.exponential(size=4))
        found = unpaired_ratio_interval(1.25 * a, b)
        outside += not found.low <= 1.25 <= found.high
    assert outside <= 0.05 * 4000 + 3 * math.sqrt(0.05 * 0.95 * 4000)
    assert outside > 0, "the interval is wider than it need be"


def test_wrong_requests() -> None:
    with pytest.raises(ValueError, match="confidence"):
        unpaired_ratio_interval([1.0], [1.0], 1.0)
    with pytest.raises(ValueError, match="non-empty"):
        unpaired_ratio_interval([], [1.0])
