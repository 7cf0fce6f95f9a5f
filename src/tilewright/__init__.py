"""Tilewright makes GPU tile kernels fast, and proves it. The names of this module are the public ones."""

from typing import TYPE_CHECKING, Any

from tilewright.errors import TilewrightError
from tilewright.loading import editable
from tilewright.records import Configuration, Workload
from tilewright.search.space import Space
from tilewright.task import Launch, Output, Task, Tensor, integers, normal, uniform

if TYPE_CHECKING:
    from tilewright.inspecting import inspect
    from tilewright.languages.cutile_private import decorated_hints
    from tilewright.optimizing.run import optimize
    from tilewright.tuning import tune

__version__ = "0.1.0"

__all__ = [
    "Configuration",
    "Launch",
    "Output",
    "Space",
    "Task",
    "Tensor",
    "TilewrightError",
    "Workload",
    "decorated_hints",
    "editable",
    "inspect",
    "integers",
    "normal",
    "optimize",
    "tune",
    "uniform",
]


def __getattr__(name: str) -> Any:
    """`tune` and `inspect` are loaded when they are first used: they bring the compiler's front end."""
    if name == "tune":
        from tilewright.tuning import tune

        return tune
    if name == "optimize":
        from tilewright.optimizing.run import optimize

        return optimize
    if name == "inspect":
        from tilewright.inspecting import inspect

        return inspect
    if name == "decorated_hints":
        from tilewright.languages.cutile_private import decorated_hints

        return decorated_hints
    raise AttributeError(f"module 'tilewright' has no attribute '{name}'")
