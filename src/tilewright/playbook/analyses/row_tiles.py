"""Rewrites tile code for one row so that it handles several: each value of a row gains an axis of rows.

A value that depends on the row's number has the shape ``(1, N)``, ``(N,)`` or, as a statistic of the row, ``()``. It
gets the shape ``(ROWS, N)`` or ``(ROWS, 1)``. Elementwise operations then broadcast as before, and reductions run along
the last axis. Code of any other form is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_read
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.tile_shapes import (
    ELEMENTWISE,
    FILLED,
    REDUCTIONS,
    Shape,
    Shapes,
    indices_of,
    is_true,
    new_axes,
    reduced_axes,
    reshaped,
    same_elements,
    tile_call,
    tuple_text,
)
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Function, Source, argument, dotted, elements, with_argument

WRITES = ("store", "scatter")
SCALAR_CALLS = ("bid", "num_blocks", "cdiv")
UNKNOWN_CODE = (cst.Lambda, cst.FunctionDef, cst.ListComp, cst.GeneratorExp, cst.While, cst.NamedExpr)


class RowTiles(cst.CSTTransformer):
    """Visits the body of ``function``. ``row`` is the name of the row's number, which becomes that of a group of
    rows; ``rows`` the name for the tile of their numbers; ``count`` that of the constant of how many there are."""

    def __init__(self, source: Source, function: Function, row: str, rows: str, count: str) -> None:
        super().__init__()
        self.source, self.row, self.rows, self.count = source, row, rows, count
        self.shapes = Shapes(source, function, {row})
        self.function = function
        self.written = 0
        self.width: str | None = None
        """The longest row tile, as it is written: that of the last load."""
        self._filled = self._initial_values()
        loops, targets = source.every(cst.For, function), source.every(cst.AssignTarget, function)
        bound = [*targets, *(loop.target for loop in loops)]
        self._labels: set[cst.CSTNode | None] = {name for one in bound for name in source.every(cst.Name, one)}
        """Names that are given a value here, and those of attributes and keywords."""
        self._labels |= {one.attr for one in source.every(cst.Attribute, function)}
        self._labels |= {arg.keyword for arg in source.every(cst.Arg, function)}
        for kind in UNKNOWN_CODE:
            if source.every(kind, function.body):
                raise NotApplicable(f"{function.name.value} holds a {kind.__name__}, which is not followed")

    # Values ---------------------------------------------------------------------------------------

    def _varies(self, node: cst.BaseExpression) -> bool:
        return self.shapes.tile(node).varies

    def _row_shape(self, node: cst.BaseExpression) -> Shape:
        """The shape of a value that is combined with rows. Raises unless all its elements lie along its last axis."""
        shape = self.shapes.of(node)
        if shape is None:
            raise NotApplicable(f"the shape of {self._said(node)} is not known")
        if any(size != "1" for size in shape[:-1]):
            raise NotApplicable(f"{self._said(node)} has more than one row already")
        return shape

    def _new(self, shape: Sequence[str]) -> tuple[str, ...]:
        return ("1",) * (len(shape) - 2) + (self.count, shape[-1] if shape else "1")

    def _said(self, node: cst.CSTNode) -> str:
        return " ".join(self.source.code(node).split())

    def _initial_values(self) -> list[cst.BaseExpression]:
        """Initial values of accumulators: they do not depend on the row, but need the axis of rows from the start."""
        found: list[cst.BaseExpression] = []
        for name, value, added in self.shapes.assigned:
            if not self.shapes.names[name].varies or name == self.row:
                continue
            if value is None:
                raise NotApplicable(f"{name} comes out of a call that gives several values")
            if added:
                self._row_shape(cst.Name(name))
                self._row_shape(value)
            elif self._varies(value):
                continue
            elif isinstance(value, cst.Call) and tile_call(self.source, value) in FILLED:
                found.append(value)
            else:
                raise NotApplicable(f"{name} begins as {self._said(value)}, which has no axis of rows")
        return found

    def on_visit(self, node: cst.CSTNode) -> bool:
        match node:
            case cst.If(test=decides) | cst.IfExp(test=decides):
                what = "a branch"
            case cst.For(iter=decides):
                what = "a loop's length"
            case cst.BooleanOperation() as decides:
                what = "a truth value"
            case _:
                return super().on_visit(node)
        if self._varies(decides):
            raise NotApplicable(f"{what} follows from the row: {self._said(decides)}")
        return True

    # Expressions ----------------------------------------------------------------------------------

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        rows = original_node.value == self.row and original_node not in self._labels
        return updated_node.with_changes(value=self.rows) if rows else updated_node

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        if not self._varies(node):
            return
        if isinstance(node.operator, cst.MatrixMultiply):
            raise NotApplicable(f"{self._said(node)} is a product of matrices")
        self._row_shape(node.left)
        self._row_shape(node.right)

    def visit_Comparison(self, node: cst.Comparison) -> None:
        if self._varies(node):
            for one in (node.left, *(each.comparator for each in node.comparisons)):
                self._row_shape(one)

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        if not self._varies(original_node):
            return updated_node
        if new_axes(original_node) is None:
            raise NotApplicable(f"{self._said(original_node)} takes a part of a row")
        before, after = self._row_shape(original_node.value), self._row_shape(original_node)
        if len(self._new(after)) != len(self._new(before)) or after[-1:] != (before[-1:] or ("1",)):
            raise NotApplicable(f"{self._said(original_node)} turns a row into another form")
        return updated_node.value

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        name = tile_call(self.source, original_node)
        if any(original_node is one for one in self._filled):
            return self._with_shape(original_node, updated_node, 0)
        if name in WRITES:
            self.written += 1
        if not self._touches(original_node):
            if name in WRITES or name.startswith("atomic"):
                raise NotApplicable(f"{self._said(original_node)} does not follow from the row")
            return updated_node
        if (shaped := reshaped(self.source, original_node)) is not None:
            return self._reshape(original_node, updated_node, shaped[0], [self.shapes.size(one) for one in shaped[1]])
        if isinstance(original_node.func, cst.Attribute) and original_node.func.attr.value == "item":
            return self._item(original_node, updated_node)
        match name:
            case "load":
                return self._load(original_node, updated_node)
            case "store":
                return self._store(original_node, updated_node)
            case "gather" | "scatter":
                return self._indexed(original_node, updated_node)
            case "broadcast_to":
                self._row_shape(original_node.args[0].value)
                return self._with_shape(original_node, updated_node, 1)
        if name in REDUCTIONS:
            return self._reduction(original_node, updated_node)
        inside = same_elements(self.source, original_node)
        if name in (*ELEMENTWISE, *SCALAR_CALLS) or inside is not None:
            for one in [arg.value for arg in original_node.args] + ([inside] if inside is not None else []):
                self._row_shape(one)
            return updated_node
        raise NotApplicable(f"what {self._said(original_node.func)} does with a row is not known")

    def _touches(self, call: cst.Call) -> bool:
        parts = [arg.value for arg in call.args]
        if isinstance(call.func, cst.Attribute):
            parts.append(call.func.value)
        names = {name for part in parts for name in names_read(part)}
        known = self.shapes.names
        return self.row in names or any(name in known and known[name].varies for name in names)

    # Calls ----------------------------------------------------------------------------------------

    def _with_shape(self, old: cst.Call, new: cst.Call, place: int) -> cst.Call:
        return with_argument(new, "shape", tuple_text(self._new(self._row_shape(old))), place)

    def _reduction(self, old: cst.Call, new: cst.Call) -> cst.Call:
        shape = self._row_shape(old.args[0].value)
        axes = reduced_axes(old, len(shape))
        if not shape or axes is None or len(shape) - 1 not in axes or len(self._new(shape)) != 2:
            raise NotApplicable(f"{self._said(old)} is not along a row")
        return with_argument(with_argument(new, "axis", "1", 1), "keepdims", "True")

    def _reshape(
        self, old: cst.Call, new: cst.Call, inside: cst.BaseExpression, target: list[str]
    ) -> cst.BaseExpression:
        before = self._row_shape(inside)
        if any(size != "1" for size in target[:-1]) or (target[-1:] or ["1"]) != list(before[-1:] or ("1",)):
            raise NotApplicable(f"{self._said(old)} turns a row into another form")
        method = tile_call(self.source, old) != "reshape"
        if len(self._new(target)) != len(self._new(before)):
            return with_argument(new, "shape", tuple_text(self._new(target)), 0 if method else 1)
        if not method:
            return new.args[0].value
        assert isinstance(new.func, cst.Attribute)
        return new.func.value

    def _item(self, old: cst.Call, new: cst.Call) -> cst.BaseExpression:
        assert isinstance(old.func, cst.Attribute) and isinstance(new.func, cst.Attribute)
        if any(size != "1" for size in self._row_shape(old.func.value)):
            raise NotApplicable(f"{self._said(old)} is one element of several")
        return new.func.value

    def _load(self, old: cst.Call, new: cst.Call) -> cst.BaseExpression:
        index, place = self._index(old)
        shape = elements(argument(old, "shape", 2))
        if shape is None or len(shape) != len(index):
            raise NotApplicable(f"the shape of {self._said(old)} is not written as a tuple")
        sizes = [self.shapes.size(one) for one in shape]
        if any(size != "1" for size in sizes[:-1]) or sizes[place] != "1":
            raise NotApplicable(f"{self._said(old)} loads more than one row already")
        sizes[place] = self.count
        new = self._with_index(old, with_argument(new, "shape", tuple_text(sizes), 2))
        if place == len(index) - 1:
            column = cst.parse_expression(f"({self.count}, 1)")
            return cst.Call(cst.Attribute(new, cst.Name("reshape")), [cst.Arg(column)])
        self.width = sizes[-1]
        return new

    def _store(self, old: cst.Call, new: cst.Call) -> cst.BaseExpression:
        index, place = self._index(old)
        value, changed = argument(old, "tile", 2), argument(new, "tile", 2)
        if value is None or changed is None or not self._varies(value):
            raise NotApplicable(f"what {self._said(old)} stores does not follow from the row")
        shape = self._row_shape(value)
        ones = ("1",) * (len(index) - 1)
        if place < len(index) - 1:
            target = self._new((*ones, shape[-1] if shape else "1"))
        elif all(size == "1" for size in shape):
            target = (*ones, self.count)
        else:
            raise NotApplicable(f"{self._said(old)} stores more than one element of a row")
        if place == len(index) - 1 or len(target) != len(self._new(shape)):
            new = with_argument(new, "tile", f"{text_of(self.source, changed)}.reshape({tuple_text(target)})", 2)
        return self._with_index(old, new)

    def _indexed(self, old: cst.Call, new: cst.Call) -> cst.BaseExpression:
        self._checked(old)
        if not any(self._varies(one) for one in indices_of(old)):
            raise NotApplicable(f"{self._said(old)} does not follow from the row")
        for arg in old.args[1:]:
            for one in elements(arg.value) or [arg.value]:
                self._row_shape(one)
        return new

    def _index(self, call: cst.Call) -> tuple[list[cst.BaseExpression], int]:
        """The indices of a tile load or store, and which of them is the row's."""
        self._checked(call)
        if argument(call, "order") is not None:
            raise NotApplicable(f"{self._said(call)} changes the order of the axes")
        index = elements(argument(call, "index", 1))
        if index is None:
            raise NotApplicable(f"the index of {self._said(call)} is not written as a tuple")
        places = [place for place, one in enumerate(index) if self._varies(one)]
        if len(places) != 1 or dotted(index[places[0]]) != self.row or places[0] < len(index) - 2:
            raise NotApplicable(f"{self._said(call)} does not take the row as it is, in the last two axes")
        return index, places[0]

    def _with_index(self, old: cst.Call, new: cst.Call) -> cst.Call:
        """The access with its old index, which now is the number of a group of rows."""
        index = argument(old, "index", 1)
        return new if index is None else with_argument(new, "index", self.source.code(index), 1)

    def _checked(self, call: cst.Call) -> None:
        bounds = argument(call, "check_bounds")
        if bounds is not None and not is_true(bounds):
            raise NotApplicable(f"{self._said(call)} checks no bounds: the last group of rows may reach beyond them")
