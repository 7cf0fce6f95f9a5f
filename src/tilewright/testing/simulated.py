"""Clocks that need no GPU: `SimulatedClock` has known true times, `ReplayedClock` replays recorded times.

Both implement `tilewright.race.protocol.Clock`. Equal seeds give equal times. A test can check whether the true time of
the winner is within the tie band, and whether 20 processes agree. `SimulatedMachines` times the same candidates on many
machines at once, for statistics of decisions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from tilewright.race.protocol import CandidateCrashed, Disturbed, RaceOutcome
from tilewright.race.stats import Array


@dataclass(frozen=True)
class NoiseModel:
    """The noise of a simulated machine. The defaults are for a quiet data-centre GPU."""

    sigma: float = 0.01  # log-normal noise of one sample (relative, one sigma)
    tails: float = math.inf  # degrees of freedom of Student's distribution for this noise; inf: normal distribution
    outliers: float = 0.02  # probability that a sample is an outlier
    outlier_size: float = 0.20  # an outlier takes longer by this fraction
    drift: float = 0.0  # random walk of the clock, the same for a whole round: sigma of each step (relative)
    disturbed: float = 0.0  # probability that a whole round is disturbed
    first_penalty: float = 0.0  # the first launch of a round takes longer by this fraction
    step_us: float = 0.0  # resolution of the timer in µs; 0: continuous
    overhead_us: float = 50.0  # wall time around each timed launch (L2 flush, launch); only for `SimulatedClock.now`
    offset: float = 0.0  # offset of each candidate, drawn at each capture (relative, one sigma)
    first_captured: float = 0.0  # the candidate captured first takes longer by this fraction until the next capture
    state: float = 0.0  # AR(1) state of each candidate, redrawn at each capture (relative, one sigma)
    correlation: float = 0.0  # correlation of `state` between two rounds
    mode: float = 0.0  # the clock has a second mode, in which every launch takes longer by this fraction
    switch: float = 0.02  # probability that the clock changes its mode between two launches


class SimulatedMachines:
    """Times candidates on n machines at once. ``true_us``: the true times in µs, shape (n, candidates)."""

    def __init__(self, true_us: ArrayLike, noise: NoiseModel, rng: np.random.Generator) -> None:
        self.true_us: Array = np.asarray(true_us, dtype=np.float64)
        self.noise, self._rng, (self._captures,) = noise, rng, rng.spawn(1)
        self._walk: Array = np.zeros((len(self.true_us), 1))
        self._slow = np.zeros(len(self.true_us), dtype=bool)
        self.capture()

    def capture(self) -> None:
        """Captures all candidates again, in random order."""
        model, shape, draw = self.noise, self.true_us.shape, self._captures.standard_normal
        self._offset: Array = model.offset * draw(shape)
        self._offset[np.arange(shape[0]), self._captures.integers(shape[1], size=shape[0])] += model.first_captured
        self._state: Array = model.state * draw(shape)

    def round(self, order: ArrayLike) -> Array:
        """Runs one round on each machine. ``order``: indices of candidates, shape (n, launches).

        Returns the times in µs, with the same shape.
        """
        model, rng, indices = self.noise, self._rng, np.asarray(order)
        self._walk += model.drift * rng.standard_normal(self._walk.shape)
        times: Array = np.take_along_axis(self.true_us * np.exp(self._offset + self._state), indices, 1)
        normal = math.isinf(model.tails)
        noise = rng.standard_normal(indices.shape) if normal else rng.standard_t(model.tails, indices.shape)
        times *= np.exp(self._walk + model.sigma * noise)
        times *= np.where(rng.random(indices.shape) < model.outliers, 1.0 + model.outlier_size, 1.0)
        times[:, 0] *= 1.0 + model.first_penalty
        if model.mode:
            for column in times.T:
                self._slow ^= rng.random(len(times)) < model.switch
                column *= 1.0 + model.mode * self._slow
        if model.state:
            innovation = math.sqrt(1 - model.correlation**2) * model.state
            self._state *= model.correlation
            self._state += innovation * self._captures.standard_normal(self._state.shape)
        if model.step_us:
            times = np.maximum(np.round(times / model.step_us), 1.0) * model.step_us
        return times


@dataclass
class SimulatedClock:
    """Times candidates whose true times (µs) are known."""

    true_us: Sequence[float]
    noise: NoiseModel = field(default_factory=NoiseModel)
    seed: int = 0
    crash_at: Mapping[int, int] = field(default_factory=dict)  # the round (from 0) in which a candidate crashes
    rounds: int = field(default=0, init=False)
    launches: list[int] = field(default_factory=list, init=False)  # launches of each candidate so far
    elapsed_us: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._machine = SimulatedMachines([self.true_us], self.noise, self._rng)
        self.launches = [0] * len(self.true_us)

    def now(self) -> float:
        """Returns the simulated wall time in seconds. Pass this function as ``now`` to a race."""
        return self.elapsed_us * 1e-6

    def round(self, order: Sequence[int]) -> Sequence[float]:
        here, self.rounds = self.rounds, self.rounds + 1
        for index in order:
            if self.crash_at.get(index, here + 1) <= here:
                raise CandidateCrashed(index, "CUDA_ERROR_ILLEGAL_ADDRESS (simulated)")
            self.launches[index] += 1
        model, size = self.noise, len(order)
        self._machine.noise = model
        times = self._machine.round([order])[0]
        self.elapsed_us += float(times.sum()) + size * model.overhead_us
        if self._rng.random() < model.disturbed:
            raise Disturbed("thermal throttling (simulated)")
        measured: list[float] = times.tolist()
        return measured


class ReplayedClock:
    """Replays rounds of a recorded race. Each round is drawn at random, so a recorded round may occur several times.

    samples_us: ``samples_us[i][r]`` is the time of candidate i in recorded round r, in µs. If the candidate did not run
        in this round, the time is nan or missing.

    A new round times some of the candidates. The clock draws one of the recorded rounds in which all of these
    candidates ran, so that the times of one round stay together. If there is no such round, the clock draws the time of
    each candidate separately.
    """

    def __init__(self, samples_us: Sequence[Sequence[float]], seed: int = 0):
        self._table = np.full((len(samples_us), max(map(len, samples_us), default=0)), np.nan)
        for row, samples in zip(self._table, samples_us, strict=True):
            row[: len(samples)] = samples
        self._rng = np.random.default_rng(seed)

    @classmethod
    def of(cls, outcome: RaceOutcome, seed: int = 0) -> ReplayedClock:
        table = np.full((len(outcome.candidates), outcome.rounds), np.nan)
        for raced in outcome.candidates:
            table[raced.index, list(raced.rounds)] = raced.samples_us
        return cls(table.tolist(), seed)

    def round(self, order: Sequence[int]) -> Sequence[float]:
        picked = self._table[list(order)]
        ran = np.isfinite(picked)
        for index, times in zip(order, ran, strict=True):
            if not times.any():
                raise CandidateCrashed(index, "no time was recorded for this candidate")
        common = np.flatnonzero(ran.all(axis=0))
        if common.size:
            replayed: list[float] = picked[:, self._rng.choice(common)].tolist()
            return replayed
        return [float(self._rng.choice(row[ok])) for row, ok in zip(picked, ran, strict=True)]
