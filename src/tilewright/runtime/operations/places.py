"""Finds the lines of the user's program that an operation comes from."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType

from tilewright.runtime.startup.tilewright_startup import warn

INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
DEEPEST = 12
"""The most lines of one stack, from the innermost outwards."""
OWN = os.path.dirname(os.path.abspath(warn.__code__.co_filename)).rpartition(os.sep)[0]
"""The folder of `runtime`, whose frames are no part of the program."""
WRAPPERS = ("_tensor.py", "overrides.py", "_python_dispatch.py", "_ops.py", "_compile.py", "eval_frame.py",
            "torch/functional.py", "_contextlib.py", "_jit_internal.py", "grad_mode.py")  # fmt: skip
"""Files of torch whose functions only pass a call on."""

Line = tuple[int, str, int]
"""The file's number, the function's name, and the line."""
Stack = tuple[str, tuple[Line, ...]]
"""The function of a library that the innermost line called, and in which the operation is ("" if the line itself
computes); and the lines, the innermost first."""


class ProgramPlaces:
    """Numbers the stacks of a program. A stack has only lines of the program's own files."""

    def __init__(self, root: str) -> None:
        self.root = os.path.join(os.path.realpath(root), "")
        self.files: list[str] = []
        self.stacks: list[Stack] = []
        self._numbers: dict[Stack, int] = {}
        self._codes: dict[CodeType, int] = {}
        """Code → the number of its file, or -2 if it only passes a call on, or -1 if it is a library's."""

    def key(self, frame: FrameType | None) -> Stack:
        """Returns the stack of a frame."""
        via, lines = "", list[Line]()
        while frame is not None and len(lines) < DEEPEST:
            code = frame.f_code
            file = self._codes.get(code)
            if file is None:
                file = self._codes[code] = self._file(code.co_filename)
            if file >= 0:
                lines.append((file, code.co_name, frame.f_lineno))
            elif file == -1 and not lines and not via:
                via = code.co_name
            frame = frame.f_back
        return via, tuple(lines)

    def number(self, stack: Stack) -> int:
        """Returns the number of a stack."""
        number = self._numbers.get(stack)
        if number is None:
            number = self._numbers[stack] = len(self.stacks)
            self.stacks.append(stack)
        return number

    def _file(self, name: str) -> int:
        if name.startswith(OWN) or (f"{os.sep}torch{os.sep}" in name and name.endswith(WRAPPERS)):
            return -2
        if name.startswith("<"):
            return -1
        path = os.path.realpath(name)
        if not path.startswith(self.root) or any(each in path for each in INSTALLED):
            return -1
        relative = path[len(self.root) :]
        if relative not in self.files:
            self.files.append(relative)
        return self.files.index(relative)


def line_at(places: ProgramPlaces) -> tuple[str, int] | None:
    """Returns the file and the line of the program that is being executed; None if there is none."""
    _, lines = places.key(sys._getframe(1))
    return (places.files[lines[0][0]], lines[0][2]) if lines else None
