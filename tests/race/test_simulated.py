"""The simulated machines have the noise that they are asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.testing.simulated import NoiseModel, SimulatedClock, SimulatedMachines

QUIET = NoiseModel(sigma=0.0, outliers=0.0)
MACHINES = 4000


def timed(noise: NoiseModel, rounds: int = 1, captures: int = 1) -> np.ndarray:
    """Shape (captures, rounds, machines, 2): relative times of two candidates, timed in a random order."""
    rng = np.random.default_rng(1)
    machines = SimulatedMachines(np.full((MACHINES, 2), 100.0), noise, rng)
    times = np.empty((captures, rounds, MACHINES, 2))
    for rows in times:
        machines.capture()
        for row in rows:
            order = rng.permuted(np.tile([0, 1], (MACHINES, 1)), axis=1)
            np.put_along_axis(row, order, machines.round(order), axis=1)
    return times / 100


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def test_an_offset_is_constant_within_a_capture() -> None:
    times = timed(replace(QUIET, offset=0.005), rounds=3, captures=2)
    assert np.ptp(times, axis=1).max() < 1e-12
    assert times.std() == pytest.approx(0.005, rel=0.05)
    assert abs(correlation(times[0], times[1])) < 0.05 > abs(correlation(times[..., 0], times[..., 1]))


@pytest.mark.parametrize("phi", [0.95, 0.995])
def test_a_state_is_correlated_in_time_and_redrawn_at_each_capture(phi: float) -> None:
    times = timed(replace(QUIET, state=0.006, correlation=phi), rounds=60, captures=2)
    assert times[:, 0].std() == pytest.approx(0.006, rel=0.05) and times[:, 59].std() == pytest.approx(0.006, rel=0.05)
    assert correlation(times[:, 0], times[:, 1]) == pytest.approx(phi, abs=0.01)
    assert correlation(times[:, 0], times[:, 40]) == pytest.approx(phi**40, abs=0.05)
    assert abs(correlation(times[0], times[1])) < 0.05 > abs(correlation(times[..., 0], times[..., 1]))


def test_the_clock_has_two_modes() -> None:
    times = timed(replace(QUIET, mode=0.03, switch=0.1), rounds=40)[0]
    assert set(np.round(times.ravel(), 9)) == {1.0, 1.03}
    assert (times[20:] > 1.01).mean() == pytest.approx(0.5, abs=0.02)
    assert (times[..., 0] == times[..., 1]).mean() == pytest.approx(0.9, abs=0.02), "launch after launch, as a clock"


def test_orders_and_heavy_tails() -> None:
    times = timed(replace(QUIET, first_captured=0.02), rounds=2, captures=30)
    assert set(np.round(times.sum(axis=3).ravel(), 9)) == {2.0202013400}, "one of two is captured first"
    assert times[..., 0].mean() == pytest.approx(1.0101, abs=0.001)
    tails = timed(replace(QUIET, sigma=0.006, tails=2.0))
    assert np.median(np.abs(np.log(tails))) == pytest.approx(0.006 * 0.8165, rel=0.05)
    assert (np.abs(np.log(tails)) > 0.03).mean() > 0.02


def test_a_clock_is_one_of_the_machines() -> None:
    clock = SimulatedClock([100.0, 100.0], replace(QUIET, offset=0.01), seed=3)
    first, second = clock.round([0, 1]), clock.round([1, 0])
    assert first == second[::-1] and first[0] != first[1]
