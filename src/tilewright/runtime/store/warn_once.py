"""Warnings about the store and about config files: each once in a process, and never an exception."""

from __future__ import annotations

import sys
import warnings


class TunedStoreWarning(UserWarning):
    """A store or a config file cannot be used, and the program goes on without it."""


_said: set[str] = set()


def warn_once(text: str, about: str | None = None) -> None:
    """One warning in a process ``about`` one thing. It never raises, not even under ``-W error``."""
    if (about or text) in _said:
        return
    _said.add(about or text)
    warn(text, TunedStoreWarning)


def warn(text: str, category: type[Warning]) -> None:
    """A warning. Under ``-W error``, where it would be an exception, it goes to stderr."""
    try:
        warnings.warn(f"tilewright: {text}", category, stacklevel=3)
    except category as warning:
        print(f"warning: {warning}", file=sys.stderr)
