"""The part of a Python file that a kernel needs: what it names, what that names, and so on.

A program is not a module: running it again to get at a kernel would do its work again. So of a program only
those statements of its top level are taken that the kernel's names lead to, in their order.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tilewright.errors import RequestError

QUIET = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
"""Statements that define names."""


def needed(path: Path, qualname: str) -> list[ast.stmt]:
    """The top-level statements of ``path`` that ``qualname`` needs, its own among them.

    Raises RequestError where the file does not define it at its top level.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, SyntaxError, ValueError) as error:
        raise RequestError(f"cannot read {path}: {error}") from None
    first = qualname.split(".")[0]
    statements = [one for one in tree.body if set(_defines(one))]
    if not any(first in _defines(one) for one in statements):
        raise RequestError(f"{path.name} does not define '{first}' at its top level")
    wanted, taken = {first}, set[int]()
    while True:
        found = [one for one in statements if id(one) not in taken and (_is_future(one) or wanted & set(_defines(one)))]
        if not found:
            return [one for one in tree.body if id(one) in taken]
        for one in found:
            taken.add(id(one))
            wanted |= _uses(one)


def source_of_needed(path: Path, qualname: str) -> str:
    """`needed` as text, as it stands in the file, with its comments and the decorators."""
    lines = path.read_text(encoding="utf-8").splitlines()
    places = {}
    for one in needed(path, qualname):
        decorators = getattr(one, "decorator_list", [])
        start = min([one.lineno, *(decorator.lineno for decorator in decorators)])
        places[start, one.end_lineno] = isinstance(one, (ast.Import, ast.ImportFrom))
    texts = (("" if is_import else "\n\n") + "\n".join(lines[s - 1 : e]) for (s, e), is_import in places.items())
    return "\n".join(texts).lstrip("\n") + "\n"


def is_quiet(path: Path) -> bool:
    """Whether loading the file only defines things: what else it does stands under ``if __name__ == "__main__"``."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    return all(isinstance(one, QUIET) or _is_docstring(one) or _is_main_guard(one) for one in tree.body)


def loaded_part(path: Path, qualname: str, name: str) -> ModuleType:
    """A module of the name ``name`` that holds only what the kernel needs; its code knows its lines in ``path``."""
    module = ModuleType(name)
    module.__file__ = str(path)
    code = compile(ast.Module(needed(path, qualname), []), str(path), "exec")
    sys.path.insert(0, str(path.parent))
    try:
        exec(code, vars(module))  # noqa: S102  (the statements of the user's own file)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _defines(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement of the top level binds. Conditions are followed, but not a main guard."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name.split(".")[0]) for alias in statement.names)
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
    elif isinstance(statement, (ast.If, ast.Try, ast.With)) and not _is_main_guard(statement):
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                yield from _defines(child)
            elif isinstance(child, ast.ExceptHandler):
                for inner in child.body:
                    yield from _defines(inner)


def _uses(statement: ast.stmt) -> set[str]:
    """The names of the module that a statement uses: in a function, not its parameters and what it assigns."""
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        inside = [node for part in statement.body for node in ast.walk(part)]
        own = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        names -= own | {node.arg for node in ast.walk(statement.args) if isinstance(node, ast.arg)}
    return names


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_main_guard(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Compare)
        and isinstance(statement.test.left, ast.Name)
        and statement.test.left.id == "__name__"
    )
