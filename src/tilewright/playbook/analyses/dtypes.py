"""Finds the dtype of a tile from the text: from the arrays of the launch through loads, casts and arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from tilewright.playbook.analyses.dataflow import assignments, parameters
from tilewright.playbook.analyses.grids import starts
from tilewright.playbook.base import KernelFacts
from tilewright.source.syntax import Function, Source, argument, dotted
from tilewright.task.tensors import ArraySpec

_LIKE_FIRST = (
    "load", "gather", "reshape", "permute", "transpose", "broadcast_to", "expand_dims", "extract", "sum", "max",
    "min", "prod", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "abs", "negative", "maximum", "minimum",
    "add", "sub", "mul", "truediv",
)  # fmt: skip
ANY = "any"
"""The dtype of numbers and scalars, which take that of the tile they are combined with."""
_METHODS = ("reshape", "permute", "transpose", "extract", "slice", "load")
_MADE = {"zeros": 1, "ones": 1, "full": 2, "arange": None}


def array_dtypes(source: Source, facts: KernelFacts) -> Mapping[str, str]:
    """Parameters of the launched kernel and their dtypes, `ANY` of numbers; empty where another file has it."""
    launch = facts.launch(facts.workloads[0])
    kernel = starts(facts, source) or getattr(getattr(launch.kernel, "_pyfunc", launch.kernel), "__name__", "")
    if kernel not in source.kernels:
        return {}
    names = parameters(source.kernels[kernel])
    return {name: arg.dtype for name, arg in zip(names, launch.args, strict=False) if isinstance(arg, ArraySpec)}


def dtype_of(
    source: Source, function: Function, node: cst.BaseExpression | None, arrays: Mapping[str, str]
) -> str | None:
    """``"float32"`` of a tile or an array; None where the text does not tell."""
    found = _Dtypes(source, function, arrays).of(node)
    return None if found == ANY else found


class _Dtypes:
    def __init__(self, source: Source, function: Function, arrays: Mapping[str, str]) -> None:
        self.source, self.arrays = source, arrays
        self.values: dict[str, list[cst.BaseExpression]] = {}
        for _, name, value in assignments(source, function):
            self.values.setdefault(name, []).append(value)
        self._open: set[str] = set()

    def of(self, node: cst.BaseExpression | None) -> str | None:
        match node:
            case cst.Integer() | cst.Float():
                return ANY
            case cst.Name():
                return self._named(node.value)
            case cst.Subscript():
                return self.of(node.value)
            case cst.UnaryOperation():
                return self.of(node.expression)
            case cst.BinaryOperation():
                return self._joined(self.of(node.left), self.of(node.right))
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
        name = dotted(call.func).removeprefix(f"{self.source.tile_module}.")
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if method == "astype":
            of_module = dotted(call.func).startswith(f"{self.source.tile_module}.")
            return self._dtype(argument(call, "dtype", 1 if of_module else 0))
        if name in _MADE:
            return self._dtype(argument(call, "dtype", _MADE[name]))
        if name in ("mma", "where"):
            return self.of(argument(call, "acc", 2))
        if name in _LIKE_FIRST and call.args:
            return self.of(call.args[0].value)
        if method in _METHODS and isinstance(call.func, cst.Attribute):
            return self.of(call.func.value)
        return None

    def _dtype(self, node: cst.BaseExpression | None) -> str | None:
        if isinstance(node, cst.Attribute) and node.attr.value == "dtype":
            return self.of(node.value)
        return dotted(node).split(".")[-1] or None if node is not None else None

    @staticmethod
    def _joined(left: str | None, right: str | None) -> str | None:
        if left == ANY or right == ANY:
            return right if left == ANY else left
        return left if left == right else None
