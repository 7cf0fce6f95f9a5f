"""Bounds the values of an expression in tile code, as far as the text shows them: ``ct.arange(N) + 1`` is at least 1.

An integer that may leave 32 bits wraps, and has no bounds then. A float with bounds is a number, and is not infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import libcst as cst

from tilewright.playbook.analyses.dataflow import reaching
from tilewright.playbook.analyses.tile_shapes import FILLED, new_axes, reshaped, same_elements, tile_call
from tilewright.source.syntax import Expression, Source, argument, dotted, number

INTEGER, FLOAT, LITERAL = "integer", "float", "literal"
"""The kind of a value: any integer, a float of at least 32 bits, or a number in the text, which takes the dtype of the
other operand."""
_DTYPES = {"float32": FLOAT, "float64": FLOAT, "int32": INTEGER, "int64": INTEGER}
_FINITE = 1e30  # far below the largest float32
_LONGEST = 1 << 24  # elements of a tile, and more than fit on an SM
_SAME = ("broadcast_to", "expand_dims", "transpose", "permute", "max", "min")
_BUILTINS = ("max", "min")
_MOST_BLOCKS = (1 << 31) - 1


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high`` of one kind."""

    low: float
    high: float
    kind: str


Operation: TypeAlias = Callable[[float, float], float]
_ANY = Range(-(1 << 63), (1 << 63) - 1, INTEGER)


def range_of_values(source: Source, node: Expression | None) -> Range | None:
    """Returns the bounds of an expression; None if they are not known."""
    if node is None:
        return None
    if (known := number(node)) is not None:
        return Range(known, known, LITERAL) if abs(known) < _FINITE else None
    match node:
        case cst.Name():
            found = reaching(source, node.value, node)
            return None if found is None else range_of_values(source, found.value)
        case cst.Comparison():
            return Range(0, 1, INTEGER)
        case cst.Subscript():
            return None if new_axes(node) is None else range_of_values(source, node.value)
        case cst.BinaryOperation(operator=cst.Add()):
            return _fitting(_computed(source, node.left, node.right, lambda x, y: x + y))
        case cst.BinaryOperation(operator=cst.Subtract()):
            return _fitting(_computed(source, node.left, node.right, lambda x, y: x - y))
        case cst.BinaryOperation(operator=cst.Multiply()):
            return _fitting(_computed(source, node.left, node.right, lambda x, y: x * y))
        case cst.Call():
            return _of_call(source, node)
    return None


def _of_call(source: Source, call: cst.Call) -> Range | None:
    called = dotted(call.func)
    name = tile_call(source, call) or (called if called in _BUILTINS and called not in source.functions else "")
    operands = [arg.value for arg in call.args if arg.keyword is None]
    if (inside := same_elements(source, call)) is not None:
        own = tile_call(source, call) == "astype"
        return _as(range_of_values(source, inside), _kind(argument(call, "dtype", 1 if own else 0)))
    if (shaped := reshaped(source, call)) is not None:
        return range_of_values(source, shaped[0])
    if name in ("bid", "num_blocks"):
        return Range(name == "num_blocks", _MOST_BLOCKS - (name == "bid"), INTEGER)
    if name == "arange":
        return _as(_counted(call), _kind(argument(call, "dtype")))
    if name == "full":
        return _as(range_of_values(source, argument(call, "fill_value", 1)), _kind(argument(call, "dtype", 2)))
    if name in FILLED:
        value = float(name == "ones")
        return _as(Range(value, value, LITERAL), _kind(argument(call, "dtype", 1)))
    elementwise = name in ("maximum", "minimum") or (name in _BUILTINS and not tile_call(source, call))
    if elementwise and len(operands) == 2:
        return _computed(source, operands[0], operands[1], max if name.startswith("max") else min)
    if name == "where" and len(operands) == 3:
        return _computed(source, operands[1], operands[2], lambda x, y: x, lambda x, y: y)
    if name == "sum" and operands:
        added = range_of_values(source, operands[0])
        return _ANY if added is not None and added.kind == INTEGER else None
    return range_of_values(source, operands[0]) if name in _SAME and operands else None


def _counted(call: cst.Call) -> Range | None:
    """Returns the bounds of ``arange``; None if it has a step, or a start that the text does not show."""
    start = argument(call, "start")
    first = 0 if start is None else number(start)
    if argument(call, "step") is not None or not isinstance(first, int):
        return None
    return Range(first, first + _LONGEST, INTEGER)


def _computed(source: Source, left: Expression, right: Expression, *operations: Operation) -> Range | None:
    """Returns the bounds of an operation that is monotonous in each operand; of several, those that include all."""
    first, second = range_of_values(source, left), range_of_values(source, right)
    if first is None or second is None:
        return None
    kinds = {first.kind, second.kind}
    fraction = any(each.kind == LITERAL and isinstance(each.low, float) for each in (first, second))
    if kinds == {INTEGER, LITERAL} and fraction:
        return None  # the dtype is not known
    corners = list(product((first.low, first.high), (second.low, second.high)))
    found = [operation(*corner) for operation in operations for corner in corners]
    kind = FLOAT if FLOAT in kinds else INTEGER if INTEGER in kinds else LITERAL
    return Range(min(found), max(found), kind)


def _fitting(found: Range | None) -> Range | None:
    """Returns the bounds of a sum or a product, which may wrap or overflow."""
    if found is not None and found.kind == INTEGER:
        return found if found.low >= -(1 << 31) and found.high < 1 << 31 else _ANY
    return found if found is not None and max(abs(found.low), abs(found.high)) < _FINITE else None


def _as(found: Range | None, kind: str | None) -> Range | None:
    """Returns the bounds of a conversion. Those of a float that becomes an integer are not kept. Nor are those
    of an integer that may lose its upper bits."""
    if kind == INTEGER:
        whole = found is not None and found.kind != FLOAT and found.low == int(found.low)
        return _fitting(Range(found.low, found.high, INTEGER)) if found is not None and whole else _ANY
    return None if kind is None or found is None else Range(found.low, found.high, kind)


def _kind(dtype: Expression | None) -> str | None:
    """Returns the kind of a dtype such as ``ct.float32``; None for any other."""
    return None if dtype is None else _DTYPES.get(dotted(dtype).rpartition(".")[2])
