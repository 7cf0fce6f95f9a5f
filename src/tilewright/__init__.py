"""Tilewright makes GPU tile kernels fast, and proves it. The names of this module are the public ones."""

from tilewright.errors import TilewrightError
from tilewright.records import Configuration, Workload
from tilewright.search.space import Space
from tilewright.task import Launch, Output, Task, Tensor, integers, normal, uniform

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
    "integers",
    "normal",
    "uniform",
]
