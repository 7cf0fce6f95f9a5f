"""Search strategies, which order the configurations of a space: one per file."""

from __future__ import annotations

from tilewright.plugins import plugin_of
from tilewright.strategies.base import Strategy


def strategy_of(name: str) -> Strategy:
    """Returns the strategy of that name: a module here binds it to `STRATEGY`, or a package has it in the entry point
    group ``tilewright.strategies``."""
    strategy: Strategy = plugin_of("strategy", "tilewright.strategies", "STRATEGY", name)
    return strategy
