"""Interleaved rounds on a simulated clock: pairs stay pairs, and time is what bounds a long kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.race.protocol import Budget, Disturbed, Rounds, interleaved
from tilewright.testing.simulated import NoiseModel, SimulatedClock

ANY = Budget(50, 1e9, 0)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_every_version_runs_once_a_round_and_samples_stand_by_version() -> None:
    clock = SimulatedClock([10.0, 20.0, 30.0], NoiseModel(sigma=0.0, outliers=0.0))
    timed = interleaved(clock, Rounds(3), ANY, rng())
    assert timed.samples_us == ((10.0,) * 50, (20.0,) * 50, (30.0,) * 50)
    assert clock.launches == [50, 50, 50]


def test_the_order_changes_from_round_to_round() -> None:
    """trust.md 24: who comes first has no advantage."""
    seen = []

    class Watching:
        def round(self, order: Sequence[int]) -> Sequence[float]:
            seen.append(tuple(order))
            return [1.0] * len(order)

    interleaved(Watching(), Rounds(3), ANY, rng())
    assert len(set(seen)) == 6


@pytest.mark.parametrize(("fewest", "rounds"), [(0, 20), (40, 40), (80, 50)])
def test_time_ends_what_is_long_but_not_before_the_fewest(fewest: int, rounds: int) -> None:
    clock = SimulatedClock([1000.0, 1000.0], NoiseModel(sigma=0, outliers=0, overhead_us=0.0))
    budget = Budget(50, 20 * 2e-3 - 1e-6, fewest)
    assert len(interleaved(clock, Rounds(2), budget, rng(), now=clock.now).samples_us[0]) == rounds


def test_disturbed_rounds_do_not_count() -> None:
    """trust.md 25."""
    clock = SimulatedClock([10.0, 20.0], NoiseModel(disturbed=0.3), seed=2)
    timed = interleaved(clock, Rounds(2), ANY, rng())
    assert [len(us) for us in timed.samples_us] == [50, 50]
    assert len(timed.disturbances) > 5 and "throttling" in timed.disturbances[0]


def test_a_machine_that_is_always_disturbed_ends_without_samples() -> None:
    class Throttled:
        def round(self, order: Sequence[int]) -> Sequence[float]:
            raise Disturbed("hw_slowdown")

    timed = interleaved(Throttled(), Rounds(2), ANY, rng())
    assert timed.samples_us == ((), ())
    assert len(timed.disturbances) == ANY.rounds + 1


def test_long_work_gives_signs_of_life() -> None:
    """The parent takes silence for a hang."""
    clock = SimulatedClock([500_000.0, 500_000.0], NoiseModel(sigma=0))
    said: list[int] = []
    interleaved(clock, Rounds(2), Budget(5, 1e9, 0), rng(), now=clock.now, on_progress=said.append)
    assert said == [0, 1, 2, 3, 4]
