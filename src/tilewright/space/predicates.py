"""The constraints of a space: functions of knobs, dimensions and the architecture, each with a description."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Mapping
from types import CodeType

from tilewright.errors import SpaceError, choices
from tilewright.records import Value


class Predicate:
    """One constraint: a function such as ``lambda TILE_N, N: TILE_N <= N``.

    The names of its parameters are knobs, workload dimensions or ``arch``.
    """

    def __init__(self, function: Callable[..., bool]):
        if not callable(function):
            raise SpaceError(f"where= takes functions, not {type(function).__name__} {function!r}")
        self.function = function
        self.text = describe(function)
        self.required, self.optional = _parameters(function, self.text)

    def why_not(self, known: Mapping[str, Value]) -> str | None:
        """Returns None if the constraint holds, else the reason in one line.

        known: knobs, dimensions and ``arch`` with their values.
        Raises SpaceError if the function requires another name, fails, or returns None or a string.
        """
        for name in self.required:
            if name not in known:
                raise SpaceError(f"where: '{self.text}' asks for '{name}'; {choices(name, known)}")
        asked = {name: known[name] for name in (*self.required, *self.optional) if name in known}
        given = ", ".join(f"{name}={'auto' if value is None else value}" for name, value in asked.items())
        try:
            holds = self.function(**asked)
        except Exception as error:  # an exception of the author's code is an error of the task
            hint = " (auto is None: the compiler chooses)" if None in asked.values() else ""
            raise SpaceError(f"where: '{self.text}' fails for {given}{hint}: {error}") from error
        if holds is None or isinstance(holds, str):
            raise SpaceError(f"where: '{self.text}' returned {holds!r}; return True or False")
        return None if holds else f"'{self.text}' does not hold for {given}"


def _parameters(function: Callable[..., bool], text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the parameters without a default, and of the parameters with a default.

    A default may bind a loop variable, so such a parameter need not be a knob.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise SpaceError(f"where: the parameter names of '{text}' are not known; wrap it in a lambda") from error
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise SpaceError(f"where: '{text}' must name each parameter, so it cannot have '{parameter}'")
    required = tuple(p.name for p in parameters if p.default is p.empty)
    return required, tuple(p.name for p in parameters if p.default is not p.empty)


def describe(function: Callable[..., bool]) -> str:
    """Returns a predicate's description: its docstring's first line, the source of a lambda, or the function's name."""
    document = inspect.getdoc(function) if inspect.isroutine(function) else None
    if document:
        return document.splitlines()[0].rstrip(".")
    name = getattr(function, "__name__", type(function).__name__)
    if name != "<lambda>":
        return name.replace("_", " ").strip()
    return _lambda_source(function.__code__) or "a lambda"


def _lambda_source(code: CodeType) -> str | None:
    """Returns the source of a lambda's body, perhaps with other spacing; None if the source cannot be found."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:
        return None
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    named = [each for each in lambdas if tuple(a.arg for a in (*each.args.args, *each.args.kwonlyargs)) == names]
    chosen = [node for node in named if _same_code(node, code)] or named
    return ast.unparse(chosen[0].body) if len(chosen) == 1 else None


def _same_code(node: ast.Lambda, code: CodeType) -> bool:
    compiled = compile(ast.Expression(node), code.co_filename, "eval")
    inner = next(constant for constant in compiled.co_consts if isinstance(constant, CodeType))
    return (inner.co_code, inner.co_consts, inner.co_names) == (code.co_code, code.co_consts, code.co_names)
