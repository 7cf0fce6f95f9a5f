"""Finds the examples that come with Tilewright."""

from __future__ import annotations

from pathlib import Path

from tilewright.errors import StorageError

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "examples", PACKAGE.parents[1] / "examples")
"""The folders of the examples: in an installed package, and in a checkout."""


def examples_folder() -> Path:
    """Returns the folder of the examples. Raises StorageError if it is missing."""
    for folder in FOLDERS:
        if folder.is_dir():
            return folder
    raise StorageError(f"the examples are not in {FOLDERS[0]}; reinstall Tilewright")
