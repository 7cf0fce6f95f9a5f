"""Puts one function where another stands, in whatever module of the program has it by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def swap(old: Callable[..., Any], new: Callable[..., Any], untouched: tuple[str, ...] = ()) -> None:
    """Every module-level name for ``old`` becomes one for ``new``; ``untouched``: how the names of modules begin that
    keep it. Not reached are default arguments, closures and attributes of objects that took the function before."""
    for module_name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if type(names) is not dict or module_name.startswith(untouched):
            continue
        for name in [name for name, value in list(names.items()) if value is old]:
            names[name] = new
