"""Predicates of a space: functions that ask for what they need by parameter name.

    lambda TILE_N, N: TILE_N <= N

`Predicate` calls such a function with knobs, workload dimensions and ``arch``, and says in words what did not hold: the
first line of the docstring, else the source text, else the name.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Mapping
from types import CodeType

from tilewright.errors import SpaceError, choices
from tilewright.records import Value


class Predicate:
    """One constraint: ``why_not(known)`` is None where it holds, else the reason in one line."""

    def __init__(self, function: Callable[..., bool]):
        if not callable(function):
            raise SpaceError(f"where= takes functions, not {type(function).__name__} {function!r}")
        self.function = function
        self.text = describe(function)
        self.required, self.optional = _parameters(function, self.text)

    def why_not(self, known: Mapping[str, Value]) -> str | None:
        asked = self._asked(known)
        given = ", ".join(f"{name}={'auto' if value is None else value}" for name, value in asked.items())
        try:
            holds = self.function(**asked)
        except Exception as error:  # the author's code: any exception of it is a wrong request
            hint = " (auto is None: the compiler chooses)" if None in asked.values() else ""
            raise SpaceError(f"where: '{self.text}' fails for {given}{hint}: {error}") from error
        if holds is None or isinstance(holds, str):
            raise SpaceError(f"where: '{self.text}' returned {holds!r}; return True or False")
        return None if holds else f"'{self.text}' does not hold for {given}"

    def _asked(self, known: Mapping[str, Value]) -> dict[str, Value]:
        for name in self.required:
            if name not in known:
                raise SpaceError(f"where: '{self.text}' asks for '{name}'; {choices(name, known)}")
        return {name: known[name] for name in (*self.required, *self.optional) if name in known}


def _parameters(function: Callable[..., bool], text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names without and with a default. A default lets a closure bind a loop variable."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise SpaceError(f"where: '{text}' does not tell its parameter names; wrap it in a lambda") from error
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise SpaceError(f"where: '{text}' must name each parameter; '{parameter}' names none")
    required = tuple(p.name for p in parameters if p.default is p.empty)
    return required, tuple(p.name for p in parameters if p.default is not p.empty)


def describe(function: Callable[..., bool]) -> str:
    """What a predicate demands, in words: docstring, source of a lambda, or name."""
    document = inspect.getdoc(function) if inspect.isroutine(function) else None
    if document:
        return document.splitlines()[0].rstrip(".")
    name = getattr(function, "__name__", type(function).__name__)
    if name != "<lambda>":
        return name.replace("_", " ").strip()
    return _lambda_source(function.__code__) or "a lambda"


def _lambda_source(code: CodeType) -> str | None:
    """The body of the lambda as its author wrote it, up to spacing; None where it cannot be told."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:
        return None
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda)
        and node.lineno == code.co_firstlineno
        and tuple(a.arg for a in (*node.args.args, *node.args.kwonlyargs)) == names
    ]
    exact = [node for node in found if _same_code(node, code)]
    chosen = exact or found
    return ast.unparse(chosen[0].body) if len(chosen) == 1 else None


def _same_code(node: ast.Lambda, code: CodeType) -> bool:
    compiled = compile(ast.Expression(node), code.co_filename, "eval")
    inner = next(constant for constant in compiled.co_consts if isinstance(constant, CodeType))
    return (inner.co_code, inner.co_consts, inner.co_names) == (code.co_code, code.co_consts, code.co_names)
