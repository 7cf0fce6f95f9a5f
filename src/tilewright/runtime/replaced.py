"""Runs in a program that tests changed files: its imports load each changed file in place of the user's.

Only the changed files are loaded from elsewhere. All other modules, also those of the same package, are the user's.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # every Python process of the program runs this
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

VARIABLE = "TILEWRIGHT_REPLACED"
"""An environment variable. Its value is a JSON object: the user's file → the file to load, both absolute."""


def install() -> None:
    sys.meta_path.insert(0, TilewrightReplaced(json.loads(os.environ[VARIABLE])))


class TilewrightReplaced:
    """An import finder that lets the other finders find a module, and then replaces its file."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        from importlib.util import spec_from_file_location

        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                file = self.files.get(os.path.realpath(spec.origin or ""))
                inside = spec.submodule_search_locations
                return spec if file is None else spec_from_file_location(name, file, submodule_search_locations=inside)
        return None
