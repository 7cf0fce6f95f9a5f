"""Finds the top-level statements of a Python file that a kernel needs, directly or indirectly.

These statements alone load a kernel of a program without running the program.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from types import MappingProxyType, ModuleType

from tilewright.errors import RequestError
from tilewright.source.digest import function_of
from tilewright.source.source_file import SourceFile, stored
from tilewright.tools.packages import package_of

INSIDE = ".<locals>."
"""The part of a function's qualified name between another function and the function inside it."""
_OUTER = "_around"
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


def source_of_needed(path: Path, qualname: str, around: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns the text of the statements that `needed` finds, with their comments and decorators, without imports from
    ``__future__``. Relative imports become imports by full names.

    A function inside another one becomes a function of the module.
    around: the variables of the other function that it uses, each with the statement that defines it.
    """
    file = SourceFile.requested(path)
    if INSIDE in qualname:
        inner = inner_function(file, qualname)
        start = min([inner.lineno, *(each.lineno for each in inner.decorator_list)])
        own = "\n".join(file.lines[start - 1 : inner.end_lineno])
        texts = (_texts(file, _needed_by(file, inner, set(around))), *around.values(), f"\n\n{dedent(own)}\n")
        return "\n".join(texts).lstrip("\n")
    return _texts(file, needed(file, qualname)).lstrip("\n")


def joined(texts: Iterable[str]) -> str:
    """Returns one text with the statements of several, each once, as `source_of_needed` returns them.

    Raises RequestError if two texts define one name differently.
    """
    found: dict[str, str] = {}
    owners: dict[str, str] = {}
    for text in texts:
        lines = text.splitlines()
        for statement in ast.parse(text).body:
            start = min(node.lineno for node in (statement, *getattr(statement, "decorator_list", [])))
            own = "\n".join(lines[start - 1 : statement.end_lineno])
            code = ast.unparse(statement)
            for name in _defines(statement):
                if owners.setdefault(name, code) != code:
                    raise RequestError(f"both kernels use a '{name}', and the two are not the same: rename one")
            blank = "" if isinstance(statement, (ast.Import, ast.ImportFrom)) else "\n\n"
            found.setdefault(code, f"{blank}{own}\n")
    return "".join(found.values())


def digest_of_needed(path: Path, qualname: str) -> str:
    """Returns the SHA-256 of the statements that the kernel needs in its file. Comments and layout do not change it.
    Executes nothing. Raises RequestError if the file cannot be read or does not define ``qualname``."""
    file = SourceFile.requested(path)
    if INSIDE in qualname:
        inner = inner_function(file, qualname)
        statements: list[ast.stmt] = [*_needed_by(file, inner, set()), inner]
    else:
        statements = needed(file, qualname)
    return hashlib.sha256("\n".join(map(ast.unparse, statements)).encode()).hexdigest()


def _texts(file: SourceFile, statements: Iterable[ast.stmt]) -> str:
    text, package = "", package_of(file.path, file.text)
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            continue
        if isinstance(statement, ast.ImportFrom) and statement.level and package is not None:
            above = package[1].split(".")
            of = ".".join(filter(None, [*above[: len(above) - statement.level + 1], statement.module]))
            text += ast.unparse(ast.ImportFrom(of, statement.names, 0)) + "\n"
            continue
        start = min(node.lineno for node in (statement, *getattr(statement, "decorator_list", [])))
        blank = "" if isinstance(statement, (ast.Import, ast.ImportFrom)) else "\n\n"
        text += blank + "\n".join(file.lines[start - 1 : statement.end_lineno]) + "\n"
    return text


def inner_function(file: SourceFile, qualname: str) -> ast.FunctionDef:
    """Returns the function inside another function. Raises RequestError if it is not in the file."""
    body: list[ast.stmt] = file.tree.body
    found: ast.stmt | None = None
    for name in qualname.replace(INSIDE, ".").split("."):
        every = (each for statement in body for each in ast.walk(statement) if isinstance(each, ast.stmt))
        found = next((each for each in every if getattr(each, "name", "") == name), None)
        body = getattr(found, "body", [])
    if not isinstance(found, ast.FunctionDef):
        raise RequestError(f"{file.path.name} does not define '{qualname}'")
    return found


def _needed_by(file: SourceFile, inner: ast.FunctionDef, known: set[str]) -> list[ast.stmt]:
    """Returns the top-level statements that a function inside another one needs. known: names that it need not find."""
    defined = {name for statement in file.tree.body for name in _defines(statement)}
    wanted = sorted((_uses(inner) - known) & defined)
    every = {statement for name in wanted for statement in needed(file, name)}
    return [statement for statement in file.tree.body if statement in every]


def is_quiet(path: Path) -> bool:
    """Returns whether loading the file only defines names. Code below ``if __name__ == "__main__"`` does not count."""
    try:
        body = SourceFile.requested(path).tree.body
    except RequestError:
        return False
    others = [each for each in body if not isinstance(each, QUIET) and not _is_main_guard(each)]
    return all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in others)


def loaded_part(
    path: Path, qualname: str, name: str, closure: Mapping[str, object] = MappingProxyType({})
) -> ModuleType:
    """Returns a module called ``name`` with only the statements that `needed` finds, at their old line numbers.

    A function inside another one is an attribute of the module that is called ``qualname``.
    closure: the variables that it uses of the other one.
    """
    module = ModuleType(name)
    module.__file__ = str(path)
    file = SourceFile.requested(path)
    importable, module.__package__ = package_of(path, file.text) or (path.parent, None)
    if INSIDE in qualname:
        inner = inner_function(file, qualname)
        statements = [*_needed_by(file, inner, set(closure)), _around(inner, qualname, list(closure))]
    else:
        statements = needed(file, qualname)
    code = compile(ast.Module(statements, []), str(path), "exec")
    sys.path.insert(0, str(importable))
    try:
        exec(code, vars(module))  # noqa: S102  (the statements of the user's own file)
        if INSIDE in qualname:
            kernel = getattr(module, _OUTER)(**closure)
            function_of(kernel).__qualname__ = qualname
            setattr(module, qualname, kernel)
    finally:
        sys.path.remove(str(importable))
    return module


def _around(inner: ast.FunctionDef, qualname: str, variables: list[str]) -> ast.stmt:
    """Returns a function that makes the inner function from the variables that the inner function uses."""
    outer = ast.parse(f"def {_OUTER}({', '.join(variables)}):\n    return {inner.name}").body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body.insert(0, inner)
    return ast.fix_missing_locations(outer)


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
