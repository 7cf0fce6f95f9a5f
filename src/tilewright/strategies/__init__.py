"""In which order the configurations of a space are tried: one strategy a file."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import UnknownChoice
from tilewright.plugins import plugins
from tilewright.strategies.base import Strategy


def strategies() -> Iterator[Strategy]:
    """Those in this folder that bind `STRATEGY`, then those of the entry point group ``tilewright.strategies``."""
    return plugins("tilewright.strategies", "STRATEGY")


def strategy_of(name: str) -> Strategy:
    """The strategy of that name. Raises UnknownChoice, which names the choices."""
    for strategy in strategies():
        if strategy.name == name:
            return strategy
    raise UnknownChoice("strategy", name, (strategy.name for strategy in strategies()))
