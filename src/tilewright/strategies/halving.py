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

    Each further batch has half of what is left, around the fastest so far.
    """

    name = "halving"

    def search(self, space: SearchSpace) -> Search:
        informed = Informed(space, space.expected) if space.expected is not None else None
        if informed is not None and informed.knows():
            choose, first = informed.choose, informed.choose(space.pool, (), _share(space, FIRST_EXPECTED))
        else:
            choose, first = most_promising, spread(space.pool, _share(space, FIRST), space.seed)
        outcomes: Outcomes = yield first
        while (left := space.most - len(outcomes)) > 0:
            timed = fastest_first(outcomes)
            near = (config for each in timed[:BEST] for config in space.neighbours(each.configuration))
            pool = unseen((*near, *space.pool), (each.configuration for each in outcomes))
            batch = choose(pool, outcomes, (left + 1) // 2)
            if not batch:
                return
            outcomes += yield batch


def _share(space: SearchSpace, share: float) -> int:
    return max(1, round(share * space.most))


STRATEGY = Halving()
