"""The errors that Tilewright raises on purpose.

    TilewrightError
    ├── RequestError            the request is wrong (exit code 2)
    │   ├── TaskError           a task file that cannot be used
    │   ├── SpaceError          a space or a configuration that cannot be used
    │   ├── UnknownChoice       a name that is not among the choices
    │   ├── GridNotFound        no grid is given for a kernel, and none can be proved to be right
    │   └── Incorrect           the user's unchanged kernel computes wrong results (exit code 1)
    └── MachineError            this machine cannot do what was requested (exit code 3)
        ├── ToolFailed          a tool crashed, hung or printed nonsense; this is no verdict on its input
        │   └── CompilerMissing     a tool is not installed, or cannot be started
        ├── NoGpu               a GPU is needed and there is none
        └── StorageError        a result cannot be written

An error in one *candidate* is not raised but returned, as the value `records.Failed`.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

SHOWN = 12
"""The most names that a message lists next to the likely one."""


class TilewrightError(Exception):
    """The message is one line for the user: what is wrong, and the fix or the choices."""

    exit_code = 2


class RequestError(TilewrightError):
    exit_code = 2


class TaskError(RequestError):
    pass


class SpaceError(RequestError):
    pass


class UnknownChoice(RequestError):
    def __init__(self, kind: str, given: object, known: Iterable[object]):
        named = f"unknown {kind} '{given}'" if str(given) else f"the name of the {kind} is empty"
        super().__init__(f"{named}; {choices(given, known)}")


class GridNotFound(RequestError):
    pass


class Incorrect(RequestError):
    exit_code = 1


class MachineError(TilewrightError):
    exit_code = 3


class ToolFailed(MachineError):
    pass


class CompilerMissing(ToolFailed):
    pass


class NoGpu(MachineError):
    pass


class StorageError(MachineError):
    pass


def choices(given: object, known: Iterable[object]) -> str:
    """Returns the end of a message about an unknown name, such as ``did you mean 'TILE_M'? known: TILE_M, TILE_N``.

    Next to a likely name, a long list is cut. Without one, all names are listed.
    """
    names, text = [str(name) for name in known], str(given)
    near = difflib.get_close_matches(text, names, 1) or [name for name in names if name.lower() == text.lower()]
    if near and len(names) > SHOWN:
        names = [*names[: SHOWN - 1], f"and {len(names) - SHOWN + 1} more"]
    return (f"did you mean '{near[0]}'? " if near else "") + f"known: {', '.join(names) or 'none'}"


def first_line(text: str, otherwise: str = "") -> str:
    """Returns the first line of ``text`` that is not empty; ``otherwise`` if there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), otherwise)


def in_one_line(error: BaseException) -> str:
    """Returns the type of an exception and the first line of its message, in one line."""
    said = first_line(str(error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def in_task(error: BaseException) -> str:
    """Describes an error in one line, with file and line where the code of a task file raised it."""
    place = place_in_task(error)
    return f"{place}: {in_one_line(error)}" if place else in_one_line(error)


def place_in_task(error: BaseException) -> str | None:
    """Returns the innermost line of the task file in the traceback, such as ``ops.py:12``; None if there is none."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_task_code(frame):
            place = f"{Path(frame.f_code.co_filename).name}:{line}"
    return place


def is_task_code(frame: FrameType) -> bool:
    """Returns whether the code that a frame runs is in a task file."""
    return str(frame.f_globals.get("__name__", "")).startswith("tilewright_task_")
