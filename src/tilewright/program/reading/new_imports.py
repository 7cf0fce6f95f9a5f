"""Checks that the imports which a change adds can be found in the user's own modules.

A wrong name is otherwise hidden if the import is inside ``try … except ImportError``: the program then runs as before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tilewright.source.exports import exports
from tilewright.source.source_file import SourceFile

NAMED = 8
"""The most names of a module that a message lists."""
ALWAYS = {"__name__", "__file__", "__doc__", "__path__", "__package__", "__spec__", "__loader__", "__all__"}


def wrong_import(texts: Mapping[Path, str], before: Mapping[Path, str], folders: Iterable[Path]) -> str:
    """Returns the first name that a change imports, or uses, from a module of the user that does not have it.

    texts: the files of the change. before: the files of the version before it; others are read from the disk.
    folders: where modules are imported from. Returns "" if there is none. Installed modules are not checked, nor
    modules whose text does not show their names.
    """
    everything = {**before, **texts}
    for path, text in texts.items():
        old = before.get(path) or (path.read_text(encoding="utf-8") if path.exists() else "")
        try:
            file, known = SourceFile(path, text), set(_imports(SourceFile(path, old)))
        except (SyntaxError, ValueError, RecursionError):
            continue  # the run says what is wrong
        parameters = {node.arg for node in file.every(ast.arg)}  # these hide imports of the same name
        places = tuple(dict.fromkeys((path.parent, *folders)))
        for dots, base, name, bound in dict.fromkeys(_imports(file)):
            if (dots, base, name, bound) in known:
                continue
            where = _above(path.parent, dots) if dots else places
            module = _module(where, f"{base}.{name}".strip("."), everything)
            if module is not None:
                used = {
                    node.attr for node in file.every(ast.Attribute)
                    if isinstance(node.value, ast.Name) and node.value.id == bound and bound not in parameters
                }  # fmt: skip
            elif name and (module := _module(where, base, everything)) is not None:
                used = {name}
            if module is not None and (said := _lacks(module, used, everything)):
                return f"{path.name} uses {said}"
    return ""


def _imports(file: SourceFile) -> Iterator[tuple[int, str, str, str]]:
    """Yields each import: its dots, the module, the name from it ("" for ``import``), and the name in this file."""
    for node in file.nodes:
        if isinstance(node, ast.Import):
            yield from ((0, each.name, "", each.asname or each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                if each.name != "*":
                    yield node.level, node.module or "", each.name, each.asname or each.name


def _above(folder: Path, dots: int) -> tuple[Path]:
    for _ in range(dots - 1):
        folder = folder.parent
    return (folder,)


def _module(folders: Iterable[Path], dotted: str, texts: Mapping[Path, str]) -> Path | None:
    """Returns the file of a module in these folders, on the disk or in ``texts``."""
    parts = dotted.split(".") if dotted else []
    for folder in folders:
        place = folder.joinpath(*parts)
        files: list[Path] = [place.with_suffix(".py")] if parts else []
        for path in [*files, place / "__init__.py"]:
            if path in texts or path.is_file():
                return path
    return None


def _lacks(module: Path, used: set[str], texts: Mapping[Path, str]) -> str:
    """Says which of these names a module does not have; "" if it has all of them, or if its text does not show it."""
    try:
        known = exports(module, texts[module] if module in texts else module.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ""
    missing = sorted(used - ALWAYS - known) if known is not None else []
    if module.name == "__init__.py":  # a package has its modules, too
        missing = [name for name in missing if _module((module.parent,), name, texts) is None]
    if not missing or known is None:
        return ""
    shown = sorted(name for name in known if not name.startswith("_"))
    listed = ", ".join([*shown[:NAMED], *(["…"] if len(shown) > NAMED else [])]) or "nothing"
    return f"'{missing[0]}' of {module.name}, which does not have it; known: {listed}"
