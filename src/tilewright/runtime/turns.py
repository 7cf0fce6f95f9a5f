"""Runs in a program that was started early: it waits for its turn before its first step.

So its imports and its data are ready when the runs before it end, and its steps are made alone.
"""

from __future__ import annotations

import os
import time

VARIABLE = "TILEWRIGHT_TURN"
"""The name of an environment variable with the path of a named pipe. A byte in it is the turn of one process."""


def wait_for_turn() -> float:
    """Waits for the turn, once in a process. Returns the seconds waited. Does not wait if the variable is not set."""
    pipe = os.environ.pop(VARIABLE, "")
    began = time.monotonic()
    if pipe:
        with open(pipe, "rb", buffering=0) as turns:
            turns.read(1)
    return time.monotonic() - began
