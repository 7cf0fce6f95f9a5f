"""Finds the top-level statements of a Python file that a kernel needs, directly or indirectly.

These statements alone load a kernel of a program without running the program.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tilewright.errors import RequestError
from tilewright.source.source_file import SourceFile, stored

QUIET = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
"""Statements that only define names."""


def needed(file: SourceFile, qualname: str) -> list[ast.stmt]:
    """Returns the top-level statements of ``file`` that define ``qualname`` and all names that it uses, in text order.

    Raises RequestError if the file does not define ``qualname`` at its top level.
    """
    first = qualname.split(".")[0]
    defined = {statement: set(_defines(statement)) for statement in file.tree.body}
    if not any(first in names for names in defined.values()):
        raise RequestError(f"{file.path.name} does not define '{first}' at its top level")
    wanted, taken = {first}, set[ast.stmt]()
    taken.update(each for each in defined if isinstance(each, ast.ImportFrom) and each.module == "__future__")
    while more := [each for each, names in defined.items() if each not in taken and wanted & names]:
        taken.update(more)
        wanted.update(*map(_uses, more))
    return [statement for statement in defined if statement in taken]


def source_of_needed(path: Path, qualname: str) -> str:
    """Returns the text of the statements that `needed` finds, with their comments and decorators."""
    file = SourceFile.requested(path)
    text = ""
    for statement in needed(file, qualname):
        start = min(node.lineno for node in (statement, *getattr(statement, "decorator_list", [])))
        blank = "" if isinstance(statement, (ast.Import, ast.ImportFrom)) else "\n\n"
        text += blank + "\n".join(file.lines[start - 1 : statement.end_lineno]) + "\n"
    return text.lstrip("\n")


def is_quiet(path: Path) -> bool:
    """Returns whether loading the file only defines names. Code below ``if __name__ == "__main__"`` does not count."""
    try:
        body = SourceFile.requested(path).tree.body
    except RequestError:
        return False
    others = [each for each in body if not isinstance(each, QUIET) and not _is_main_guard(each)]
    return all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in others)


def loaded_part(path: Path, qualname: str, name: str) -> ModuleType:
    """Returns a module called ``name`` with only the statements that `needed` finds, at their old line numbers."""
    module = ModuleType(name)
    module.__file__ = str(path)
    code = compile(ast.Module(needed(SourceFile.requested(path), qualname), []), str(path), "exec")
    sys.path.insert(0, str(path.parent))
    try:
        exec(code, vars(module))  # noqa: S102  (the statements of the user's own file)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _defines(statement: ast.AST) -> Iterator[str]:
    """Yields the names that a top-level statement binds, also inside conditions, but not below ``if __name__ == …``."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name.split(".")[0]) for alias in statement.names)
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
    elif isinstance(statement, (ast.If, ast.Try, ast.With)) and not _is_main_guard(statement):
        for child in ast.iter_child_nodes(statement):
            for inner in child.body if isinstance(child, ast.ExceptHandler) else [child]:
                yield from _defines(inner)


def _uses(statement: ast.stmt) -> set[str]:
    """Returns the names of the module that a statement uses, without a function's parameters and local variables."""
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        own = set[str]().union(*map(stored, statement.body))
        names -= own | {node.arg for node in ast.walk(statement.args) if isinstance(node, ast.arg)}
    return names


def _is_main_guard(statement: ast.AST) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test).startswith("__name__ ==")
