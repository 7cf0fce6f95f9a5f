"""Tells which numbers and tiles of a kernel are integers by its text: block ids, ranges, extents, and sums of them."""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses.constants import constant_parameters
from tilewright.playbook.analyses.dataflow import assignments, names_assigned, range_of, target_names
from tilewright.playbook.analyses.tile_shapes import tile_call
from tilewright.source.syntax import Expression, Function, Source, argument, dotted

_COUNTS = ("bid", "num_blocks", "num_tiles")
_RANGES = ("int32", "int64", "uint32", "uint64", "int16", "int8")
_KEEPING = (cst.Add, cst.Subtract, cst.Multiply, cst.FloorDivide, cst.Modulo)


class Integers:
    """The integers in one function. A name is one if all its values are."""

    def __init__(self, source: Source, function: Function) -> None:
        self.source, self.function = source, function
        self._open: set[str] = set()
        self._constants = constant_parameters(source, function, "int")

    def has(self, node: Expression) -> bool:
        """Returns whether an expression is an integer, or a tile of integers."""
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

    def _has_name(self, name: str) -> bool:
        if name in self._open:
            return True  # its other values decide
        assigned = names_assigned(self.function.body)[name]
        if not assigned:
            return name in self._constants
        self._open.add(name)
        try:
            values = [value for _, each, value in assignments(self.source, self.function) if each == name]
            loops = [each for each in self.source.every(cst.For, self.function) if name in target_names(each.target)]
            known = len(values) + len(loops) == assigned and name not in self._parameters
            return known and all(map(self.has, values)) and all(map(range_of, loops))
        finally:
            self._open.discard(name)

    @property
    def _parameters(self) -> set[str]:
        return {param.name.value for param in self.function.params.params}

    def _has_call(self, call: cst.Call) -> bool:
        name = tile_call(self.source, call)
        if name == "arange":
            dtype = argument(call, "dtype")
            return dtype is not None and self.source.tile_name(dotted(dtype)) in _RANGES
        return name in _COUNTS or (name == "cdiv" and all(self.has(arg.value) for arg in call.args))
