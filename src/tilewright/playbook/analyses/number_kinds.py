"""Tells which numbers and tiles of a kernel are integers, floats, or float32, by its text.

Block ids, ranges, extents, and sums of them are integers. Quotients, exponentials, and what is computed with a float
are floats. What is computed with float32 is float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter

import libcst as cst

from tilewright.playbook.analyses.constants import constant_parameters
from tilewright.playbook.analyses.dataflow import (
    assignments_at_top,
    names_assigned,
    parameters,
    range_of,
    target_names,
    values_by_name,
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
        self._assigned = names_assigned(function.body)
        self._names: set[str] | None = None  # not known yet
        self._outer: dict[str, bool] = {}

    @abstractmethod
    def has(self, node: Expression) -> bool:
        """Returns whether an expression is known to be a number of this kind, or a tile of such numbers."""

    def _has_outer(self, name: str) -> bool:
        """Returns whether a name that the function never assigns is one."""
        return False

    def _has_loop(self, loop: cst.For) -> bool:
        """Returns whether the variable of a loop is one."""
        return False

    def _has_sum(self, statement: cst.AugAssign) -> bool:
        """Returns whether a name that is one stays one by ``+=`` or a like statement."""
        return False

    def _has_name(self, name: str) -> bool:
        if not self._assigned[name]:
            if name not in self._outer:
                self._outer[name] = False  # its value may be computed from an earlier one of the same name
                self._outer[name] = self._has_outer(name)
            return self._outer[name]
        if self._names is None:
            self._find_names()
        return name in (self._names or ())

    def _find_names(self) -> None:
        """Takes all names for names of this kind, then leaves those out of which a value is none."""
        values, loops = values_by_name(self.source, self.function), self.source.every(cst.For, self.function)
        known = Counter({name: len(values[name]) for name in values})
        known.update(name for loop in loops if self._has_loop(loop) for name in target_names(loop.target))
        sums = self.source.every(cst.AugAssign, self.function)
        known.update(dotted(each.target) for each in sums if self._has_sum(each))
        self._names = {name for name in known if known[name] == self._assigned[name]} - set(parameters(self.function))
        while others := {name for name in self._names if not all(map(self.has, values.get(name, ())))}:
            self._names -= others


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


class _Spreading(_OneKind):
    """A kind that spreads: what is computed with one is one."""

    def has(self, node: Expression) -> bool:
        match node:
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

    @abstractmethod
    def _is_dtype(self, dtype: str) -> bool:
        """Returns whether a dtype is of this kind. ``dtype``: its name."""

    def _has_sum(self, statement: cst.AugAssign) -> bool:
        return True

    def _has_call(self, call: cst.Call) -> bool:
        name = tile_call(self.source, call)
        if isinstance(call.func, cst.Attribute) and not name:
            if call.func.attr.value == "astype":
                return self._has_dtype(argument(call, "dtype", 0))
            return call.func.attr.value in _LIKE_OPERANDS and self.has(call.func.value)
        if name in _MADE:
            return self._has_dtype(argument(call, "dtype", _MADE[name]))
        if name == "mma":
            return (total := argument(call, "acc", 2)) is not None and self.has(total)
        like_operands = name in (*_LIKE_OPERANDS, *_ONLY_FLOATS)
        like_operands |= dotted(call.func) in {"max", "min"} - self.source.functions.keys()
        return like_operands and any(self.has(arg.value) for arg in call.args)

    def _has_dtype(self, dtype: Expression | None) -> bool:
        if isinstance(dtype, cst.Attribute) and dtype.attr.value == "dtype":
            return self.has(dtype.value)
        return dtype is not None and self._is_dtype(dotted(dtype).rpartition(".")[2])


class Floats(_Spreading):
    """The floats in one function."""

    def has(self, node: Expression) -> bool:
        """Returns whether an expression is known to be a float, or a tile of floats."""
        return isinstance(node, cst.Float) or _is_quotient(node) or super().has(node)

    def _has_outer(self, name: str) -> bool:
        if name in parameters(self.function):
            given = [(call, call.given.get(name)) for call in calls_of(self.source, self.function)]
            passed = (value is not None and Floats(self.source, call.caller).has(value) for call, value in given)
            return bool(given) and all(passed)
        values = [value for _, each, value in assignments_at_top(self.source) if each == name]
        return len(values) == 1 and self.has(values[0])

    def _is_dtype(self, dtype: str) -> bool:
        return "float" in dtype

    def _has_call(self, call: cst.Call) -> bool:
        is_float = tile_call(self.source, call) in _ONLY_FLOATS or dotted(call.func) == "float"
        return is_float or super()._has_call(call)


def _is_quotient(node: Expression) -> bool:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide)


class Float32(_Spreading):
    """The tiles of float32 in one function, whatever the dtypes of arrays and scalars are (but for float64)."""

    def _is_dtype(self, dtype: str) -> bool:
        return dtype == "float32"  # of cuda.tile, numpy or torch
