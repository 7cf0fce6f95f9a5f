"""Finds products that a sum may absorb, so that a change of their uses would change a bit.

The front end of cuTile makes one `fma` of ``a * b + c``, which is rounded once, if nothing else reads the product. So a
product that is read twice, and after a change once, may be rounded differently then, and the reverse. Code that is not
understood counts as a product, and as a sum. Integers are not rounded.
"""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, names_assigned, pairs_of, target_names
from tilewright.playbook.analyses.number_kinds import Integers
from tilewright.playbook.analyses.tile_shapes import ELEMENTWISE, REDUCTIONS, SCANS, tile_call
from tilewright.source.syntax import Expression, Function, Source, dotted

_SAME = (
    "astype", "bitcast", "reshape", "broadcast_to", "expand_dims", "permute", "transpose", "astile",
    "assume_divisible_by", "ensure_constant", "static_eval",
)  # fmt: skip
"""Functions and methods that may return their tile as it is."""
_SUMS = ("add", "sub")
_READERS = (
    *(each for each in ELEMENTWISE if each not in _SUMS), *REDUCTIONS, *SCANS, "argmax", "argmin", "mma", "load",
    "gather", "store", "scatter",
)  # fmt: skip
"""Functions that compute something of a product that is no sum, or take it as an index."""


class Products:
    """The products in one function, and their uses."""

    def __init__(self, source: Source, function: Function) -> None:
        self.source, self.function = source, function
        self.effects, self.integers = Effects(source, function), Integers(source, function)
        self._open: set[str] = set()

    def is_absorbed(self, name: str) -> bool:
        """Returns whether ``name`` may be a product that a sum reads."""
        if not self._is_product(name) or self.integers.has(cst.Name(name)):
            return False
        names = [each for each in self.source.every(cst.Name, self.function.body) if each.value == name]
        return any(self._is_sum(each) for each in names if not self._is_target(each))

    def _is_target(self, node: cst.Name) -> bool:
        above = self.source.parent(node)
        while isinstance(above, (cst.Element, cst.Tuple, cst.List)):
            above = self.source.parent(above)
        named = isinstance(above, cst.Arg) and above.keyword is node
        return named or isinstance(above, cst.AssignTarget) or (isinstance(above, cst.Attribute) and above.attr is node)

    def _is_product(self, name: str) -> bool:
        """Returns whether a value of ``name`` may be a product."""
        if name in self._open:
            return False
        self._open.add(name)
        try:
            return any(self._values_are_products(each, name) for each in self._assigning(name))
        finally:
            self._open.discard(name)

    def _assigning(self, name: str) -> list[cst.BaseSmallStatement]:
        kinds: tuple[type[cst.BaseSmallStatement], ...] = (cst.Assign, cst.AugAssign, cst.AnnAssign)
        every = [each for kind in kinds for each in self.source.every(kind, self.function.body)]
        return [each for each in every if name in names_assigned(each)]

    def _values_are_products(self, statement: cst.BaseSmallStatement, name: str) -> bool:
        match statement:
            case cst.Assign():
                pairs = [(target, value) for target, value in pairs_of(statement) if name in target_names(target)]
                return any(
                    value is None or dotted(target) != name or self._gives_product(value) for target, value in pairs
                )
            case cst.AnnAssign(value=value):
                return value is not None and self._gives_product(value)
        return not isinstance(statement, cst.AugAssign) or isinstance(statement.operator, cst.MultiplyAssign)

    def _gives_product(self, node: Expression) -> bool:
        match node:
            case cst.BinaryOperation(operator=operator):
                return isinstance(operator, cst.Multiply)
            case cst.UnaryOperation(operator=cst.Plus(), expression=inside):
                return self._gives_product(inside)
            case cst.UnaryOperation() | cst.Comparison() | cst.Integer() | cst.Float():
                return False
            case cst.Name(value=name):
                return self._is_product(name)
            case cst.Attribute(attr=cst.Name(value="dtype" | "shape" | "ndim")):
                return False
            case cst.Subscript(value=inside):
                return self._gives_product(inside)
            case cst.Call():
                return self._call_gives_product(node)
        return True

    def _call_gives_product(self, call: cst.Call) -> bool:
        name = tile_call(self.source, call)
        if name in _SAME and call.args:
            return self._gives_product(call.args[0].value)
        if isinstance(call.func, cst.Attribute) and not name:
            same = call.func.attr.value in _SAME
            return self._gives_product(call.func.value) if same else not self.effects.is_load(call)
        return not name or name == "mul"

    def _is_sum(self, node: cst.CSTNode) -> bool:
        """Returns whether the value of ``node`` may be an operand of a sum."""
        above = self.source.parent(node)
        match above:
            case cst.BinaryOperation(operator=operator):
                return isinstance(operator, (cst.Add, cst.Subtract))
            case cst.UnaryOperation(operator=cst.Plus()):
                return self._is_sum(above)
            case cst.UnaryOperation() | cst.Comparison() | cst.ComparisonTarget():
                return False
            case cst.Attribute(attr=cst.Name(value="dtype" | "shape" | "ndim")):
                return False
            case cst.Attribute(attr=cst.Name(value=method)) if method in _SAME:
                call = self.source.parent(above)
                return call is None or self._is_sum(call)
            case cst.Subscript(value=value) if value is node:
                return self._is_sum(above)
            case cst.Element():  # an index is a tuple of integers, whose sums are not rounded
                index = self.source.parent(above)
                argument = self.source.parent(index) if index is not None else None
                return not isinstance(argument, cst.Arg) or self._is_sum(index or above)
            case cst.Arg():
                call = self.source.parent(above)
                name = tile_call(self.source, call) if isinstance(call, cst.Call) else ""
                if name in _SAME and call is not None:
                    return self._is_sum(call)
                return name not in _READERS
        return True
