"""Estimates the times of configurations from the times of similar ones, and times.

The estimate is a Gaussian process over the logarithms of times. Configurations are points whose coordinates are the
places of their values among the sorted values of each knob, from 0 to 1.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.records import Candidate, Configuration, Value
from tilewright.strategies.base import Batch, best_us

Array = NDArray[np.float64]

NEAR, NEAR_IN_ONE_KNOB = 1.0, 0.5
"""Distances at which the times of two configurations are correlated by exp(-1/2): over all knobs, and in one knob."""
ALONE = 0.5
"""Share of the variance that each knob explains alone, without the others."""
NOISE = 0.02
"""Share of the variance that the coordinates do not explain."""
CURIOSITY = 1.0
"""How many standard deviations an estimate may be too high."""
FAILED = math.log(2)
"""A configuration that failed counts as twice as slow as the slowest."""


def spread(pool: Sequence[Configuration], count: int, seed: int) -> Batch:
    """Returns ``count`` configurations of ``pool``: the first, and random others in which all values are equally often.

    Each choice takes the configuration whose values were chosen least often so far.
    """
    others = list(pool[1:])
    random.Random(seed).shuffle(others)
    codes = _codes((pool[0], *others))
    used = [np.bincount(column[:1], minlength=column.max() + 1) for column in codes.T]
    chosen = [0]
    while len(chosen) < min(count, len(pool)):
        often = np.sum([counts[column] for counts, column in zip(used, codes.T, strict=True)], axis=0)
        often[chosen] = np.iinfo(np.int64).max
        chosen.append(int(often.argmin()))
        for counts, value in zip(used, codes[chosen[-1]], strict=True):
            counts[value] += 1
    return tuple((pool[0], *others)[place] for place in chosen)


def most_promising(pool: Sequence[Configuration], outcomes: Sequence[Candidate], count: int) -> Batch:
    """Returns the ``count`` configurations of ``pool`` that may be fastest, judged by ``outcomes`` of others.

    Each choice takes the lowest estimate. The next choice assumes that this estimate is right.
    """
    times = logarithms(outcomes)
    at = coordinates((*(outcome.configuration for outcome in outcomes), *pool))
    known, left = list(range(len(outcomes))), list(range(len(outcomes), len(at)))
    chosen: list[Configuration] = []
    while left and len(chosen) < count:
        mean, deviation = _estimates(at[known], np.array(times), at[left])
        best = int((mean - CURIOSITY * deviation).argmin())
        times.append(float(mean[best]))
        known.append(left.pop(best))
        chosen.append(pool[known[-1] - len(outcomes)])
    return tuple(chosen)


def logarithms(outcomes: Sequence[Candidate]) -> list[float]:
    """Returns the logarithm of each outcome's time. Predicted times are scaled like measured ones."""
    both = [(each.measured.us, each.predicted.us) for each in outcomes if each.measured and each.predicted]
    error = statistics.median([math.log(measured / predicted) for measured, predicted in both]) if both else 0.0
    known = [None if (us := best_us(each)) is None else math.log(us) + error * (not each.measured) for each in outcomes]
    slowest = max((time for time in known if time is not None), default=0.0)
    return [slowest + FAILED if time is None else time for time in known]


def _estimates(at: Array, times: Array, others: Array) -> tuple[Array, Array]:
    """Returns means and standard deviations of the logarithms of times at ``others``."""
    centre, width = times.mean(), times.std() + 1e-6
    own, cross = correlation(at, at) + NOISE * np.eye(len(at)), correlation(others, at)
    solved = np.linalg.solve(own, np.column_stack([(times - centre) / width, cross.T]))
    variance = 1 - np.einsum("ij,ji->i", cross, solved[:, 1:])
    return centre + width * (cross @ solved[:, 0]), width * np.sqrt(np.maximum(variance, 1e-9))


def correlation(a: Array, b: Array) -> Array:
    """Returns how much the times at points ``a`` and ``b`` are correlated, from 0 to 1: a row for each of ``a``."""
    squares = [(a[:, None, knob] - b[None, :, knob]) ** 2 for knob in range(a.shape[1])]
    together = np.exp(-np.sum(squares, axis=0) / (2 * NEAR**2))
    alone = np.mean([np.exp(-square / (2 * NEAR_IN_ONE_KNOB**2)) for square in squares], axis=0)
    return np.asarray((1 - ALONE) * together + ALONE * alone)


def coordinates(configurations: Sequence[Configuration]) -> Array:
    """Returns the points of configurations, from 0 to 1 along each knob: one row for each configuration."""
    codes = _codes(configurations)
    return np.asarray(codes / np.maximum(1, codes.max(axis=0)))


def _codes(configurations: Sequence[Configuration]) -> NDArray[np.int64]:
    """Returns the place of each value among the sorted values of its knob: one row for each configuration.

    A knob that a configuration lacks counts as None.
    """
    columns = []
    for knob in dict.fromkeys(knob for configuration in configurations for knob in configuration):
        values = [configuration.get(knob) for configuration in configurations]
        place = {value: at for at, value in enumerate(sorted(set(values), key=_order))}
        columns.append([place[value] for value in values])
    return np.array(columns, dtype=np.int64).T


def _order(value: Value) -> tuple[int, float, str]:
    if value is None:
        return 0, 0.0, ""
    return (2, 0.0, value) if isinstance(value, str) else (1, float(value), "")
