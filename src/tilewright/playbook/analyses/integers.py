"""Tells which numbers and tiles of a kernel are integers, and which are floats, by its text.

Block ids, ranges, extents, and sums of them are integers. Quotients, exponentials, and what is computed with a float
are floats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import libcst as cst

from tilewright.playbook.analyses.constants import constant_parameters
from tilewright.playbook.analyses.dataflow import (
    assignments,
    assignments_at_top,
    names_assigned,
    parameters,
    range_of,
    target_names,
)
from tilewright.playbook.analyses.helper_calls import calls_of
from tilewright.playbook.analyses.tile_shapes import tile_call
from tilewright.source.syntax import Expression, Function, Source, argument, dotted

_COUNTS = ("bid", "num_blocks", "num_tiles")
_RANGES = ("int32", "int64", "uint32", "uint64", "int16", "int8")
_KEEPING = (cst.Add, cst.Subtract, cst.Multiply, cst.FloorDivide, cst.Modulo)
_ONLY_FLOATS = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "truediv")
_LIKE_OPERANDS = (
    "reshape", "permute", "transpose", "broadcast_to", "expand_dims", "extract", "where", "sum", "max", "min", "prod",
    "cumsum", "abs", "negative", "maximum", "minimum", "add", "sub", "mul",
)  # fmt: skip
_MADE = {"astype": 1, "zeros": 1, "ones": 1, "full": 2, "arange": 1}
"""The functions of cuTile with a dtype, and its place among their arguments."""


class _OneKind(ABC):
    """The numbers and tiles of one kind in one function. A name is one if all its values are."""

    def __init__(self, source: Source, function: Function) -> None:
        self.source, self.function = source, function
        self._open: set[str] = set()

    @abstractmethod
    def has(self, node: Expression) -> bool:
        """Returns whether an expression is known to be a number of this kind, or a tile of such numbers."""

    @abstractmethod
    def _has_outer(self, name: str) -> bool:
        """Returns whether a name that the function never assigns is one."""

    @abstractmethod
    def _has_loop(self, loop: cst.For) -> bool:
        """Returns whether the variable of a loop is one."""

    def _has_name(self, name: str) -> bool:
        if name in self._open:
            return True  # its other values decide
        assigned = names_assigned(self.function.body)[name]
        self._open.add(name)
        try:
            if not assigned:
                return self._has_outer(name)
            values = [value for _, each, value in assignments(self.source, self.function) if each == name]
            loops = [each for each in self.source.every(cst.For, self.function) if name in target_names(each.target)]
            known = len(values) + len(loops) == assigned and name not in parameters(self.function)
            return known and all(map(self.has, values)) and all(map(self._has_loop, loops))
        finally:
            self._open.discard(name)


class Integers(_OneKind):
    """The integers in one function."""

    def __init__(self, source: Source, function: Function) -> None:
        super().__init__(source, function)
        self._constants = constant_parameters(source, function, "int")

    def has(self, node: Expression) -> bool:
        """Returns whether an expression is known to be an integer, or a tile of integers."""
        match node:
            case cst.Integer():
                return True
            case cst.Name(value=name):
                return self._has_name(name)
            case cst.BinaryOperation(operator=operator):
                return isinstance(operator, _KEEPING) and self.has(node.left) and self.has(node.right)
            case cst.UnaryOperation(operator=cst.Minus()):
                return self.has(node.expression)
            case cst.Subscript(value=cst.Attribute(attr=cst.Name(value="shape"))):
                return True
            case cst.Subscript(value=inside):
                return self.has(inside)
            case cst.Call():
                return self._has_call(node)
        return False

    def _has_outer(self, name: str) -> bool:
        return name in self._constants

    def _has_loop(self, loop: cst.For) -> bool:
        return bool(range_of(loop))

    def _has_call(self, call: cst.Call) -> bool:
        name = tile_call(self.source, call)
        if name == "arange":
            dtype = argument(call, "dtype")
            return dtype is not None and self.source.tile_name(dotted(dtype)) in _RANGES
        return name in _COUNTS or (name == "cdiv" and all(self.has(arg.value) for arg in call.args))


class Floats(_OneKind):
    """The floats in one function. What is computed with one is one."""

    def has(self, node: Expression) -> bool:
        """Returns whether an expression is known to be a float, or a tile of floats."""
        match node:
            case cst.Float() | cst.BinaryOperation(operator=cst.Divide()):
                return True
            case cst.Name(value=name):
                return self._has_name(name)
            case cst.BinaryOperation():
                return self.has(node.left) or self.has(node.right)
            case cst.UnaryOperation(operator=cst.Minus(), expression=inside) | cst.Subscript(value=inside):
                return self.has(inside)
            case cst.IfExp():
                return self.has(node.body) and self.has(node.orelse)
            case cst.Call():
                return self._has_call(node)
        return False

    def _has_outer(self, name: str) -> bool:
        if name in parameters(self.function):
            given = [(call, call.given.get(name)) for call in calls_of(self.source, self.function)]
            passed = (value is not None and Floats(self.source, call.caller).has(value) for call, value in given)
            return bool(given) and all(passed)
        values = [value for _, each, value in assignments_at_top(self.source) if each == name]
        return len(values) == 1 and self.has(values[0])

    def _has_loop(self, loop: cst.For) -> bool:
        return False

    def _has_call(self, call: cst.Call) -> bool:
        name, given = tile_call(self.source, call), [arg.value for arg in call.args]
        if isinstance(call.func, cst.Attribute) and not name:
            if call.func.attr.value == "astype":
                return self._is_float(argument(call, "dtype", 0))
            return call.func.attr.value in _LIKE_OPERANDS and self.has(call.func.value)
        if name in _MADE:
            return self._is_float(argument(call, "dtype", _MADE[name]))
        if name == "mma":
            return (total := argument(call, "acc", 2)) is not None and self.has(total)
        like_operands = name in _LIKE_OPERANDS or dotted(call.func) in ("max", "min")
        return name in _ONLY_FLOATS or dotted(call.func) == "float" or (like_operands and any(map(self.has, given)))

    def _is_float(self, dtype: Expression | None) -> bool:
        if isinstance(dtype, cst.Attribute) and dtype.attr.value == "dtype":
            return self.has(dtype.value)
        return dtype is not None and "float" in dotted(dtype).rpartition(".")[2]
