"""Chooses what to compile from expected times (`SearchSpace.expected`) and from the outcomes so far.

The estimate is a Gaussian process over the logarithm of time / expected time. Configurations that are alike deviate
from their expected times alike, in the measure of `estimate.correlation`. Besides, all expected times may be wrong by
one factor, and differences between them too large or too small.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.records import Candidate, Configuration
from tilewright.strategies.base import Batch, Expectation, Outcomes, SearchSpace, unseen
from tilewright.strategies.estimate import Array, coordinates, correlation, logarithms, spread

OWN, SLOPE, FACTOR = 0.35, 0.3, 0.3
"""Standard deviations of the logarithm of time / expected time: of a configuration's own deviation, of the deviation
for a configuration expected to take e times as long as the shipped one, and of what all have in common."""
MEASURED, PREDICTED = 0.02, 0.15
"""Standard deviations of the logarithms of measured and predicted times."""
CURIOSITY = 0.7
"""How many standard deviations an estimate may be too high."""
LAST = 1e3
"""Added to the estimate of a configuration that is expected to have the machine code of another one, so it is last."""
READ, NEAR = 64, 24
"""In a pool of more than ``READ`` configurations, only ``READ`` spread ones and the first ``NEAR`` are read, and get
expected times of their own. The others get the time of the nearest of them. Reading a kernel takes up to 0.1 s."""


class Informed:
    """The choices of one search."""

    def __init__(self, space: SearchSpace, expected: Expectation) -> None:
        self.space, self.expected = space, expected
        self._read = spread(space.pool, READ, space.seed)
        self._logarithms: dict[Configuration, float] = {}
        self._like: Candidate | None = None

    @classmethod
    def of(cls, space: SearchSpace) -> Informed | None:
        """Returns the choices of a search; None if the shipped configuration has no expected time."""
        expected = space.expected
        return cls(space, expected) if expected is not None and expected.us((space.shipped,))[0] is not None else None

    def choose(
        self, pool: Sequence[Configuration], outcomes: Outcomes, shared: Collection[Configuration], count: int
    ) -> Batch:
        """Returns ``count`` configurations of ``pool`` that may be fastest, the shipped one first if ``outcomes`` is
        empty. The shipped one does not count if it is in ``shared``.

        shared: the configurations that are compiled for another workload (`SearchSpace.shared`).

        Each choice takes the lowest estimate. The next choice assumes that this estimate is right. The same is assumed
        of those in ``shared`` that have no outcome here yet. Of a large pool, only some are read (`READ`). What is
        expected to have the machine code of another one is chosen last.
        """
        self._see(outcomes)
        known = [outcome.configuration for outcome in outcomes] or [self.space.shipped]
        waiting = unseen(shared, known)
        read = pool if len(pool) <= READ else (*pool[:NEAR], *self._read)
        self._note((*known, *waiting, *read))
        every = (*known, *waiting, *unseen(pool, (*known, *waiting)))
        expected = self._expected(every)
        ratios = (np.array(logarithms(outcomes)) if outcomes else expected[:1]) - expected[: len(known)]
        noise = np.array([MEASURED if outcome.measured else PREDICTED for outcome in outcomes] or [MEASURED])
        chosen = [] if outcomes else known
        relative = expected - self._logarithms.get(self.space.shipped, expected[0])
        new = count - len(unseen(chosen, shared))
        codes = self._codes(every)
        picked = _lowest(coordinates(every), codes, expected, relative, ratios, noise, len(waiting), new)
        return (*chosen, *(every[place] for place in picked))

    def _see(self, outcomes: Outcomes) -> None:
        """Remembers the first compiled outcome, which shows how the kernel is compiled."""
        if self._like is None:
            self._like = next((each for each in outcomes if each.code is not None), None)
            self._logarithms.clear()

    def _note(self, configurations: Sequence[Configuration]) -> None:
        """Reads configurations, and remembers the logarithms of their expected times."""
        new = [each for each in dict.fromkeys(configurations) if each not in self._logarithms]
        for each, us in zip(new, self.expected.us(new, self._like), strict=True):
            self._logarithms[each] = math.log(us) if us else math.nan

    def _codes(self, configurations: Sequence[Configuration]) -> NDArray[np.int64]:
        """Numbers the machine codes that are expected, and returns the number of each configuration's code.

        Each that was not read counts as another code.
        """
        read = self._logarithms
        keys = [self.expected.identity(each, self._like) if each in read else each for each in configurations]
        number = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        return np.array([number[key] for key in keys])

    def _expected(self, configurations: Sequence[Configuration]) -> Array:
        """Returns the logarithms of expected times; for configurations that were not read, those of the nearest."""
        found = np.array([self._logarithms.get(each, math.nan) for each in configurations])
        own = np.flatnonzero(~np.isnan(found))
        missing = np.flatnonzero(np.isnan(found))
        if len(own) and len(missing):
            at = coordinates(configurations)
            distance = np.abs(at[missing, None, :] - at[None, own, :]).sum(axis=2)
            found[missing] = found[own[distance.argmin(axis=1)]]
        return np.asarray(np.nan_to_num(found))


def _lowest(
    at: Array, codes: NDArray[np.int64], expected: Array, relative: Array, ratios: Array, noise: Array, waiting: int,
    count: int,
) -> list[int]:  # fmt: skip
    """Returns the places of ``count`` further configurations, chosen one by one.

    at, codes, expected, relative: of all configurations: points, numbers of their codes, logarithms of expected times,
        and these less that of the shipped one.
    ratios, noise: of the first configurations, whose times are known.
    waiting: so many configurations after these are chosen already.
    """

    def covariances(places: Sequence[int]) -> Array:
        """Returns the covariances of all configurations with some: a row for each of all."""
        own = OWN**2 * correlation(at, at[places]) + FACTOR**2
        return np.asarray(own + SLOPE**2 * np.outer(relative, relative[places]))

    known, left = list(range(len(ratios))), list(range(len(ratios), len(expected)))
    with_known, own_variance = covariances(known), OWN**2 + FACTOR**2 + (SLOPE * relative) ** 2
    chosen: list[int] = []
    while left and len(chosen) < waiting + count:
        cross = with_known[left]
        solved = np.linalg.solve(with_known[known] + np.diag(noise**2), np.column_stack([ratios, cross.T]))
        mean = cross @ solved[:, 0]
        variance = own_variance[left] - np.einsum("ij,ji->i", cross, solved[:, 1:])
        lowest = expected[left] + mean - CURIOSITY * np.sqrt(np.maximum(variance, 1e-9))
        lowest[np.isin(codes[left], codes[known])] += LAST
        best = 0 if len(chosen) < waiting else int(lowest.argmin())
        ratios, noise = np.append(ratios, mean[best]), np.append(noise, MEASURED)
        known.append(left.pop(best))
        chosen.append(known[-1])
        with_known = np.column_stack([with_known, covariances(known[-1:])])
    return chosen[waiting:]
