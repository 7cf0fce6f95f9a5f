"""Replaces a function under every name that a module of the program has for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def swap(old: Function, new: Function, untouched: tuple[str, ...] = ()) -> None:
    """Rebinds every module-level name of ``old`` to ``new``, except in modules whose names begin with a prefix in
    ``untouched``. Default arguments, closures and attributes of objects keep ``old``."""
    for module_name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict and not module_name.startswith(untouched):
            names.update({name: new for name, value in list(names.items()) if value is old})
