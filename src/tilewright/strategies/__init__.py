"""Search strategies, one in each file. A strategy chooses the configurations to compile, and their order."""

from __future__ import annotations

from tilewright.plugins import plugin_of
from tilewright.strategies.base import Strategy

LISTED = 500
"""Up to so many configurations, all are compiled by default."""
FOR_LARGE = "halving"
"""The default strategy for larger spaces: the best by replay of recorded times (bench/strategies.py)."""
LEAST, MOST = 8, 200
"""A strategy compiles `Strategy.share` of the configurations, but within these limits unless the share is 1."""


def strategy_of(name: str) -> Strategy:
    """Returns the strategy called ``name``: a module's `STRATEGY` or an entry point of ``tilewright.strategies``."""
    strategy: Strategy = plugin_of("strategy", "tilewright.strategies", "STRATEGY", name)
    return strategy
