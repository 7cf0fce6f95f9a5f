"""Defines the strategy of successive halving: a first batch over the space, then smaller ones around the best."""

from __future__ import annotations

from tilewright.strategies.base import Outcomes, Search, SearchSpace, Strategy, fastest_first, unseen
from tilewright.strategies.estimate import most_promising, spread
from tilewright.strategies.informed import Informed

FIRST = 0.5
"""The share of the configurations that the first batch has, if nothing is known of them before they are compiled."""
FIRST_EXPECTED = 0.34
"""The same if their expected times are known."""
BEST = 3
"""Neighbours of so many of the fastest are considered, besides the pool."""


class Halving(Strategy):
    """Compiles a first batch: those expected to be fastest, or a spread batch if expected times are not known.

    Each further batch has half of what is left, around the fastest so far. What is compiled for other workloads anyway
    is not asked for.
    """

    name = "halving"

    def search(self, space: SearchSpace) -> Search:
        """Yields the first batch, then half of what is left, again and again."""
        informed, shared = Informed.of(space), space.shared()
        if informed is not None:
            first = informed.choose(space.pool, (), shared, _share(space, FIRST_EXPECTED))
        else:
            first = spread(space.pool, _share(space, FIRST), space.seed)
        left = space.most - sum(map(space.counts, first))
        outcomes: Outcomes = yield first
        while left > 0:
            shared = space.shared()
            known = (*outcomes, *filter(None, shared.values()))
            near = (config for each in fastest_first(known)[:BEST] for config in space.neighbours(each.configuration))
            pool = unseen((*near, *space.pool), (*(each.configuration for each in known), *shared))
            half = (left + 1) // 2
            batch = informed.choose(pool, known, shared, half) if informed else most_promising(pool, known, half)
            if not batch:
                return
            left -= sum(map(space.counts, batch))
            outcomes += yield batch


def _share(space: SearchSpace, share: float) -> int:
    return max(1, round(share * space.most))


STRATEGY = Halving()
