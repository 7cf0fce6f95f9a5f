"""Defines the strategy of successive halving: a batch spread over the space, then smaller ones around the best."""

from __future__ import annotations

from tilewright.strategies.base import Outcomes, Search, SearchSpace, Strategy, fastest_first, unseen
from tilewright.strategies.estimate import most_promising, spread

FIRST = 0.5
"""The share of the configurations that the first batch has."""
BEST = 3
"""Neighbours of so many of the fastest are considered, besides the pool."""


class Halving(Strategy):
    """Compiles a spread batch first. Each further batch has half of what is left, around the fastest so far."""

    name = "halving"

    def search(self, space: SearchSpace) -> Search:
        outcomes: Outcomes = yield spread(space.pool, max(1, round(FIRST * space.most)), space.seed)
        while (left := space.most - len(outcomes)) > 0:
            timed = fastest_first(outcomes)
            near = (config for each in timed[:BEST] for config in space.neighbours(each.configuration))
            pool = unseen((*near, *space.pool), (each.configuration for each in outcomes))
            batch = most_promising(pool, outcomes, (left + 1) // 2)
            if not batch:
                return
            outcomes += yield batch


STRATEGY = Halving()
