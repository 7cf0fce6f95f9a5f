"""Finds the dtypes of the tiles in a kernel, as far as its text and the dtypes of its arrays show them."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from tilewright.playbook.analyses.dataflow import values_by_name
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
