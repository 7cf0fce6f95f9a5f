"""Where steps run: one executor a file."""

from __future__ import annotations

from tilewright.executors.base import Executor
from tilewright.plugins import plugin_of


def executor_of(name: str) -> type[Executor]:
    """An executor of this folder (bound to `EXECUTOR`), or of the entry point group ``tilewright.executors``."""
    executor: type[Executor] = plugin_of("executor", "tilewright.executors", "EXECUTOR", name)
    return executor
