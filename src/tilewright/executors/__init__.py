"""Where steps run: one executor a file."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import UnknownChoice
from tilewright.executors.base import Executor
from tilewright.plugins import plugins


def executors() -> Iterator[type[Executor]]:
    """Those in this folder that bind `EXECUTOR`, then those of the entry point group ``tilewright.executors``."""
    return plugins("tilewright.executors", "EXECUTOR")


def executor_of(name: str) -> type[Executor]:
    """The class of the executor of that name. Raises UnknownChoice, which names the choices."""
    for executor in executors():
        if executor.name == name:
            return executor
    raise UnknownChoice("executor", name, (executor.name for executor in executors()))
