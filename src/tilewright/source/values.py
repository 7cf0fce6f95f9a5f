"""Computes the value of an expression in a Python file from its syntax, without running the file.

`value_of` evaluates literals, arithmetic on them, lists, `range`, `itertools.product`, comprehensions, and names that
are assigned once. Every other expression has the value `Unread`, which keeps the expression's text for messages.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from tilewright.records import Value
from tilewright.source.nodes import below
from tilewright.source.source_file import stored

MOST_VALUES = 100_000
"""The most elements of a list; a longer list is `Unread`."""
LARGEST = 1 << 64
"""Operations on larger numbers are `Unread`."""


@dataclass(frozen=True)
class Unread:
    """An expression whose value is known only if the file runs. ``text``: the expression."""

    text: str

    def __str__(self) -> str:
        return f"`{self.text}`"


Known: TypeAlias = "Value | Unread | list[Known] | tuple[Known, ...] | dict[Value, Known]"
"""The value of an expression. Tuples and sets in the file become lists."""
Names: TypeAlias = Mapping[str, "Known | ast.expr"]
"""Maps a name to its value, or to the expression that is assigned to the name."""
NO_NAMES: Names = MappingProxyType({})

_OPERATIONS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.BitOr: operator.or_, ast.USub: operator.neg, ast.Not: operator.not_, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda value, values: value in values,
    ast.NotIn: lambda value, values: value not in values,
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
    """The expression cannot be evaluated."""


def value_of(node: ast.expr, names: Names) -> Known:
    """Returns the value of ``node``, or `Unread`. A list or dictionary may have `Unread` elements."""
    try:
        return _value(node, names)
    except (_Unknown, ArithmeticError, TypeError, ValueError, KeyError, IndexError, RecursionError):
        return Unread(ast.unparse(node))


def value_of_text(text: str, names: Names = NO_NAMES) -> Known:
    """Returns the value of an expression's text. Returns `Unread` if any part of the value is unknown."""
    value = value_of(ast.parse(f"({text.strip()})", mode="eval").body, names)
    return value if _is_known(value) else Unread(text)


def _is_known(value: Known) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return not isinstance(value, Unread) and all(map(_is_known, parts))


def rounds(target: ast.expr, iterable: ast.expr, names: Names) -> Iterator[dict[str, Known]]:
    """Yields, for each iteration of ``for target in iterable``, the values of the names in ``target``.

    If ``iterable`` is `Unread`, there is one iteration, and its names are `Unread`.
    """
    values = value_of(iterable, names)
    if isinstance(values, (list, tuple)):
        yield from (_bound(target, value) for value in values)
    else:
        yield {name: Unread(f"{name} in {ast.unparse(iterable)}") for name in stored(target)}


def looped(
    loops: Sequence[ast.comprehension], names: Names, unread: Callable[[ast.expr], None] = lambda condition: None
) -> Iterator[Names]:
    """Yields, for each iteration of a comprehension's loops, all names with their values.

    A condition that is `Unread` counts as true, and is passed to the function ``unread``.
    """
    if not loops:
        yield names
        return
    first, *rest = loops
    for bound in rounds(first.target, first.iter, names):
        inner = {**names, **bound}
        values = {condition: value_of(condition, inner) for condition in first.ifs}
        for condition in (condition for condition, value in values.items() if isinstance(value, Unread)):
            unread(condition)
        if all(isinstance(value, Unread) or bool(value) for value in values.values()):
            yield from looped(rest, inner, unread)


