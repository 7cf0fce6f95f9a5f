"""In which order the configurations of a space are tried: one strategy a file."""

from __future__ import annotations

from tilewright.plugins import plugin_of
from tilewright.strategies.base import Strategy


def strategy_of(name: str) -> Strategy:
    """A strategy of this folder (bound to `STRATEGY`), or of the entry point group ``tilewright.strategies``."""
    strategy: Strategy = plugin_of("strategy", "tilewright.strategies", "STRATEGY", name)
    return strategy
