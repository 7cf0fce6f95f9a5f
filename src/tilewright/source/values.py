"""What an expression of a Python file is worth, read from its syntax: nothing of the file runs.

Literals, arithmetic on them, lists, `range`, `itertools.product`, comprehensions, and names that are
assigned once to something of the kind. All else is an `Unread` that keeps the text: it is a value like
any other, so that what cannot be known shows up where it is used instead of disappearing.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Names: TypeAlias = Mapping[str, Any]
"""Name → value, or the expression that it is assigned to."""

MOST_VALUES = 100_000
"""Of one list; more is a mistake of the file."""
LARGEST = 1 << 64
"""A literal that is larger is not computed with."""


@dataclass(frozen=True)
class Unread:
    """A value that only running the file can tell."""

    text: str

    def __str__(self) -> str:
        return f"`{self.text}`"


_OPERATIONS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.BitOr: operator.or_, ast.USub: operator.neg, ast.Not: operator.not_, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip
_CALLS: Mapping[str, Callable[..., Any]] = {
    "range": lambda *given: _few(range(*given)),
    "product": lambda *given: _few(itertools.product(*given)),
    "list": lambda given=(): list(given),
    "tuple": lambda given=(): list(given),
    "reversed": lambda given: list(given)[::-1],
    "zip": lambda *given: list(zip(*given, strict=False)),
    "min": min, "max": max, "len": len, "int": int, "dict": dict,
}  # fmt: skip


class _Unknown(Exception):
    """The expression cannot be worked out."""


def value_of(node: ast.expr, names: Names) -> Any:
    """The value of ``node``, or `Unread`. A list or dictionary may hold `Unread` values itself."""
    try:
        return _value(node, names)
    except (_Unknown, ArithmeticError, TypeError, ValueError, KeyError, IndexError, RecursionError):
        return Unread(ast.unparse(node))


def rounds(target: ast.expr, iterable: ast.expr, names: Names) -> Iterator[dict[str, Any]]:
    """The names that ``for target in iterable`` binds, round by round; one of `Unread` where that is unknown."""
    listed = value_of(iterable, names)
    if isinstance(listed, (list, tuple)):
        yield from (_bound(target, one) for one in listed)
    else:
        every = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
        yield {name: Unread(f"{name} in {ast.unparse(iterable)}") for name in every}


def passes(conditions: list[ast.expr], names: Names) -> bool:
    """Whether the conditions hold; one that cannot be read is taken to."""
    known = (value_of(condition, names) for condition in conditions)
    return all(isinstance(found, Unread) or bool(found) for found in known)


def assigned(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Names that these statements assign, each exactly once, and to what."""
    found: dict[str, list[ast.expr | None]] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.setdefault(node.id, []).append(None)
    for statement in body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, given = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, given = statement.target, statement.value
        else:
            continue
        if isinstance(target, ast.Name) and len(found[target.id]) == 1:
            found[target.id] = [given]
    return {name: given[0] for name, given in found.items() if len(given) == 1 and given[0] is not None}


def called_name(node: ast.Call) -> str:
    """The last word of what is called: ``product`` of ``itertools.product(…)``; empty where there is none."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def arguments(node: ast.Call, names: Names, positional: Sequence[str] = ()) -> dict[str, Any]:
    """The arguments by name; ``**`` of what cannot be read is there as ``**``."""
    found = {name: value_of(one, names) for name, one in zip(positional, node.args, strict=False)}
    for keyword in node.keywords:
        value = value_of(keyword.value, names)
        if keyword.arg is not None:
            found[keyword.arg] = value
        elif isinstance(value, dict):
            found |= value
        else:
            found["**"] = value
    return found


def _value(node: ast.expr, names: Names) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id=name):
            return _named(name, names)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return _elements(elements, names)
        case ast.Dict(keys=keys, values=values):
            return _dictionary(keys, values, names)
        case ast.BinOp(left=left, op=op, right=right):
            return _operated(op, _known(left, names), _known(right, names))
        case ast.UnaryOp(op=op, operand=operand):
            return _operated(op, _known(operand, names))
        case ast.BoolOp(op=op, values=values):
            found = [_known(one, names) for one in values]
            return all(found) if isinstance(op, ast.And) else any(found)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _operated(op, _known(left, names), _known(right, names))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return value_of(body if _known(test, names) else orelse, names)
        case ast.Subscript(value=whole, slice=part):
            return _known(whole, names)[_known(part, names)]
        case ast.ListComp(elt=elt, generators=loops) | ast.GeneratorExp(elt=elt, generators=loops):
            return _few(value_of(elt, one) for one in _looped(loops, names))
        case ast.Call():
            return _called(node, names)
    raise _Unknown


def _named(name: str, names: Names) -> Any:
    if name not in names:
        raise _Unknown
    found = names[name]
    if not isinstance(found, ast.expr):
        return found
    return value_of(found, {other: one for other, one in names.items() if other != name})


def _known(node: ast.expr, names: Names) -> Any:
    found = value_of(node, names)
    if isinstance(found, Unread):
        raise _Unknown
    return found


def _operated(op: ast.AST, *operands: Any) -> Any:
    numbers = [one for one in operands if isinstance(one, (int, float))]
    large = isinstance(op, (ast.Pow, ast.LShift)) and max(map(abs, numbers), default=0) > 64
    if type(op) not in _OPERATIONS or large or any(abs(one) > LARGEST for one in numbers):
        raise _Unknown
    if isinstance(op, ast.Mult) and len(numbers) < len(operands):
        raise _Unknown  # a list repeated
    return _OPERATIONS[type(op)](*operands)


def _elements(elements: list[ast.expr], names: Names) -> list[Any]:
    found: list[Any] = []
    for element in elements:
        if isinstance(element, ast.Starred):
            found.extend(_known(element.value, names))
        else:
            found.append(value_of(element, names))
    return found


def _dictionary(keys: list[ast.expr | None], values: list[ast.expr], names: Names) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, one in zip(keys, values, strict=True):
        if key is None:
            found |= _known(one, names)
        else:
            found[_known(key, names)] = value_of(one, names)
    return found


def _looped(loops: list[ast.comprehension], names: Names) -> Iterator[Names]:
    if not loops:
        yield names
        return
    first, *rest = loops
    for bound in rounds(first.target, first.iter, names):
        inner = {**names, **bound}
        if passes(first.ifs, inner):
            yield from _looped(rest, inner)


def _called(node: ast.Call, names: Names) -> Any:
    name = called_name(node)
    if name not in _CALLS:
        raise _Unknown
    keywords = arguments(node, names)
    if "**" in keywords:
        raise _Unknown
    if name == "product" and isinstance(keywords.get("repeat"), int) and len(node.args) == 1:
        return _few(itertools.product(_known(node.args[0], names), repeat=keywords["repeat"]))
    return _CALLS[name](*(_known(one, names) for one in node.args), **keywords)


def _bound(target: ast.expr, value: Any) -> dict[str, Any]:
    if isinstance(target, ast.Name):
        return {target.id: value}
    if isinstance(target, (ast.Tuple, ast.List)):
        if isinstance(value, (list, tuple)) and len(value) == len(target.elts):
            return {k: v for t, one in zip(target.elts, value, strict=True) for k, v in _bound(t, one).items()}
        return {n.id: Unread(f"{n.id} of {value}") for n in ast.walk(target) if isinstance(n, ast.Name)}
    return {}


def _few(values: Any) -> list[Any]:
    found = list(itertools.islice(values, MOST_VALUES + 1))
    if len(found) > MOST_VALUES:
        raise _Unknown
    return found
