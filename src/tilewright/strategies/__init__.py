"""Search strategies, one in each file. A strategy chooses the configurations to try, and their order."""

from __future__ import annotations

from tilewright.plugins import plugin_of
from tilewright.strategies.base import Strategy


def strategy_of(name: str) -> Strategy:
    """Returns the strategy called ``name``: a module's `STRATEGY` or an entry point of ``tilewright.strategies``."""
    strategy: Strategy = plugin_of("strategy", "tilewright.strategies", "STRATEGY", name)
    return strategy
