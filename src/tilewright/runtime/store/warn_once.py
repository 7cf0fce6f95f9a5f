"""Warnings about the store and config files, which are issued once per process and never raise."""

from __future__ import annotations

import sys
import warnings


class TunedStoreWarning(UserWarning):
    """Says that the program goes on without a store or a config file that cannot be used."""


_warned: set[str] = set()


def warn_once(text: str, about: str | None = None) -> None:
    """Issues a warning, unless this process has already warned ``about`` the same thing (default: the same text)."""
    if (about or text) not in _warned:
        _warned.add(about or text)
        warn(text, TunedStoreWarning)


def warn(text: str, category: type[Warning]) -> None:
    """Issues a warning. Under ``-W error``, where this raises, it prints the warning to stderr instead."""
    try:
        warnings.warn(f"tilewright: {text}", category, stacklevel=3)
    except category as warning:
        print(f"warning: {warning}", file=sys.stderr)
