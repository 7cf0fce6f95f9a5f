"""Finds the dtypes of the tiles in a kernel, as far as its text and the dtypes of its arrays show them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, parameters, values_by_name
from tilewright.playbook.analyses.tile_shapes import tile_call
from tilewright.source.syntax import Expression, Function, Source, argument, dotted

_LIKE_FIRST = (  # functions whose result has the dtype of their first operand
    "load", "gather", "reshape", "permute", "transpose", "broadcast_to", "expand_dims", "extract", "sum", "max",
    "min", "prod", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "abs", "negative", "maximum", "minimum",
    "add", "sub", "mul", "truediv", "cumsum",
)  # fmt: skip
ANY = "any"  # the dtype of a scalar literal, which takes the dtype of the tile in an operation
_METHODS = ("reshape", "permute", "transpose", "extract", "slice", "load")
_MADE = {"zeros": 1, "ones": 1, "full": 2, "arange": None}


class Dtypes:
    """Finds the dtypes of expressions in one function. ``arrays`` are the dtypes of its array parameters."""

    def __init__(self, source: Source, function: Function, arrays: Mapping[str, str]) -> None:
        self.source, self.arrays = source, arrays
        self.values = values_by_name(source, function)
        self._open: set[str] = set()  # names that are being read: an accumulator is computed from its own value

    def of(self, node: Expression | None) -> str | None:
        """Returns the dtype of a tile or array, `ANY` for a scalar literal, or None if the text does not show the
        dtype."""
        match node:
            case cst.Integer() | cst.Float():
                return ANY
            case cst.Name():
                return self._named(node.value)
            case cst.Subscript(value=inside) | cst.UnaryOperation(expression=inside):
                return self.of(inside)
            case cst.BinaryOperation():
                left, right = self.of(node.left), self.of(node.right)
                return right if left in (ANY, right) else left if right == ANY else None
            case cst.Call():
                return self._called(node)
        return None

    def _named(self, name: str) -> str | None:
        if name in self._open:
            return ANY
        if name not in self.values:
            return self.arrays.get(name)
        self._open.add(name)
        found = {self.of(value) for value in self.values[name]} - {ANY}
        self._open.discard(name)
        return found.pop() if len(found) == 1 else None

    def _called(self, call: cst.Call) -> str | None:
        called, module = dotted(call.func), f"{self.source.tile_module}."
        name = called.removeprefix(module)
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if method == "astype":
            return self._dtype(argument(call, "dtype", 1 if called.startswith(module) else 0))
        if name in _MADE:
            return self._dtype(argument(call, "dtype", _MADE[name]))
        if name in ("mma", "where"):
            return self.of(argument(call, "acc", 2))
        if name in _LIKE_FIRST and call.args:
            return self.of(call.args[0].value)
        return self.of(call.func.value) if isinstance(call.func, cst.Attribute) and method in _METHODS else None

    def _dtype(self, node: Expression | None) -> str | None:
        """Returns the dtype that an argument such as ``ct.float32`` or ``x.dtype`` names; None if unknown."""
        if isinstance(node, cst.Attribute) and node.attr.value == "dtype":
            return self.of(node.value)
        return dotted(node).split(".")[-1] or None if node is not None else None


def float32_names(source: Source, function: Function) -> set[str]:
    """Returns the names that always hold float32, whatever the dtypes of arrays and scalars are (but for float64)."""
    values, counts = values_by_name(source, function), names_assigned(function)
    added = [dotted(each.target) for each in source.every(cst.AugAssign, function)]
    whole = {name for name in values if len(values[name]) + added.count(name) == counts[name]}
    found = whole - set(parameters(function))
    while narrow := {name for name in found if not all(is_float32(source, each, found) for each in values[name])}:
        found -= narrow
    return found


def is_float32(source: Source, node: Expression, names: Collection[str]) -> bool:
    """Returns whether an expression is float32 if ``names`` are: an operation with float32 is."""
    match node:
        case cst.Name(value=name):
            return name in names
        case cst.Subscript(value=inside) | cst.UnaryOperation(expression=inside):
            return is_float32(source, inside, names)
        case cst.BinaryOperation():
            return is_float32(source, node.left, names) or is_float32(source, node.right, names)
        case cst.Call():
            return _makes_float32(source, node, names)
    return False


def _makes_float32(source: Source, call: cst.Call, names: Collection[str]) -> bool:
    name, operands = tile_call(source, call), [arg.value for arg in call.args]
    if not name and isinstance(call.func, cst.Attribute):  # a method
        name, operands = call.func.attr.value, [call.func.value, *operands]
    if name in _MADE or name == "astype":
        place = _MADE.get(name, len(operands) - 1)
        dtype = argument(call, "dtype") or next(iter(operands[place:] if place is not None else ()), None)
        return dtype is not None and dotted(dtype).rpartition(".")[2] == "float32"  # of cuda.tile, numpy or torch
    if name == "mma":
        total = argument(call, "acc", 2)
        return total is not None and is_float32(source, total, names)
    read = operands[1:] if name == "where" else operands[:2] if name in (*_LIKE_FIRST, *_METHODS) else []
    return any(is_float32(source, each, names) for each in read)
