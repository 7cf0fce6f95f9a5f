"""Interleaved rounds of a few versions, none dropped: what a confirmation measures.

A race (`protocol.race`) drops the slow; here every round times each version once, in a fresh random order, so
that all samples are pairs. A disturbed round is thrown away (trust.md 25).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.race.protocol import Clock, Disturbed

SIGN_OF_LIFE = 1.0
"""Seconds between two words of progress."""


@dataclass(frozen=True)
class Budget:
    """``rounds``, but no more than fit into ``seconds``; and at least ``fewest``, however long they take."""

    rounds: int
    seconds: float
    fewest: int


@dataclass(frozen=True)
class Timed:
    samples_us: tuple[tuple[float, ...], ...]
    """By version; the r-th of each are of the same round."""
    disturbances: tuple[str, ...]
    """One for each round that was thrown away."""


def interleaved(
    clock: Clock, n: int, budget: Budget, rng: np.random.Generator, *,
    on_progress: Callable[[int], None] = lambda rounds: None, now: Callable[[], float] = time.monotonic,
) -> Timed:  # fmt: skip
    """Times 0..n-1 of ``clock`` round by round. Ends early when more rounds were disturbed than asked for."""
    samples: list[list[float]] = [[] for _ in range(n)]
    disturbed: list[str] = []
    started = said = now()
    while (done := len(samples[0])) < budget.rounds and len(disturbed) <= budget.rounds:
        if done >= budget.fewest and now() - started >= budget.seconds:
            break
        order = [int(index) for index in rng.permutation(n)]
        try:
            times = clock.round(order)
        except Disturbed as disturbance:
            disturbed.append(str(disturbance))
        else:
            for index, us in zip(order, times, strict=True):
                samples[index].append(us)
        if now() - said >= SIGN_OF_LIFE:
            said = now()
            on_progress(done)
    return Timed(tuple(map(tuple, samples)), tuple(disturbed))
