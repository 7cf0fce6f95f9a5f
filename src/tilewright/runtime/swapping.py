"""Replaces a function by another one in every module of the program that has it by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def swap(old: Function, new: Function, untouched: tuple[str, ...] = ()) -> None:
    """Every module-level name of ``old`` gets ``new``, but in modules whose names begin with one of ``untouched``.
    Default arguments, closures and attributes of objects that hold ``old`` are not reached."""
    for module_name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if type(names) is not dict or module_name.startswith(untouched):
            continue
        for name in [name for name, value in list(names.items()) if value is old]:
            names[name] = new
