"""Finds where a program makes a launch, and which of its functions can be called again to make the same launch.

The innermost function of the program whose arguments can all be described is the one to call again. Its arguments are
read when the launch is made. So if the function has assigned other values to its parameters, these are recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from inspect import CO_VARARGS, CO_VARKEYWORDS, unwrap
from pathlib import Path
from types import FrameType
from typing import Any

from tilewright.runtime.capture.described import Argument, described_arguments

OUTSIDE = ("cuda.", "tilewright.", "torch.", "triton.")
"""Prefixes of the names of modules whose functions are not the program's."""
PLACES = 4
"""The most lines that are recorded."""
FRAMES = 12
"""The most functions of the program that are looked at, from the innermost outwards."""


@dataclass(frozen=True)
class ProgramLine:
    """A line of the program. ``function``: the name of the function around it."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class ProgramCall:
    """The place of a launch in a program, and the call of a function that makes the launch again.

    places: the line that makes the launch, and the lines that called it, from the innermost outwards. A library may
        launch through a function of its own. Then the ``ct.launch`` with the grid and the arguments is further out.
    """

    places: tuple[ProgramLine, ...]
    file: str = ""
    module: str = ""
    qualname: str = ""
    """The function to call again, with its file and module; empty if there is none."""
    arguments: tuple[Argument, ...] = ()

    def import_root(self, file: str) -> Path | None:
        """Returns the folder from which the program's package with ``file`` is imported; None if it is not in one."""
        top = self.module.split(".")[0]
        return next((folder.parent for folder in Path(file).parents if folder.name == top), None)

    def on_this_machine(self) -> ProgramCall:
        """Returns the call with the files of this machine, if the program's package is imported from elsewhere here."""
        top = self.module.split(".")[0]
        try:
            found = None if not top or Path(self.file).is_file() else find_spec(top)
        except (ImportError, ValueError):
            found = None
        before = self.import_root(self.file)
        if found is None or not found.origin or before is None:
            return self
        now = Path(found.origin).parent.parent

        def here(file: str) -> str:
            return str(now / Path(file).relative_to(before)) if Path(file).is_relative_to(before) else file

        places = tuple(replace(place, file=here(place.file)) for place in self.places)
        return replace(self, file=here(self.file), places=places)


def program_call() -> ProgramCall | None:
    """Returns the place and the call of the launch that is being made. None if no function of the program is found."""
    frames = list(_frames())[:FRAMES]
    if not frames:
        return None
    shown = tuple(ProgramLine(each.f_code.co_filename, each.f_lineno, _qualname(each)) for each in frames[:PLACES])
    for frame in frames:
        if (arguments := _arguments(frame)) is not None:
            module = str(frame.f_globals.get("__name__", ""))
            return ProgramCall(shown, frame.f_code.co_filename, module, _qualname(frame), arguments)
    return ProgramCall(shown)


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not f"{frame.f_globals.get('__name__', '')}.".startswith(OUTSIDE):
            yield frame
        frame = frame.f_back


def _qualname(frame: FrameType) -> str:
    return str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))  # Python 3.10 has no qualified name


def _arguments(frame: FrameType) -> tuple[Argument, ...] | None:
    """Returns the arguments of the function of a frame; None if it cannot be called again with a description of
    them."""
    code = frame.f_code
    function: Any = sys.modules.get(str(frame.f_globals.get("__name__", "")))
    for name in _qualname(frame).split("."):
        function = getattr(function, name, None)
    if getattr(unwrap(function) if callable(function) else None, "__code__", None) is not code:
        return None
    named = code.co_argcount + code.co_kwonlyargcount
    more = bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    names = code.co_varnames[: named + more]
    values = {name: frame.f_locals.get(name) for name in names}
    if any(name not in frame.f_locals for name in names[:named]) or any(values[name] for name in names[named:]):
        return None
    given = {name: values[name] for name in names[:named]}
    arguments = described_arguments(given)
    return arguments if _is_described(arguments) else None


def _is_described(arguments: Sequence[Argument]) -> bool:
    return all(argument.kind != "other" for outer in arguments for argument in outer.walk())
