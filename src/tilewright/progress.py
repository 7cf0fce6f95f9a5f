"""Progress of long work. A `Progress` is any function with these four parameters; `silent` ignores them."""

from __future__ import annotations

from typing import Protocol

BEST = "best"
"""The stage whose note is the best result so far: the line below the bars."""


class Progress(Protocol):
    def __call__(self, stage: str, done: int, total: int | None, note: str = "") -> None:
        """``stage``: compile, verify, race … or `BEST`; ``total`` None where it is not known."""
        ...


def silent(stage: str, done: int, total: int | None, note: str = "") -> None:
    """Ignores all progress."""
