"""Finds the package of a Python file that is known by its path."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_RELATIVE = re.compile(r"^\s*from\s*\.", re.MULTILINE)


def package_of(path: Path, text: str) -> tuple[Path, str] | None:
    """Returns the folder from which the package is imported, and the package's name, such as ``ops.cutile``.

    Returns None for a file without relative imports.
    path: where the file is. text: its source. The folders with ``__init__.py`` are the package, or else as many folders
        as the relative imports go up.
    """
    if not _RELATIVE.search(text):
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # loading the file reports it
        return None
    depth = max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)
    above = [folder for folder in path.absolute().parents if folder.name]
    while depth and depth < len(above) and (above[depth] / "__init__.py").is_file():
        depth += 1
    names = [folder.name for folder in above[:depth]]
    if not 0 < depth <= len(above) or not all(map(str.isidentifier, names)):
        return None
    return above[depth - 1].parent, ".".join(reversed(names))


def import_root(file: Path) -> Path:
    """Returns the folder from which the file's package is imported, or the file's folder if it is in no package."""
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder
