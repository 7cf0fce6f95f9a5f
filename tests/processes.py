"""What runs on this machine, for tests of what Tilewright leaves behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

PATIENCE = 120.0
"""Seconds after which a test gives up. No test passes or fails by what a busy machine needs."""

_NUMBERS = count()


def until(condition: Callable[[], Any]) -> bool:
    """Waits until the condition holds. Returns False if it never does."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > ends:
            return False
        time.sleep(0.01)
    return True


def for_ever() -> str:
    """The seconds for a ``sleep`` that no other process on this machine has among its arguments."""
    return f"3600.{os.getpid():010}{next(_NUMBERS):04}"


def state_and_parent(process: int | str) -> tuple[str, int] | None:
    """The state letter of a process and its parent; None if it is gone. A killed one is ``Z`` until someone waits."""
    try:
        state, parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return state, int(parent)


def ended(process: int) -> bool:
    """Whether a process runs no more."""
    found = state_and_parent(process)
    return found is None or found[0] == "Z"


def own_children() -> set[int]:
    """The child processes of this one, whichever of its threads started them."""
    found = {entry: state_and_parent(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    return {int(process) for process, seen in found.items() if seen is not None and seen[1] == os.getpid()}


def running(word: str) -> bool:
    """Whether any process on this machine has ``word`` among its arguments."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def gone(word: str) -> bool:
    """Whether each process with ``word`` among its arguments ends: a killed one takes a moment."""
    return until(lambda: not running(word))
