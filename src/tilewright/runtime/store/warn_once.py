"""Warnings about the store and config files, which are issued once per process and never raise."""

from __future__ import annotations

import sys
import warnings

from tilewright.printable import printable


class TunedStoreWarning(UserWarning):
    """A store or a config file cannot be used. The program goes on without it."""


_warned: set[str] = set()


def warn_once(text: str, about: str | None = None, category: type[Warning] = TunedStoreWarning) -> None:
    """Issues a warning, unless this process has already warned ``about`` the same thing (default: the same text)."""
    if (about or text) not in _warned:
        _warned.add(about or text)
        warn(text, category)


def warn(text: str, category: type[Warning]) -> None:
    """Issues a warning. Under ``-W error``, prints the warning to stderr instead of raising."""
    text = printable(" ".join(text.split()))  # names in a store may be somebody else's
    try:
        warnings.warn(f"tilewright: {text}", category, stacklevel=3)
    except category as warning:
        print(f"warning: {warning}", file=sys.stderr)
