"""Executors, one in each file. An executor runs the steps of a task."""

from __future__ import annotations

from tilewright.executors.base import Executor
from tilewright.plugins import plugin_of


def executor_of(name: str) -> type[Executor]:
    """Returns the executor called ``name``: a module's `EXECUTOR` or an entry point of ``tilewright.executors``."""
    executor: type[Executor] = plugin_of("executor", "tilewright.executors", "EXECUTOR", name)
    return executor
