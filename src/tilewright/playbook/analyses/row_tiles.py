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
from tilewright.playbook.analyses.renaming import NewNames
from tilewright.playbook.analyses.tile_shapes import Shape, tile_call, tuple_text
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Function, Source, argument, dotted, elements, with_argument

WRITES = ("store", "scatter")
SCALAR_CALLS = ("bid", "num_blocks", "cdiv")


class RowTiles(NewNames):
    """Rewrites the body of ``function``: call ``function.body.visit`` with this transformer.

    ``row`` is the variable with the row's number, which becomes the number of a group of rows. ``rows`` is the name of
    the tile of row numbers in the group. ``count`` is the name of the constant that holds the group's size. Afterwards
    ``written`` counts the stores, and ``width`` is the length of the row tile that was loaded last, as text.
    """

    def __init__(self, source: Source, function: Function, row: str, rows: str, count: str) -> None:
        super().__init__({row: rows})
        self.source, self.row, self.count = source, row, count
        self.shapes = tile_shapes.Shapes(source, function, {row})
        self.written = 0
        self.width = ""
        self._filled = self._initial_values()

    def _varies(self, node: Expression) -> bool:
        return self.shapes.tile(node).varies

    def _code(self, node: cst.CSTNode) -> str:
        return " ".join(self.source.code(node).split())

    def _require(self, fits: bool, node: cst.CSTNode, reason: str) -> None:
        if not fits:
            raise NotApplicable(f"{self._code(node)} {reason}")

    def _row_shape(self, node: Expression) -> Shape:
        """Returns the shape of a value that is combined with rows.

        Raises `NotApplicable` unless all its elements lie along its last axis.
        """
        shape = self.shapes.of(node)
        if shape is None:
            raise NotApplicable(f"the shape of {self._code(node)} is not known")
        self._require(_is_one_row(shape), node, "has more than one row already")
        return shape

    def _new(self, shape: Sequence[str]) -> Shape:
        """Returns the new shape of a value whose old shape was ``shape``."""
        return ("1",) * (len(shape) - 2) + (self.count, shape[-1] if shape else "1")

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
            elif not self._varies(value):
                if not isinstance(value, cst.Call) or tile_call(self.source, value) not in tile_shapes.FILLED:
                    raise NotApplicable(f"{name} starts as {self._code(value)}, which cannot get an axis of rows")
                found.append(value)
        return found

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Refuses what decides by the row's number, and operands of which the new shape is not known."""
        match node:
            case cst.If(test=decides) | cst.IfExp(test=decides):
                what = "a branch"
            case cst.For(iter=decides):
                what = "a loop's length"
            case cst.BooleanOperation() as decides:
                what = "a truth value"
            case cst.BinaryOperation(operator=cst.MatrixMultiply()) as decides:
                what = "a product of matrices"
            case cst.BinaryOperation() | cst.Comparison() if self._varies(node):
                for side in tile_shapes.sides_of(node):
                    self._row_shape(side)
                return True
            case cst.Lambda() | cst.FunctionDef() | cst.ListComp() | cst.GeneratorExp() | cst.While() | cst.NamedExpr():
                raise NotApplicable(f"a {type(node).__name__} is not understood")
            case _:
                return True
        if self._varies(decides):
            raise NotApplicable(f"{what} depends on the row: {self._code(decides)}")
        return True

    def leave_AssignTarget(self, old: cst.AssignTarget, new: cst.AssignTarget) -> cst.AssignTarget:
        return new.with_changes(target=old.target)

    def leave_For(self, old: cst.For, new: cst.For) -> cst.For:
        return new.with_changes(target=old.target)

    def leave_Subscript(self, old: cst.Subscript, new: cst.Subscript) -> Expression:
        if not self._varies(old):
            return new
        self._require(tile_shapes.new_axes(old) is not None, old, "takes a part of a row")
        return self._same_row(old, new.value, self._row_shape(old.value), self._row_shape(old))

    def leave_Call(self, old: cst.Call, new: cst.Call) -> Expression:
        name, source = tile_call(self.source, old), self.source
        self.written += name in WRITES
        if any(old is filled for filled in self._filled):
            return with_argument(new, "shape", tuple_text(self._new(self._row_shape(old))), 0)
        if not any(self._varies(cst.Name(each)) for each in names_read(old)):
            self._require(name not in WRITES and not name.startswith("atomic"), old, "does not depend on the row")
            return new
        tile, new_tile = (each.func.value if isinstance(each.func, cst.Attribute) else each for each in (old, new))
        if (shaped := tile_shapes.reshaped(source, old)) is not None:
            new_tile = new.args[0].value if name == "reshape" else new_tile
            sizes = [self.shapes.size(size) for size in shaped[1]]
            return self._same_row(old, new_tile, self._row_shape(shaped[0]), sizes)
        if isinstance(old.func, cst.Attribute) and old.func.attr.value == "item":  # one statistic → one a row
            return self._same_row(old, new_tile, self._row_shape(tile), ())
        checks = tile_shapes.is_true(argument(old, "check_bounds") or cst.Name("True")) is True
        self._require(checks, old, "checks no bounds: the last group may exceed the array's rows")
        match name:
            case "load" | "store":
                index, place = self._index(old)
                # In the index, the row's name now means the number of a group of rows.
                new = with_argument(new, "index", source.code(argument(old, "index", 1) or old), 1)
                return (self._load if name == "load" else self._store)(old, new, len(index), place)
            case "gather" | "scatter":
                return self._indexed(old, new)
            case "broadcast_to":
                self._row_shape(old.args[0].value)
                return with_argument(new, "shape", tuple_text(self._new(self._row_shape(old))), 1)
            case "sum" | "max" | "min" | "prod":
                return self._reduction(old, new)
            case "full":
                return self._filled_with(old, new)
        inside = tile_shapes.same_elements(source, old)
        if name not in (*tile_shapes.ELEMENTWISE, *SCALAR_CALLS) and inside is None:
            raise NotApplicable(f"the result of {self._code(old.func)} for a row is not known")
        for operand in [*(arg.value for arg in old.args), *([] if inside is None else [inside])]:
            self._row_shape(operand)
        return new

    def _same_row(self, old: Expression, tile: Expression, before: Shape, after: Sequence[str]) -> Expression:
        """Returns the row ``tile`` in the new form of ``old``, which only adds or removes axes of one element."""
        shape, present = self._new(after), self._new(before)
        self._require(_is_one_row(after) and shape[-1] == present[-1], old, "turns a row into another form")
        return tile if len(shape) == len(present) else self._reshaped(tile, shape)

    def _reshaped(self, tile: Expression, shape: Sequence[str]) -> Expression:
        return cst.parse_expression(f"{text_of(self.source, tile)}.reshape({tuple_text(shape)})")

    def _filled_with(self, old: cst.Call, new: cst.Call) -> Expression:
        """Rewrites a tile whose elements all are a statistic of the row, or its number."""
        value, dtype = argument(new, "fill_value", 1), argument(new, "dtype", 2)
        given = argument(old, "fill_value", 1)
        if value is None or dtype is None or given is None or self.shapes.of(given) != ():
            raise NotApplicable(f"{self._code(old)} is not filled with one value of a named dtype")
        broadcast, shape = self.source.spelled("broadcast_to"), tuple_text(self._new(self._row_shape(old)))
        filled = f"{text_of(self.source, value)}.astype({self.source.code(dtype)})"
        return cst.parse_expression(f"{broadcast}({filled}, {shape})")

    def _reduction(self, old: cst.Call, new: cst.Call) -> cst.Call:
        shape = self._row_shape(old.args[0].value)
        axes = tile_shapes.reduced_axes(old, len(shape))
        along = len(shape) in (1, 2) and axes is not None and len(shape) - 1 in axes
        self._require(along, old, "does not reduce along a row")
        return with_argument(with_argument(new, "axis", "1", 1), "keepdims", "True")

    def _load(self, old: cst.Call, new: cst.Call, rank: int, place: int) -> Expression:
        """Rewrites a load: a group of rows instead of one row, or a column of elements instead of one element."""
        sizes = [*(self.shapes.sizes(argument(old, "shape", 2)) or ())]
        self._require(len(sizes) == rank, old, "has a shape that is not written as a tuple")
        self._require(_is_one_row(sizes) and sizes[place] == "1", old, "loads more than one row already")
        sizes[place] = self.count
        new = with_argument(new, "shape", tuple_text(sizes), 2)
        if place == rank - 1:
            return self._reshaped(new, (self.count, "1"))
        self.width = sizes[-1]
        return new

    def _store(self, old: cst.Call, new: cst.Call, rank: int, place: int) -> Expression:
        """Rewrites a store: a group of rows instead of one row, or a column of elements instead of one element."""
        value, changed = argument(old, "tile", 2), argument(new, "tile", 2)
        if value is None or changed is None or not self._varies(value):
            raise NotApplicable(f"the value that {self._code(old)} stores does not depend on the row")
        shape, ones, column = self._row_shape(value), ("1",) * (rank - 1), place == rank - 1
        self._require(not column or _is_one_row((*shape, "1")), old, "stores more than one element of a row")
        target = (*ones, self.count) if column else self._new((*ones, *(shape[-1:] or ("1",))))
        if not column and len(target) == len(self._new(shape)):
            return new
        return with_argument(new, "tile", self.source.code(self._reshaped(changed, target)), 2)

    def _indexed(self, old: cst.Call, new: cst.Call) -> Expression:
        """Checks a gather or scatter. The call need not change, because the names in its indices now hold tiles."""
        self._require(any(map(self._varies, tile_shapes.indices_of(old))), old, "does not depend on the row")
        for arg in old.args[1:]:
            for operand in elements(arg.value) or [arg.value]:
                self._row_shape(operand)
        return new

    def _index(self, call: cst.Call) -> tuple[list[Expression], int]:
        """Returns the indices of a tile load or store, and the position of the row's number among them."""
        self._require(argument(call, "order") is None, call, "changes the order of the axes")
        index = elements(argument(call, "index", 1))
        if index is None:
            raise NotApplicable(f"the index of {self._code(call)} is not written as a tuple")
        places = [place for place, number in enumerate(index) if self._varies(number)]
        itself = len(places) == 1 and dotted(index[places[0]]) == self.row and places[0] >= len(index) - 2
        self._require(itself, call, f"does not use {self.row} itself as one of the last two indices")
        return index, places[0]


def _is_one_row(shape: Sequence[str]) -> bool:
    """Returns whether all elements of a tile lie along its last axis."""
    return all(size == "1" for size in shape[:-1])
