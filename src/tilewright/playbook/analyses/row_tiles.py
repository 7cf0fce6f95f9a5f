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

    def _row_shape(self, node: Expression) -> Shape:
        """Returns the shape of a value that is combined with rows.

        Raises `NotApplicable` unless all its elements lie along its last axis.
        """
        shape = self.shapes.of(node)
        if shape is None:
            raise NotApplicable(f"the shape of {self._code(node)} is not known")
        if any(size != "1" for size in shape[:-1]):
            raise NotApplicable(f"{self._code(node)} has more than one row already")
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
        if tile_shapes.new_axes(old) is None:
            raise NotApplicable(f"{self._code(old)} takes a part of a row")
        return self._same_row(old, new.value, self._row_shape(old.value), self._row_shape(old), may_reshape=False)

    def leave_Call(self, old: cst.Call, new: cst.Call) -> Expression:
        name, source = tile_call(self.source, old), self.source
        self.written += name in WRITES
        if any(old is filled for filled in self._filled):
            return with_argument(new, "shape", tuple_text(self._new(self._row_shape(old))), 0)
        if not any(self._varies(cst.Name(each)) for each in names_read(old)):
            if name in WRITES or name.startswith("atomic"):
                raise NotApplicable(f"{self._code(old)} does not depend on the row")
            return new
        tile, new_tile = (each.func.value if isinstance(each.func, cst.Attribute) else each for each in (old, new))
        if (shaped := tile_shapes.reshaped(source, old)) is not None:
            new_tile = new.args[0].value if name == "reshape" else new_tile
            sizes = [self.shapes.size(size) for size in shaped[1]]
            return self._same_row(old, new_tile, self._row_shape(shaped[0]), sizes)
        if isinstance(old.func, cst.Attribute) and old.func.attr.value == "item":  # one statistic → one a row
            return self._same_row(old, new_tile, self._row_shape(tile), ())
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
        inside = tile_shapes.same_elements(source, old)
        if name not in (*tile_shapes.ELEMENTWISE, *SCALAR_CALLS) and inside is None:
            raise NotApplicable(f"the result of {self._code(old.func)} for a row is not known")
        for operand in [*(arg.value for arg in old.args), *([] if inside is None else [inside])]:
            self._row_shape(operand)
        return new

    def _same_row(
        self, old: Expression, tile: Expression, before: Shape, after: Sequence[str], may_reshape: bool = True
    ) -> Expression:
        """Returns the row ``tile`` in the new form of ``old``, which only adds or removes axes of one element."""
        same = len(self._new(after)) == len(self._new(before))
        long = [size for size in after[:-1] if size != "1"]
        if long or (*after[-1:], "1")[0] != (*before[-1:], "1")[0] or not (same or may_reshape):
            raise NotApplicable(f"{self._code(old)} turns a row into another form")
        return tile if same else self._reshaped(tile, self._new(after))

    def _reshaped(self, tile: Expression, shape: Sequence[str]) -> Expression:
        return cst.parse_expression(f"{text_of(self.source, tile)}.reshape({tuple_text(shape)})")

    def _reduction(self, old: cst.Call, new: cst.Call) -> cst.Call:
        shape = self._row_shape(old.args[0].value)
        axes = tile_shapes.reduced_axes(old, len(shape))
        if not shape or axes is None or len(shape) - 1 not in axes or len(self._new(shape)) != 2:
            raise NotApplicable(f"{self._code(old)} does not reduce along a row")
        return with_argument(with_argument(new, "axis", "1", 1), "keepdims", "True")

    def _load(self, old: cst.Call, new: cst.Call, rank: int, place: int) -> Expression:
        """Rewrites a load: a group of rows instead of one row, or a column of elements instead of one element."""
        sizes = [*(self.shapes.sizes(argument(old, "shape", 2)) or ())]
        if len(sizes) != rank:
            raise NotApplicable(f"the shape of {self._code(old)} is not written as a tuple")
        if any(size != "1" for size in (*sizes[:-1], sizes[place])):
            raise NotApplicable(f"{self._code(old)} loads more than one row already")
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
        if column and any(size != "1" for size in shape):
            raise NotApplicable(f"{self._code(old)} stores more than one element of a row")
        target = (*ones, self.count) if column else self._new((*ones, *(shape[-1:] or ("1",))))
        if not column and len(target) == len(self._new(shape)):
            return new
        return with_argument(new, "tile", self.source.code(self._reshaped(changed, target)), 2)

    def _indexed(self, old: cst.Call, new: cst.Call) -> Expression:
        """Checks a gather or scatter. The call need not change, because the names in its indices now hold tiles."""
        self._refuse_unchecked(old)
        if not any(self._varies(index) for index in tile_shapes.indices_of(old)):
            raise NotApplicable(f"{self._code(old)} does not depend on the row")
        for arg in old.args[1:]:
            for operand in elements(arg.value) or [arg.value]:
                self._row_shape(operand)
        return new

    def _index(self, call: cst.Call) -> tuple[list[Expression], int]:
        """Returns the indices of a tile load or store, and the position of the row's number among them."""
        self._refuse_unchecked(call)
        if argument(call, "order") is not None:
            raise NotApplicable(f"{self._code(call)} changes the order of the axes")
        index = elements(argument(call, "index", 1))
        if index is None:
            raise NotApplicable(f"the index of {self._code(call)} is not written as a tuple")
        places = [place for place, number in enumerate(index) if self._varies(number)]
        if len(places) != 1 or dotted(index[places[0]]) != self.row or places[0] < len(index) - 2:
            raise NotApplicable(f"{self._code(call)} does not use {self.row} itself as one of the last two indices")
        return index, places[0]

    def _refuse_unchecked(self, call: cst.Call) -> None:
        bounds = argument(call, "check_bounds")
        if bounds is not None and not tile_shapes.is_true(bounds):
            raise NotApplicable(f"{self._code(call)} checks no bounds: the last group may exceed the array's rows")
