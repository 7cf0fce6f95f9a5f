"""Defines the strategy of local search: neighbours of the fastest configuration, step by step."""

from __future__ import annotations

from tilewright.strategies.base import Outcomes, Search, SearchSpace, Strategy, fastest_first, unseen
from tilewright.strategies.estimate import spread

FIRST = 0.25
"""The share of the configurations that the first batch has."""


class LocalSearch(Strategy):
    """Compiles a spread batch with the shipped configuration. Then it compiles the neighbours of the fastest.

    If all neighbours of the fastest are compiled, the neighbours of the second fastest follow, and so on.
    """

    name = "local"

    def search(self, space: SearchSpace) -> Search:
        outcomes: Outcomes = yield spread(space.pool, max(1, round(FIRST * space.most)), space.seed)
        while len(outcomes) < space.most:
            timed = fastest_first(outcomes)
            seen = [each.configuration for each in outcomes]
            steps = (unseen(space.neighbours(each.configuration), seen) for each in timed)
            batch = next((step for step in steps if step), unseen(space.pool, seen, 1))
            if not batch:
                return
            outcomes += yield batch[: space.most - len(outcomes)]


STRATEGY = LocalSearch()
