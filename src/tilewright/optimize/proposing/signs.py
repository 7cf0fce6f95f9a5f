"""Finds signs of tampering in the statements that a proposal changes: what code of a kernel and its launch never needs.

A sign counts only if the proposal brings it: what the incumbent's statement of the same name does already is allowed.
Signs are advisory, as all static screening is. They refuse the plain attempts with a clear reason.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator

HARMLESS = {
    "__future__", "collections", "cuda.tile", "cutlass", "dataclasses", "enum", "functools", "itertools", "math",
    "ml_dtypes", "numpy", "operator", "triton", "triton.language", "typing",
}  # fmt: skip
"""The modules that a proposal may import."""
_PARTS_OF = ("cuda.tile.", "cutlass.", "triton.language.")
"""Packages whose public modules a proposal may import, too."""
SAFE_ROOTS = {name.partition(".")[0] for name in HARMLESS} | {"tilewright", "torch"}
"""Packages whose functions may be used if the file imports them already."""
_CALLS = {
    "open": "opens a file", "exec": "runs text as code", "eval": "runs text as code", "compile": "runs text as code",
    "__import__": "imports by name", "globals": "reaches for all names", "vars": "reaches for all names",
    "locals": "reaches for all names", "setattr": "changes an object", "delattr": "changes an object",
    "exit": "ends the process", "quit": "ends the process", "SystemExit": "ends the process",
    "breakpoint": "stops the process", "input": "reads the terminal",
}  # fmt: skip
_FILES = {"load", "save", "savez", "loadtxt", "savetxt", "fromfile", "tofile", "memmap", "genfromtxt", "lib"}
_MODULES = {
    "builtins", "ctypes", "ctypeslib", "f2py", "gc", "importlib", "inspect", "modules", "multiprocessing", "os",
    "pathlib", "popen", "shutil", "signal", "socket", "subprocess", "sys", "system", "testing", "threading",
    "DataSource",
}  # fmt: skip
"""Attributes by which a harmless module gives away another one, as in ``np.f2py.os``."""
_BY_NAME = {"getattr", "attrgetter", "methodcaller"}
_PRIVATE = re.compile(r"\b__[a-z]\w*__\b")
_MUTATORS = {"append", "add", "update", "setdefault", "extend", "insert", "__setitem__", "pop", "clear"}
_CACHES = {"cache", "lru_cache", "cached_property"}


def new_signs(statement: ast.stmt, before: ast.stmt | None, imported: Collection[str]) -> list[str]:
    """Returns the signs of a changed statement that the statement before does not have.

    imported: the names that the incumbent's file binds by imports.
    """
    old = Counter(_signs(before, imported)) if before is not None else Counter[str]()
    return list(dict.fromkeys((Counter(_signs(statement, imported)) - old).elements()))


def _signs(statement: ast.stmt, imported: Collection[str]) -> Iterator[str]:
    called = {id(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            yield from filter(None, (_import(alias.name, "") for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            yield from filter(None, (_import(node.module or "", alias.name) for alias in node.names))
        elif isinstance(node, ast.Name) and node.id in _CALLS and isinstance(node.ctx, ast.Load):
            yield f"{_CALLS[node.id]} ({node.id})"
        elif isinstance(node, ast.Name) and node.id in _BY_NAME and (node.id != "getattr" or id(node) not in called):
            yield f"reaches for attributes by name ({node.id})"
        elif isinstance(node, ast.Name) and node.id.startswith("__"):
            yield f"reaches into Python ({node.id})"
        elif isinstance(node, ast.Name) and node.id in imported and not isinstance(node.ctx, ast.Load):
            yield f"replaces the imported {node.id}"
        elif isinstance(node, ast.Attribute):
            yield from _attribute(node)
        elif isinstance(node, ast.Call):
            yield from _call(node)
        elif isinstance(node, ast.MatchClass) and any(name.startswith("_") for name in node.kwd_attrs):
            yield f"reaches for private attributes ({ast.unparse(node)})"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _PRIVATE.search(node.value):
            yield f"names a private attribute in a text ({_PRIVATE.findall(node.value)[0]})"
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield f"keeps state between calls ({', '.join(node.names)})"
    yield from _state(statement)


def _import(module: str, name: str) -> str:
    if name == "*":
        return f"imports all names of {module}"
    root = module.partition(".")[0]
    public = module.startswith(_PARTS_OF) and "._" not in module
    own = module == "tilewright" and not name[:1].islower()
    if own or public or module in HARMLESS or f"{module}.{name}" in HARMLESS:
        return ""
    if root == "tilewright":
        return f"imports Tilewright's own {module}{f'.{name}' if module == root else ''}"
    return f"imports {module or '.'}, which no kernel needs"


def _attribute(node: ast.Attribute) -> Iterator[str]:
    if not isinstance(node.ctx, ast.Load):
        yield f"replaces an attribute ({ast.unparse(node)})"
    if node.attr.startswith("_"):
        yield f"reaches for the private {node.attr}"
    if node.attr in _MODULES:
        yield f"reaches for another module ({ast.unparse(node)})"
    if node.attr in _BY_NAME:
        yield f"reaches for attributes by name ({node.attr})"
    if isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy") and node.attr in _FILES:
        yield f"reads or writes files ({ast.unparse(node)})"


def _call(node: ast.Call) -> Iterator[str]:
    called = node.func
    if isinstance(called, ast.Subscript) or (isinstance(called, ast.Attribute) and called.attr == "launch"):
        yield f"launches a kernel itself ({ast.unparse(called)})"
    if isinstance(called, ast.Name) and called.id == "getattr":
        name = node.args[1].value if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) else None
        if not isinstance(name, str) or name.startswith("_"):
            yield "reaches for an attribute by a computed or private name (getattr)"


def _state(statement: ast.stmt) -> Iterator[str]:
    """Yields what keeps values from one call of a function to the next."""
    own = {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
        own |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _kept_by(node)
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            kept = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            kept = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "next" and node.args:
            kept = node.args[0]
        else:
            continue
        while isinstance(kept, ast.Attribute | ast.Subscript):
            kept = kept.value
        if isinstance(kept, ast.Name) and kept.id not in own:
            yield f"keeps results between calls ({kept.id})"


def _kept_by(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[str]:
    """Yields default values and decorators that keep values."""
    for default in (*function.args.defaults, *filter(None, function.args.kw_defaults)):
        if not isinstance(default, ast.Constant | ast.UnaryOp | ast.Name | ast.Attribute):
            yield f"keeps results between calls (default {ast.unparse(default)})"
    for decorator in getattr(function, "decorator_list", ()):
        if any(getattr(node, "attr", getattr(node, "id", "")) in _CACHES for node in ast.walk(decorator)):
            yield f"keeps results between calls (@{ast.unparse(decorator)})"
