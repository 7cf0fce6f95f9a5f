"""Defines the strategy that compiles all configurations: the default for up to `LISTED` configurations."""

from __future__ import annotations

from itertools import islice

from tilewright.strategies.base import Search, SearchSpace, Strategy


class Exhaustive(Strategy):
    """Compiles all configurations, in the order of the space."""

    name = "exhaustive"
    share = 1.0

    def search(self, space: SearchSpace) -> Search:
        yield tuple(islice(space.each(), space.most))


STRATEGY = Exhaustive()
