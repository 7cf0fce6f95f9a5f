"""Tilewright makes GPU tile kernels fast, and proves it. This module has every public name.

A public name is loaded when it is first used. Importing this module is therefore quick. This matters to programs that
Tilewright patches, and to every run of pytest, which always loads Tilewright's plug-in.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself takes longer to import than this
    from typing import Any

    from tilewright.errors import TilewrightError
    from tilewright.inspect.inspect import inspect
    from tilewright.languages.cutile.private import decorated_hints
    from tilewright.optimize.loop import optimize
    from tilewright.records import Configuration, Workload
    from tilewright.report.report import report
    from tilewright.runtime.dispatch.dispatcher import Dispatcher
    from tilewright.runtime.modes import search_only_in_scope, tuning
    from tilewright.runtime.wrapper.buckets import powers_of_two
    from tilewright.runtime.wrapper.wrapper import tuned
    from tilewright.space.space import Space
    from tilewright.task.loading import editable
    from tilewright.task.task import Implementation, Launch, Task
    from tilewright.task.tensors import Output, Tensor, descriptor, fixed, integers, normal, offsets, scratch, uniform
    from tilewright.tune.tune import tune, tune_each
    from tilewright.verify.check import check

__version__ = "0.1.0"

_HOMES = {
    name: module
    for module, names in {
        "errors": "TilewrightError",
        "inspect.inspect": "inspect",
        "languages.cutile.private": "decorated_hints",
        "optimize.loop": "optimize",
        "records": "Configuration Workload",
        "report.report": "report",
        "runtime.dispatch.dispatcher": "Dispatcher",
        "runtime.modes": "search_only_in_scope tuning",
        "runtime.wrapper.buckets": "powers_of_two",
        "runtime.wrapper.wrapper": "tuned",
        "space.space": "Space",
        "task.loading": "editable",
        "task.task": "Implementation Launch Task",
        "task.tensors": "Output Tensor descriptor fixed integers normal offsets scratch uniform",
        "tune.tune": "tune tune_each",
        "verify.check": "check",
    }.items()
    for name in names.split()
}
"""Public name → the module that defines it."""

__all__ = [
    "Configuration", "Dispatcher", "Implementation", "Launch", "Output", "Space", "Task", "Tensor", "TilewrightError",
    "Workload", "check", "decorated_hints", "descriptor", "editable", "fixed", "inspect", "integers", "normal",
    "offsets", "optimize", "powers_of_two", "report", "scratch", "search_only_in_scope", "tune", "tune_each", "tuned",
    "tuning", "uniform",
]  # fmt: skip


class _Package(ModuleType):
    """The class of this package's module object. It keeps `tilewright.tune` a function.

    Without it, importing the folder `tune/` would replace the function by a module.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Imports a public name on its first use, and keeps it for the next ones."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tilewright' has no attribute '{name}'")
    globals()[name] = value = getattr(import_module(f"tilewright.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Returns the public names, without the helpers of this module."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
