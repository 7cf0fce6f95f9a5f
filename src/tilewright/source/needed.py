"""The part of a Python file that a kernel needs: the statements that it names, those that they name, and so on.

A program does its work when it is loaded, so it is not loaded again to get a kernel. Only the statements at its top
level that the kernel's names lead to are taken, in their order.
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
    """The top-level statements of ``file`` that ``qualname`` needs, its own among them.

    Raises RequestError where the file does not define it at its top level.
    """
    first = qualname.split(".")[0]
    defined = {statement: set(_defines(statement)) for statement in file.tree.body}
    if not any(first in names for names in defined.values()):
        raise RequestError(f"{file.path.name} does not define '{first}' at its top level")
    wanted, taken = {first}, set[ast.stmt]()
    while True:
        more = [
            one for one, names in defined.items()
            if one not in taken and (wanted & names or (isinstance(one, ast.ImportFrom) and one.module == "__future__"))
        ]  # fmt: skip
        if not more:
            return [statement for statement in defined if statement in taken]
        taken.update(more)
        wanted.update(*map(_uses, more))


def source_of_needed(path: Path, qualname: str) -> str:
    """`needed` as text: as the file has it, with comments and decorators."""
    file = SourceFile.requested(path)
    text = ""
    for statement in needed(file, qualname):
        start = min(node.lineno for node in (statement, *getattr(statement, "decorator_list", [])))
        blank = "" if isinstance(statement, (ast.Import, ast.ImportFrom)) else "\n\n"
        text += blank + "\n".join(file.lines[start - 1 : statement.end_lineno]) + "\n"
    return text.lstrip("\n")


def is_quiet(path: Path) -> bool:
    """Whether loading the file only defines names; ``if __name__ == "__main__"`` does not count."""
    try:
        body = SourceFile.requested(path).tree.body
    except RequestError:
        return False
    docstrings = {it for it in body if isinstance(it, ast.Expr) and isinstance(it.value, ast.Constant)}
    return all(isinstance(it, QUIET) or it in docstrings or _is_main_guard(it) for it in body)


def loaded_part(path: Path, qualname: str, name: str) -> ModuleType:
    """A module called ``name`` that holds only what the kernel needs, with the line numbers of ``path``."""
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
    """The names that a statement at the top level binds, also inside conditions; a main guard binds none."""
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
    """The names that a statement uses from the module: not a function's parameters and what it assigns."""
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        own = set[str]().union(*map(stored, statement.body))
        names -= own | {node.arg for node in ast.walk(statement.args) if isinstance(node, ast.arg)}
    return names


def _is_main_guard(statement: ast.AST) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test).startswith("__name__ ==")
