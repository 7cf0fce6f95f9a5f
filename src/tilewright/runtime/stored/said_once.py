"""Warnings of the store and of shipped tables: once a process for each thing, and never an exception."""

from __future__ import annotations

import sys
import warnings


class TunedStoreWarning(UserWarning):
    """A store or a table of tuned kernels cannot be used, and the program goes on without it."""


_said: set[str] = set()


def warn_once(text: str, about: str | None = None) -> None:
    """One warning a process ``about`` one thing. It never raises, not even under ``-W error``."""
    if (about or text) in _said:
        return
    _said.add(about or text)
    try:
        warnings.warn(f"tilewright: {text}", TunedStoreWarning, stacklevel=2)
    except TunedStoreWarning as warning:
        print(f"warning: {warning}", file=sys.stderr)
