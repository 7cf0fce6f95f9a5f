"""Finds the user's own files of a program: its script, and the modules that it imports from its folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tilewright.program.reading.module import ReadModule

MOST_FILES = 300


def reached_modules(script: Path, root: Path | None = None) -> tuple[ReadModule, ...]:
    """Returns the script and the files that it imports, directly or indirectly, from its folder or from ``root``.

    Installed packages are left out. Raises OSError if the script cannot be read.
    """
    script = script.resolve()
    folders = tuple(dict.fromkeys((script.parent, (root or script.parent).resolve())))
    modules = {script: ReadModule.read(script)}
    waiting = [script]
    while waiting and len(modules) < MOST_FILES:
        path = waiting.pop(0)
        for name, found in _imported(modules[path], folders):
            if found not in modules:
                try:
                    modules[found] = ReadModule.read(found)
                except OSError:
                    continue
                waiting.append(found)
            modules[path].beside.setdefault(name, modules[found])
    for module in modules.values():
        module.program = tuple(modules.values())
    return module.program


def _imported(module: ReadModule, folders: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    """Yields each file that a file imports, with the name that it has there; the module itself comes first."""
    for node in module.file.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ((alias.name, path) for path in _files(folders, alias.name))
        elif isinstance(node, ast.ImportFrom):
            above = module.path.parent
            for _ in range(node.level - 1):
                above = above.parent
            where = (above,) if node.level else folders
            base, dots = node.module or "", "." * node.level
            yield from ((f"{dots}{base}", path) for path in _files(where, base))
            for alias in node.names:
                inner = f"{base}.{alias.name}".strip(".")
                yield from ((f"{dots}{inner}", path) for path in _files(where, inner))


def _files(folders: tuple[Path, ...], dotted: str) -> Iterator[Path]:
    """Yields the files of a module, and the `__init__` files of the packages around it, from the first folder."""
    parts = [part for part in dotted.split(".") if part]
    for folder in folders if parts else ():
        place = folder.joinpath(*parts)
        here = [place.with_suffix(".py") if parts else place, place / "__init__.py"]
        around = [folder.joinpath(*parts[:count], "__init__.py") for count in range(1, len(parts))]
        if found := [path.resolve() for path in (*here, *around) if path.is_file()]:
            installed = any(part in ("site-packages", "dist-packages") for path in found for part in path.parts)
            yield from () if installed else found
            return
