"""Finds plug-ins in a folder of this package and in the entry points of installed packages."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module, metadata
from typing import Any

from tilewright.errors import RequestError, UnknownChoice, in_one_line


def plugins(folder: str, attribute: str, group: str | None = None) -> Iterator[Any]:
    """Yields the plug-ins of one kind: first the modules in ``folder``, then the installed entry points, by name.

    folder: a package such as ``tilewright.languages``.
    attribute: the name to which a module assigns its plug-in, such as ``LANGUAGE``. Other modules are skipped.
    group: the group of entry points; by default ``folder``.

    A module is loaded when it is reached, so that to find an early plug-in loads no later one. Entry points are read
    last, because reading the metadata of all installed packages takes time. Raises RequestError for an entry point that
    does not load.
    """
    for name in _modules(folder):
        if (member := _member(f"{folder}.{name}", attribute)) is not None:
            yield member
    for point in _installed(group or folder, tuple(sys.path)):
        try:
            yield point.load()
        except Exception as error:
            raise RequestError(
                f"plug-in '{point.name}' of {group or folder} does not load from {point.value}: {in_one_line(error)}; "
                "repair or uninstall the package that brings it"
            ) from None


def plugin_of(kind: str, folder: str, attribute: str, name: str) -> Any:
    """Returns the plug-in called ``name``. Otherwise raises UnknownChoice, which lists all plug-ins of this kind."""
    for plugin in plugins(folder, attribute):
        if plugin.name == name:
            return plugin
    raise UnknownChoice(kind, name, (plugin.name for plugin in plugins(folder, attribute)))


@cache
def _modules(folder: str) -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules(import_module(folder).__path__))


@cache
def _member(module: str, attribute: str) -> Any:
    return getattr(import_module(module), attribute, None)


@cache
def _installed(group: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    """Returns the entry points of a group, sorted by name.

    The result is cached, because reading the metadata of all packages on ``path`` takes 4 ms or more.
    """
    return tuple(sorted(metadata.entry_points(group=group), key=lambda point: point.name))
