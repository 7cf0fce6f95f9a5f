"""The gate of ``--tilewright-fail-slower``: how often it fails by chance, and what it finds (X-13)."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.latencies.comparing import LatencyChange, unpaired_ratio_interval
from tilewright.latencies.gate import CHANCE, POWER, findable, missing_runs, slower_by, spread

SESSIONS, SIGMA = 400, 0.02


def session(
    random: np.random.Generator, tests: int, runs: int, factor: float, others: float = 1.0
) -> tuple[LatencyChange, ...]:
    """A session in which the code of the first test is ``factor`` times slower, and that of all others ``others``."""
    changes = []
    for test in range(tests):
        slower = others if test else factor
        after, before = (np.exp(SIGMA * random.standard_normal(runs)) for _ in range(2))
        times = tuple(slower * after), tuple(before)
        ratio = unpaired_ratio_interval(*times)
        changes.append(LatencyChange(f"t{test}", "cutile", "forward", "new", "", 1.0, 1.0, ratio, *times))
    return tuple(changes)


@pytest.mark.parametrize(("factor", "limit"), [(1.0, 0.0), (1.05, 5.0)])
def test_however_many_tests_there_are_it_seldom_fails_by_chance(factor: float, limit: float) -> None:
    """Without the correction, 20 tests of equal code failed in every third session. A slowdown as large as the limit is
    no reason to fail: with a limit of 5 %, a true 5 % is not found."""
    random = np.random.default_rng(5)
    failed = sum(bool(slower_by(session(random, 20, 8, factor, factor), limit)) for _ in range(SESSIONS))
    assert failed <= CHANCE * SESSIONS + 3 * (CHANCE * SESSIONS) ** 0.5


@pytest.mark.parametrize(("tests", "runs", "limit"), [(1, 4, 2.0), (20, 8, 2.0), (5, 6, 0.0)])
def test_what_is_said_to_be_found_is_found(tests: int, runs: int, limit: float) -> None:
    random = np.random.default_rng(6)
    percent = findable(runs, runs, tests, limit, SIGMA)
    assert percent is not None
    every = [session(random, tests, runs, 1.0 + percent / 100.0) for _ in range(SESSIONS)]
    found = sum("t0" in [change.test for change in slower_by(changes, limit)] for changes in every)
    assert abs(found - POWER * SESSIONS) <= 4 * (POWER * (1 - POWER) * SESSIONS) ** 0.5
    assert spread(sum(every[:50], ())) == pytest.approx(SIGMA, rel=0.15)


def test_with_too_few_runs_it_finds_nothing_and_says_how_many_are_missing() -> None:
    random = np.random.default_rng(7)
    changes = session(random, 20, 4, 2.0, 2.0)
    assert not slower_by(changes, 5.0) and findable(4, 4, 20, 5.0, SIGMA) is None
    now, then = missing_runs(changes)
    assert (now, then) == (2, 2)
    enough = session(random, 20, 6, 2.0, 2.0)
    assert slower_by(enough, 5.0) == enough and missing_runs(enough) == (0, 0)
