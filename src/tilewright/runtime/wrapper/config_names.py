"""Finds which names of a configuration the author's functions read, without calling them.

A name that nothing reads changes no launch. A search would time equal launches under different names, and report one of
them as the fastest. So `wrapper.tuned` refuses such a name.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from tilewright.source.digest import function_of
from tilewright.source.source_file import SourceFile, source_of_object

DEPTH = 8
"""The most helpers that are followed, one from the other."""
WHOLE = ("get", "items", "items_", "keys", "replace", "values")
"""Attributes of a configuration that may read any of its names."""


def unread(names: Iterable[str], functions: Iterable[Callable[..., Any]]) -> list[str]:
    """Returns the names that no function of ``call, config`` reads from its configuration.

    Helpers that get the configuration are followed. A function reads all names if it stores or unpacks the
    configuration, passes it to something else, or has no source.
    """
    left = list(names)
    for function in functions:
        code = function_of(function).__code__
        if left := [name for name in left if name not in _words(code)]:  # else the source need not be parsed
            read = _read(function)
            left = [] if read is None else [name for name in left if name not in read]
    return left


def _words(code: CodeType) -> set[str]:
    """Returns the attributes and strings in code."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names, *(each for each in code.co_consts if isinstance(each, str))}.union(*map(_words, inner))


def _read(function: Callable[..., Any]) -> set[str] | None:
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < 2 or parameters[1].kind is parameters[1].VAR_POSITIONAL:
        return None
    return _read_by(function_of(function), parameters[1].name, DEPTH)


def _read_by(function: FunctionType, config: str, depth: int) -> set[str] | None:
    """Returns the names that a function reads from its parameter ``config``. None: perhaps any name."""
    file, trees = _trees(function.__code__)
    if not depth or file is None or not trees:
        return None
    names: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Name) and node.id == config:
            read = _read_at(node, file.parent(node), function, depth)
            if read is None:
                return None
            names |= read
    return names


def _trees(code: CodeType) -> tuple[SourceFile | None, list[ast.AST]]:
    """Returns the source of a function. For a lambda, returns all lambdas of its line with the same parameters."""
    if code.co_name != "<lambda>":
        file = source_of_object(code)
        return file, [] if file is None else [file.tree]
    try:
        file = SourceFile(Path(), "".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None, []
    own = code.co_varnames[: code.co_argcount]
    lambdas = [node for node in file.nodes if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    return file, [node for node in lambdas if tuple(each.arg for each in node.args.args) == own]


def _read_at(node: ast.Name, parent: ast.AST | None, function: FunctionType, depth: int) -> set[str] | None:
    """Returns the names that are read where ``node``, the configuration, stands. None: perhaps any name."""
    if isinstance(parent, ast.Attribute):
        return None if parent.attr in WHOLE else {parent.attr}
    if isinstance(parent, ast.Subscript) and isinstance(key := parent.slice, ast.Constant):
        return {str(key.value)} if parent.value is node else None
    if isinstance(parent, ast.Compare) and isinstance(parent.left, ast.Constant):
        return {str(parent.left.value)}
    if not isinstance(parent, ast.Call) or node not in parent.args or not isinstance(parent.func, ast.Name):
        return None
    used, at = inspect.getclosurevars(function), parent.args.index(node)
    helper = {**used.globals, **used.nonlocals}.get(parent.func.id)
    if not isinstance(helper, FunctionType) or any(isinstance(each, ast.Starred) for each in parent.args[:at]):
        return None
    names = helper.__code__.co_varnames[: helper.__code__.co_argcount]
    return _read_by(helper, names[at], depth - 1) if at < len(names) else None
