"""Reports the progress of long work, and measures the time of its stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

BEST = "best"
"""The stage that reports the best result so far, in its note. The note is shown below the progress bars."""


class Progress(Protocol):
    """A function that shows the progress of a stage."""

    def __call__(self, stage: str, done: int, total: int | None, note: str = "") -> None:
        """``stage``: compile, verify, race … or `BEST`. ``done`` of ``total`` items are finished; None if unknown."""
        ...


def silent(stage: str, done: int, total: int | None, note: str = "") -> None:
    """The `Progress` that shows nothing."""


def named(progress: Progress, name: str) -> Progress:
    """Returns a `Progress` that shows the same work as ``progress``, with the name of one of several runs."""

    def show(stage: str, done: int, total: int | None, note: str = "") -> None:
        if stage == BEST:
            progress(stage, done, total, f"{name}: {note}")
        else:
            progress(f"{stage} {name}", done, total, note)

    return show


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Adds the wall time of a ``with`` block to ``seconds[stage]``."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] += time.perf_counter() - started