def assigned(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Returns the assigned expression of each name that the statements assign exactly once."""
    walked = (node for statement in body for node in below(statement))
    stores = Counter(node.id for node in walked if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    values: dict[str, ast.expr] = {}
    for statement in body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        if isinstance(target, ast.Name) and stores[target.id] == 1:
            values[target.id] = value
    return values


def called_name(node: ast.Call) -> str:
    """Returns the last part of the called name: ``product`` for ``itertools.product(…)``; "" if no name is called."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def arguments(node: ast.Call, names: Names, positional: Sequence[str] = ()) -> dict[str, Known]:
    """Returns the values of a call's arguments by name; ``positional``: the names of the positional parameters.

    An `Unread` ``**`` argument gets the name ``**``.
    """
    values = {name: value_of(given, names) for name, given in zip(positional, node.args, strict=False)}
    for keyword in node.keywords:
        value = value_of(keyword.value, names)
        if keyword.arg is None and isinstance(value, dict):
            values |= {str(name): inner for name, inner in value.items()}
        else:
            values[keyword.arg or "**"] = value
    return values


def _value(node: ast.expr, names: Names) -> Known:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id=name):
            named = names[name]
            if not isinstance(named, ast.expr):
                return named
            return value_of(named, {other: known for other, known in names.items() if other != name})
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return [value for element in elements for value in _elements(element, names)]
        case ast.Dict(keys=keys, values=values):
            items: dict[Value, Known] = {}
            for key, inner in zip(keys, values, strict=True):
                items |= _known(inner, names) if key is None else {_known(key, names): value_of(inner, names)}
            return items
        case ast.BinOp(left=left, op=op, right=right):
            return _operated(op, _known(left, names), _known(right, names))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            compared = [_known(operand, names) for operand in (left, *comparators)]
            return all(_operated(op, *pair) for op, pair in zip(ops, itertools.pairwise(compared), strict=True))
        case ast.UnaryOp(op=op, operand=operand):
            return _operated(op, _known(operand, names))
        case ast.BoolOp(op=op, values=values):
            parts = [_known(part, names) for part in values]
            return all(parts) if isinstance(op, ast.And) else any(parts)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return value_of(body if _known(test, names) else orelse, names)
        case ast.Subscript(value=whole, slice=part):
            element: Known = _known(whole, names)[_known(part, names)]
            return element
        case ast.ListComp(elt=elt, generators=loops) | ast.GeneratorExp(elt=elt, generators=loops):
            return _few(value_of(elt, inner) for inner in looped(loops, names))
        case ast.Call():
            return _called(node, names)
    raise _Unknown


def _known(node: ast.expr, names: Names) -> Any:
    value = value_of(node, names)
    if isinstance(value, Unread):
        raise _Unknown
    return value


def _operated(op: ast.AST, *operands: Known) -> Known:
    numbers = [operand for operand in operands if isinstance(operand, (int, float))]
    large = isinstance(op, (ast.Pow, ast.LShift)) and max(map(abs, numbers), default=0) > 64
    repeated = isinstance(op, ast.Mult) and len(numbers) < len(operands)  # a list times a number
    unknown = isinstance(op, ast.cmpop) and not all(map(_is_known, operands))
    if type(op) not in _OPERATIONS or large or repeated or unknown or any(abs(x) > LARGEST for x in numbers):
        raise _Unknown
    value: Known = _OPERATIONS[type(op)](*operands)
    return value


def _elements(element: ast.expr, names: Names) -> Iterable[Known]:
    """Returns the value of one element in a list display, or all values of a starred element."""
    if not isinstance(element, ast.Starred):
        return [value_of(element, names)]
    values: Iterable[Known] = _known(element.value, names)
    return values


def _called(node: ast.Call, names: Names) -> Known:
    name, keywords = called_name(node), arguments(node, names)
    if name not in _CALLS or "**" in keywords:
        raise _Unknown
    repeat = keywords.get("repeat")
    if name == "product" and isinstance(repeat, int) and len(node.args) == 1:
        return _few(itertools.product(_known(node.args[0], names), repeat=repeat))
    value: Known = _CALLS[name](*(_known(argument, names) for argument in node.args), **keywords)
    return value


def _bound(target: ast.expr, value: Known) -> dict[str, Known]:
    if isinstance(target, ast.Name):
        return {target.id: value}
    if isinstance(target, (ast.Tuple, ast.List)):
        if isinstance(value, (list, tuple)) and len(value) == len(target.elts):
            pairs = zip(target.elts, value, strict=True)
            return {name: inner for part, whole in pairs for name, inner in _bound(part, whole).items()}
        return {name: Unread(f"{name} of {value}") for name in stored(target)}
    return {}


def _few(values: Iterable[Known]) -> list[Known]:
    few = list(itertools.islice(values, MOST_VALUES + 1))
    if len(few) > MOST_VALUES:
        raise _Unknown
    return few
