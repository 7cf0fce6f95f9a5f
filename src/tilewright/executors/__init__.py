"""Executors, which run the steps of a task: one per file."""

from __future__ import annotations

from tilewright.executors.base import Executor
from tilewright.plugins import plugin_of


def executor_of(name: str) -> type[Executor]:
    """Returns the executor of that name: a module here binds it to `EXECUTOR`, or a package has it in the entry point
    group ``tilewright.executors``."""
    executor: type[Executor] = plugin_of("executor", "tilewright.executors", "EXECUTOR", name)
    return executor
