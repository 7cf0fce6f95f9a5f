"""Rewrites tile code for one row so that it computes several rows: each value of the row gets an axis of rows.

A value that depends on the row's number has the shape ``(1, N)`` or ``(N,)``. A statistic of the row has the shape
``()``. The new shape is ``(ROWS, N)``, or ``(ROWS, 1)`` for a statistic. Elementwise operations then broadcast as
before, and reductions run along the last axis. Any other code is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.playbook.analyses import tile_shapes
from tilewright.playbook.analyses.dataflow import names_read
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Function, Source, argument, dotted, elements, with_argument

WRITES = ("store", "scatter")
SCALAR_CALLS = ("bid", "num_blocks", "cdiv")
UNKNOWN_CODE = (cst.Lambda, cst.FunctionDef, cst.ListComp, cst.GeneratorExp, cst.While, cst.NamedExpr)


class RowTiles(cst.CSTTransformer):
    """Rewrites the body of ``function``: call ``function.body.visit`` with this transformer.

    ``row`` is the variable with the row's number, which becomes the number of a group of rows. ``rows`` is the name of
    the tile of row numbers in the group. ``count`` is the name of the constant that holds the group's size. Afterwards
    ``written`` counts the stores, and ``width`` is the length of the row tile that was loaded last, as text.
    """

    def __init__(self, source: Source, function: Function, row: str, rows: str, count: str) -> None:
        super().__init__()
        self.source, self.row, self.rows, self.count = source, row, rows, count
        self.shapes = tile_shapes.Shapes(source, function, {row})
        self.function = function
        self.written = 0
        self.width: str | None = None
        self._filled = self._initial_values()
        loops, targets = source.every(cst.For, function), source.every(cst.AssignTarget, function)
        bound = [*targets, *(loop.target for loop in loops)]
        # Name nodes that read no variable: targets of assignments, attributes and keywords.
        self._labels: set[cst.CSTNode | None] = {name for target in bound for name in source.every(cst.Name, target)}
        self._labels |= {attribute.attr for attribute in source.every(cst.Attribute, function)}
        self._labels |= {arg.keyword for arg in source.every(cst.Arg, function)}
        for kind in UNKNOWN_CODE:
            if source.every(kind, function.body):
                raise NotApplicable(f"{function.name.value} contains a {kind.__name__}, which is not understood")

    def _varies(self, node: Expression) -> bool:
        return self.shapes.tile(node).varies

    def _row_shape(self, node: Expression) -> tile_shapes.Shape:
        """Returns the shape of a value that is combined with rows.

        Raises `NotApplicable` unless all its elements lie along its last axis.
        """
        shape = self.shapes.of(node)
        if shape is None:
            raise NotApplicable(f"the shape of {self._code(node)} is not known")
        if any(size != "1" for size in shape[:-1]):
            raise NotApplicable(f"{self._code(node)} has more than one row already")
        return shape

    def _new(self, shape: Sequence[str]) -> tuple[str, ...]:
        """Returns the new shape of a value whose old shape was ``shape``."""
        return ("1",) * (len(shape) - 2) + (self.count, shape[-1] if shape else "1")

    def _code(self, node: cst.CSTNode) -> str:
        return " ".join(self.source.code(node).split())

    def _initial_values(self) -> list[Expression]:
        """Returns the initial values of accumulators. These depend on no row, but need the axis of rows, too."""
        found: list[Expression] = []
        for name, value, added in self.shapes.assigned:
            if not self.shapes.names[name].varies or name == self.row:
                continue
            if value is None:
                raise NotApplicable(f"{name} is one of several results of a call")
            if added:
                self._row_shape(cst.Name(name))
                self._row_shape(value)
            elif self._varies(value):
                continue
            elif isinstance(value, cst.Call) and tile_shapes.tile_call(self.source, value) in tile_shapes.FILLED:
                found.append(value)
            else:
                raise NotApplicable(f"{name} starts as {self._code(value)}, which cannot get an axis of rows")
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
            raise NotApplicable(f"{what} depends on the row: {self._code(decides)}")
        return True

    def leave_Name(self, old: cst.Name, new: cst.Name) -> Expression:
        rows = old.value == self.row and old not in self._labels
        return new.with_changes(value=self.rows) if rows else new

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        if not self._varies(node):
            return
        if isinstance(node.operator, cst.MatrixMultiply):
            raise NotApplicable(f"{self._code(node)} is a product of matrices")
        self._row_shape(node.left)
        self._row_shape(node.right)

    def visit_Comparison(self, node: cst.Comparison) -> None:
        if self._varies(node):
            for side in (node.left, *(each.comparator for each in node.comparisons)):
                self._row_shape(side)

    def leave_Subscript(self, old: cst.Subscript, new: cst.Subscript) -> Expression:
        if not self._varies(old):
            return new
        if tile_shapes.new_axes(old) is None:
            raise NotApplicable(f"{self._code(old)} takes a part of a row")
        before, after = self._row_shape(old.value), self._row_shape(old)
        if len(self._new(after)) != len(self._new(before)) or after[-1:] != (before[-1:] or ("1",)):
            raise NotApplicable(f"{self._code(old)} turns a row into another form")
        return new.value

    def leave_Call(self, old: cst.Call, new: cst.Call) -> Expression:
        name = tile_shapes.tile_call(self.source, old)
        if any(old is filled for filled in self._filled):
            return self._with_shape(old, new, 0)
        if name in WRITES:
            self.written += 1
        if not self._touches(old):
            if name in WRITES or name.startswith("atomic"):
                raise NotApplicable(f"{self._code(old)} does not depend on the row")
            return new
        if (shaped := tile_shapes.reshaped(self.source, old)) is not None:
            return self._reshape(old, new, shaped[0], [self.shapes.size(size) for size in shaped[1]])
        if isinstance(old.func, cst.Attribute) and old.func.attr.value == "item":
            return self._item(old, new)
        match name:
            case "load":
                return self._load(old, new)
            case "store":
                return self._store(old, new)
            case "gather" | "scatter":
                return self._indexed(old, new)
            case "broadcast_to":
                self._row_shape(old.args[0].value)
                return self._with_shape(old, new, 1)
        if name in tile_shapes.REDUCTIONS:
            return self._reduction(old, new)
        inside = tile_shapes.same_elements(self.source, old)
        if name not in (*tile_shapes.ELEMENTWISE, *SCALAR_CALLS) and inside is None:
            raise NotApplicable(f"the result of {self._code(old.func)} for a row is not known")
        for operand in [*(arg.value for arg in old.args), *([inside] if inside is not None else [])]:
            self._row_shape(operand)
        return new

    def _touches(self, call: cst.Call) -> bool:
        """Returns whether an argument of the call, or the tile whose method is called, depends on the row."""
        parts = [arg.value for arg in call.args]
        if isinstance(call.func, cst.Attribute):
            parts.append(call.func.value)
        names = {name for part in parts for name in names_read(part)}
        known = self.shapes.names
        return self.row in names or any(name in known and known[name].varies for name in names)

    def _with_shape(self, old: cst.Call, new: cst.Call, place: int) -> cst.Call:
        return with_argument(new, "shape", tile_shapes.tuple_text(self._new(self._row_shape(old))), place)

    def _reduction(self, old: cst.Call, new: cst.Call) -> cst.Call:
        shape = self._row_shape(old.args[0].value)
        axes = tile_shapes.reduced_axes(old, len(shape))
        if not shape or axes is None or len(shape) - 1 not in axes or len(self._new(shape)) != 2:
            raise NotApplicable(f"{self._code(old)} does not reduce along a row")
        return with_argument(with_argument(new, "axis", "1", 1), "keepdims", "True")

    def _reshape(self, old: cst.Call, new: cst.Call, inside: Expression, target: list[str]) -> Expression:
        """Rewrites the reshape of a row. Removes the reshape if operand and result now have the same shape."""
        before = self._row_shape(inside)
        if any(size != "1" for size in target[:-1]) or (target[-1:] or ["1"]) != list(before[-1:] or ("1",)):
            raise NotApplicable(f"{self._code(old)} turns a row into another form")
        method = tile_shapes.tile_call(self.source, old) != "reshape"
        if len(self._new(target)) != len(self._new(before)):
            return with_argument(new, "shape", tile_shapes.tuple_text(self._new(target)), 0 if method else 1)
        if not method:
            return new.args[0].value
        assert isinstance(new.func, cst.Attribute)
        return new.func.value

    def _item(self, old: cst.Call, new: cst.Call) -> Expression:
        """Removes ``.item()``, because the statistic of one row becomes a column of statistics."""
        assert isinstance(old.func, cst.Attribute) and isinstance(new.func, cst.Attribute)
        if any(size != "1" for size in self._row_shape(old.func.value)):
            raise NotApplicable(f"{self._code(old)} takes one element of several")
        return new.func.value

    def _load(self, old: cst.Call, new: cst.Call) -> Expression:
        """Rewrites a load: a group of rows instead of one row, or a column of elements instead of one element."""
        index, place = self._index(old)
        shape = elements(argument(old, "shape", 2))
        if shape is None or len(shape) != len(index):
            raise NotApplicable(f"the shape of {self._code(old)} is not written as a tuple")
        sizes = [self.shapes.size(extent) for extent in shape]
        if any(size != "1" for size in sizes[:-1]) or sizes[place] != "1":
            raise NotApplicable(f"{self._code(old)} loads more than one row already")
        sizes[place] = self.count
        new = self._with_index(old, with_argument(new, "shape", tile_shapes.tuple_text(sizes), 2))
        if place == len(index) - 1:
            column = cst.parse_expression(f"({self.count}, 1)")
            return cst.Call(cst.Attribute(new, cst.Name("reshape")), [cst.Arg(column)])
        self.width = sizes[-1]
        return new

    def _store(self, old: cst.Call, new: cst.Call) -> Expression:
        """Rewrites a store: a group of rows instead of one row, or a column of elements instead of one element."""
        index, place = self._index(old)
        value, changed = argument(old, "tile", 2), argument(new, "tile", 2)
        if value is None or changed is None or not self._varies(value):
            raise NotApplicable(f"the value that {self._code(old)} stores does not depend on the row")
        shape = self._row_shape(value)
        ones = ("1",) * (len(index) - 1)
        if place < len(index) - 1:
            target = self._new((*ones, shape[-1] if shape else "1"))
        elif all(size == "1" for size in shape):
            target = (*ones, self.count)
        else:
            raise NotApplicable(f"{self._code(old)} stores more than one element of a row")
        if place == len(index) - 1 or len(target) != len(self._new(shape)):
            reshape = f".reshape({tile_shapes.tuple_text(target)})"
            new = with_argument(new, "tile", text_of(self.source, changed) + reshape, 2)
        return self._with_index(old, new)

    def _indexed(self, old: cst.Call, new: cst.Call) -> Expression:
        """Checks a gather or scatter. The call need not change, because the names in its indices now hold tiles."""
        self._checked(old)
        if not any(self._varies(index) for index in tile_shapes.indices_of(old)):
            raise NotApplicable(f"{self._code(old)} does not depend on the row")
        for arg in old.args[1:]:
            for operand in elements(arg.value) or [arg.value]:
                self._row_shape(operand)
        return new

    def _index(self, call: cst.Call) -> tuple[list[Expression], int]:
        """Returns the indices of a tile load or store, and the position of the row's number among them."""
        self._checked(call)
        if argument(call, "order") is not None:
            raise NotApplicable(f"{self._code(call)} changes the order of the axes")
        index = elements(argument(call, "index", 1))
        if index is None:
            raise NotApplicable(f"the index of {self._code(call)} is not written as a tuple")
        places = [place for place, number in enumerate(index) if self._varies(number)]
        if len(places) != 1 or dotted(index[places[0]]) != self.row or places[0] < len(index) - 2:
            raise NotApplicable(f"{self._code(call)} does not use {self.row} itself as one of the last two indices")
        return index, places[0]

    def _with_index(self, old: cst.Call, new: cst.Call) -> cst.Call:
        """Restores the old index of an access, because the row's name now means the number of a group of rows."""
        index = argument(old, "index", 1)
        return new if index is None else with_argument(new, "index", self.source.code(index), 1)

    def _checked(self, call: cst.Call) -> None:
        bounds = argument(call, "check_bounds")
        if bounds is not None and not tile_shapes.is_true(bounds):
            raise NotApplicable(f"{self._code(call)} checks no bounds: the last group may exceed the array's rows")
