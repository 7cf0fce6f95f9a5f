"""Finds the line below a script's imports, where settings of the whole program belong."""

from __future__ import annotations

import ast
import re

from tilewright.program.reading.module import Edit, NotSure, ReadModule


def is_script(module: ReadModule) -> bool:
    """Returns whether a file does work when it is run: a loop at its top, or a test of ``__name__``."""
    body = module.file.tree.body
    if any(isinstance(each, (ast.For, ast.While, ast.With)) for each in body):
        return True
    return any(
        isinstance(each, ast.If) and any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(each.test))
        for each in body
    )


def after_imports(module: ReadModule, line: str, package: str) -> Edit | None:
    """Makes the edit that adds a line below the first imports of a script; None if the file is not a script, or does
    not import ``package``. A full name in braces, as ``{torch.compile}``, is spelled with the imports of the file.
    """
    imports: list[ast.stmt] = []
    for statement in module.file.tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            imports.append(statement)
        elif any(_binds(each, package) for each in imports):
            break
    if not is_script(module) or not any(_binds(each, package) for each in imports):
        return None
    try:
        text = re.sub(r"\{([\w.]+)\}", lambda name: module.spelled(name[1], imports[-1]), line)
        return module.insert_after(imports[-1], "", text)
    except NotSure:
        return None


def _binds(statement: ast.stmt, package: str) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return (statement.module or "").split(".")[0] == package
    return isinstance(statement, ast.Import) and any(alias.name.split(".")[0] == package for alias in statement.names)
