"""Progress of long work, and the time that its stages take. A `Progress` is any function with these four parameters;
`silent` ignores them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

BEST = "best"
"""The stage whose note is the best result so far: the line below the bars."""


class Progress(Protocol):
    def __call__(self, stage: str, done: int, total: int | None, note: str = "") -> None:
        """``stage``: compile, verify, race … or `BEST`; ``total`` None where it is not known."""
        ...


def silent(stage: str, done: int, total: int | None, note: str = "") -> None:
    """Ignores all progress."""


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Adds the wall seconds of the block to those of its stage."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] += time.perf_counter() - started
