"""Tilewright makes GPU tile kernels fast, and proves it. The names of this module are the public ones."""

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
    from tilewright.runtime.wrapper.buckets import powers_of_two
    from tilewright.runtime.wrapper.wrapper import tuned
    from tilewright.space.space import Space
    from tilewright.task.loading import editable
    from tilewright.task.task import Launch, Task
    from tilewright.task.tensors import Output, Tensor, integers, normal, offsets, uniform
    from tilewright.tune.tune import tune
    from tilewright.verify.check import check

__version__ = "0.1.0"

_HOMES = {
    "Configuration": "records",
    "Launch": "task.task",
    "Output": "task.tensors",
    "Space": "space.space",
    "Task": "task.task",
    "Tensor": "task.tensors",
    "TilewrightError": "errors",
    "Workload": "records",
    "check": "verify.check",
    "decorated_hints": "languages.cutile.private",
    "editable": "task.loading",
    "inspect": "inspect.inspect",
    "integers": "task.tensors",
    "normal": "task.tensors",
    "offsets": "task.tensors",
    "optimize": "optimize.loop",
    "powers_of_two": "runtime.wrapper.buckets",
    "report": "report.report",
    "tune": "tune.tune",
    "tuned": "runtime.wrapper.wrapper",
    "uniform": "task.tensors",
}
"""Public name → the module that defines it. Each is loaded when it is first used: a program that Tilewright only
looks after, and every run of pytest where it is installed, imports this module and little else."""

__all__ = [
    "Configuration",
    "Launch",
    "Output",
    "Space",
    "Task",
    "Tensor",
    "TilewrightError",
    "Workload",
    "check",
    "decorated_hints",
    "editable",
    "inspect",
    "integers",
    "normal",
    "offsets",
    "optimize",
    "powers_of_two",
    "report",
    "tune",
    "tuned",
    "uniform",
]


class _Package(ModuleType):
    """Keeps `tilewright.tune` the function when Python imports the folder `tune/` and would put it in its place."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """The public name, from its home; remembered, so that this runs once a name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tilewright' has no attribute '{name}'")
    found = getattr(import_module(f"tilewright.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
