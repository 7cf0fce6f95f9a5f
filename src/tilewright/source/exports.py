"""Reads which names can be imported from a Python module, without running it."""

from __future__ import annotations

import ast
from pathlib import Path

from tilewright.source.source_file import SourceFile

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def exports(path: Path, text: str | None = None) -> frozenset[str] | None:
    """Returns the names that a module has after it was loaded.

    text: the module's source, if it differs from the content of the file.

    Returns None if the text does not show all names: it has ``from … import *``, has a ``__getattr__``, or makes names
    with ``globals``, ``exec`` or ``setattr``. Raises RequestError if the file cannot be read as Python.
    """
    file = SourceFile.requested(path) if text is None else SourceFile(path, text)
    made = {"globals", "exec", "setattr", "vars", "__dict__", "modules"}
    if any(isinstance(node, ast.Name) and node.id in made for node in file.nodes):
        return None
    if any(isinstance(node, ast.Attribute) and node.attr in made for node in file.nodes):
        return None
    names = {name for node in file.every(ast.Global) for name in node.names}
    waiting: list[ast.AST] = [file.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, DEFINITIONS):
            names.add(node.name)
            continue  # names inside a function or class do not belong to the module
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        waiting.extend(ast.iter_child_nodes(node))
    return None if names & {"*", "__getattr__"} else frozenset(names)
