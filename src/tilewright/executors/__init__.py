"""Executors, one in each file. An executor runs the steps of a task."""

from __future__ import annotations

from tilewright.errors import UnknownChoice
from tilewright.executors.base import Executor
from tilewright.plugins import plugin_of, plugins

FOLDER, ATTRIBUTE = "tilewright.executors", "EXECUTOR"


def executor_of(name: str) -> type[Executor]:
    """Returns the executor called ``name``: a module's `EXECUTOR` or an entry point of ``tilewright.executors``."""
    executor: type[Executor] = plugin_of("executor", FOLDER, ATTRIBUTE, name)
    return executor


def executor_on(where: str) -> Executor:
    """Returns the executor that ``--on`` names: ``NAME`` or ``NAME:WHERE``, such as ``local`` or ``ssh:gpu1``.

    Raises UnknownChoice with the choices for an unknown name.
    """
    name, _, rest = where.partition(":")
    for executor in plugins(FOLDER, ATTRIBUTE):
        if executor.name == name:
            made: Executor = executor.at(rest)
            made.on = where
            return made
    raise UnknownChoice("place for --on", where, (each.choice or each.name for each in plugins(FOLDER, ATTRIBUTE)))
