"""Warnings in the user's program. They name the user's line, and never raise."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from tilewright.printable import printable

NOT_THE_USERS = {"tilewright", "triton", "cuda", "threading", "concurrent"}
"""Packages between the user's line and a warning."""


class TunedStoreWarning(UserWarning):
    """A store or a config file cannot be used. The program goes on without it."""


class TuningWarning(UserWarning):
    """A kernel runs without a tuned configuration, or its declaration is wrong. The text says why."""


_warned: set[str] = set()


def warn_once(text: str, about: str | None = None, category: type[Warning] = TunedStoreWarning) -> None:
    """Issues a warning, unless this process has already warned ``about`` the same thing (default: the same text)."""
    if (about or text) not in _warned:
        _warned.add(about or text)
        warn(text, category)


def warn(text: str, category: type[Warning]) -> None:
    """Issues a warning. Under ``-W error``, prints the warning to stderr instead of raising."""
    text = printable(" ".join(text.split()))  # names in a store may be somebody else's
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_inside(frame):
        frame = frame.f_back
    file, line, names = (frame.f_code.co_filename, frame.f_lineno, frame.f_globals) if frame else ("sys", 1, {})
    module, seen = names.get("__name__") or file, names.setdefault("__warningregistry__", {})
    try:
        warnings.warn_explicit(f"tilewright: {text}", category, file, line, module, seen)
    except category as warning:
        print(f"warning: {warning}", file=sys.stderr)


def _is_inside(frame: FrameType) -> bool:
    """Returns whether a frame belongs to `NOT_THE_USERS`, or is code that Tilewright generates or Python's import."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in NOT_THE_USERS or frame.f_code.co_filename.startswith(("<tilewright", "<frozen"))
