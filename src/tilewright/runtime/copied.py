"""Runs in a program that was started in a copy of its tree: what would be imported from the user's tree is imported
from the copy. So packages of the tree that are installed editable run with the changed texts, too."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # every Python process of the program runs this
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

VARIABLE = "TILEWRIGHT_COPIED"
"""Two lines: the folder of the user's tree, and that of the copy."""


def install() -> None:
    """Redirects the search path and all finders, as the environment variable says."""
    root, copy = os.environ[VARIABLE].split("\n")
    sys.path[:] = [_moved(entry, root, copy) for entry in sys.path]
    sys.meta_path.insert(0, TilewrightCopied(root, copy))


def _moved(path: str, root: str, copy: str) -> str:
    """Returns the path in the copy, if it is in the tree and exists in the copy."""
    if path != root and not path.startswith(root + os.sep):
        return path
    moved = copy + path[len(root) :]
    return moved if os.path.exists(moved) else path


class TilewrightCopied:
    """An import finder that lets the other finders find a module, and returns its copy if it is in the user's tree."""

    def __init__(self, root: str, copy: str) -> None:
        self.root, self.copy = root, copy

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        moved = None if path is None else [_moved(entry, self.root, self.copy) for entry in path]
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            if spec := finder.find_spec(name, moved, target):
                return self._copied(spec)
        return None

    def _copied(self, spec: ModuleSpec) -> ModuleSpec:
        from importlib.util import spec_from_file_location

        origin = spec.origin or ""
        place = _moved(origin, self.root, self.copy)
        if place == origin:
            return spec
        inside = spec.submodule_search_locations
        found = inside and [_moved(each, self.root, self.copy) for each in inside]
        return spec_from_file_location(spec.name, place, submodule_search_locations=found) or spec
