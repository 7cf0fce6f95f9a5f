"""Finds the shapes of the tiles in a kernel, as they are written: ``("1", "TILE_N")``, and ``()`` for a scalar.

A name has the shape on which all its assignments agree. If they disagree, or if an operation is not known, the shape is
None, and entries do not change the code. The analysis also marks the tiles that depend on given names (`Tile.varies`).
`rows_per_tile` uses this mark to find the values that depend on the number of a row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType
from typing import TypeAlias

import libcst as cst

from tilewright.playbook.analyses.dataflow import pairs_of
from tilewright.source.syntax import Expression, Function, Source, argument, dotted, elements, number

Shape: TypeAlias = tuple[str, ...]

FIT_IN_REGISTERS = 1 << 15
"""The most float32 elements of a tile that fit into the registers of a block."""

ELEMENTWISE = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "maximum", "minimum", "negative", "abs", "exp", "exp2",
    "log", "log2", "log1p", "expm1", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh", "floor", "ceil",
    "where", "fma", "isnan", "atan2", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_lshift", "bitwise_rshift",
)  # fmt: skip
REDUCTIONS = ("sum", "max", "min", "prod")
SCANS = ("cumsum", "cumprod")
FILLED = ("zeros", "ones", "full")
SHAPED = {**dict.fromkeys(FILLED, 0), "broadcast_to": 1, "load": 2}
"""Maps a function to the position of the argument that is the shape of the function's result."""
SCALARS = ("bid", "num_blocks", "cdiv", "min", "max", "int", "float", "bool", "abs", "range", "len")


@dataclass(frozen=True)
class Tile:
    """A tile. ``shape``: its extents as they are written; None if they are not known. ``varies``: whether the tile
    depends on a name in `Shapes.varying`."""

    shape: Shape | None
    varies: bool = False


class Shapes:
    """The shapes in one function. The names in ``varying`` are scalars; tiles that depend on them are marked.

    ``names`` holds the tile of each assigned name. ``assigned`` lists the assignments: name, value (None if several
    names unpack one value), and whether the statement changes the old value, as ``+=`` does.
    """

    unpacked = Tile(None)
    """The tile of a name that is unpacked from a value."""

    def __init__(
        self,
        source: Source,
        function: Function,
        varying: Collection[str] = (),
        given: Mapping[str, Shape | None] = MappingProxyType({}),
    ) -> None:
        """given: the shapes of parameters; others are scalars."""
        self.source, self.function, self.varying = source, function, frozenset(varying)
        self.names = {name: Tile(shape) for name, shape in given.items()}
        self.assigned = _assignments(source, function)
        self._assigned = {*given, *(name for name, _, _ in self.assigned)}
        for _ in range(len(self.assigned) + 1):  # until nothing changes: a loop may read a name before its assignment
            before = dict(self.names)
            for name, value, added in self.assigned:
                tile = self.unpacked if value is None else self._tile(value)
                if added and tile is not None:
                    tile = _together([self.names.get(name), tile])
                if tile is not None:
                    self.names[name] = _joined(self.names.get(name), tile)
            if self.names == before:
                return

    def of(self, node: Expression) -> Shape | None:
        """Returns the shape of an expression of the function; None if the shape is not known."""
        return self.tile(node).shape

    def accessed(self, call: cst.Call) -> Shape | None:
        """Returns the shape of the tile that is loaded or stored; None if the shape is not known."""
        stored = argument(call, "tile", 2) if tile_call(self.source, call) == "store" else None
        return self.of(call if stored is None else stored)

    def tile(self, node: Expression) -> Tile:
        return self._tile(node) or Tile(None)

    def _tile(self, node: Expression) -> Tile | None:
        """Returns the tile of an expression. Returns None if the expression depends on a name without a tile yet."""
        match node:
            case cst.Name(value=name) if name in self._assigned and name not in self.varying:
                return self.names.get(name)
            case cst.Name(value=name):  # a parameter, a loop's variable, a constant of the module
                return Tile((), name in self.varying)
            case cst.Integer() | cst.Float() | cst.SimpleString():
                return Tile(())
            case cst.BinaryOperation() | cst.BooleanOperation() | cst.Comparison():
                return _together([self._tile(side) for side in sides_of(node)])
            case cst.UnaryOperation():
                return self._tile(node.expression)
            case cst.IfExp():
                both = _joined(self._tile(node.body), self._tile(node.orelse) or Tile(None))
                return Tile(both.shape, both.varies or self._varies(node.test))
            case cst.Subscript():
                return self._subscript(node)
            case cst.Call():
                return self._call(node)
            case cst.Attribute():
                return Tile(()) if dotted(node) else Tile(None, self._varies(node))
        return Tile(None, self._varies(node))

    def _varies(self, node: cst.CSTNode) -> bool:
        names = {name.value for name in self.source.every(cst.Name, node)}
        known = (self.names.get(name, Tile(None)) for name in names)
        return bool(names & self.varying) or any(tile.varies for tile in known)

    def _subscript(self, node: cst.Subscript) -> Tile | None:
        if isinstance(node.value, cst.Attribute) and node.value.attr.value in ("shape", "strides"):
            return Tile(())
        tile, added = self._tile(node.value), new_axes(node)
        if tile is None:
            return None
        if added is None or tile.shape is None or added.count(False) != len(tile.shape):
            return Tile(None, tile.varies or self._varies(node))
        kept = iter(tile.shape)
        return Tile(tuple("1" if new else next(kept) for new in added), tile.varies)

    def _call(self, node: cst.Call) -> Tile | None:
        name, varies = tile_call(self.source, node), self._varies(node)
        if (inside := same_elements(self.source, node)) is not None:
            return self._tile(inside)
        if (shaped := reshaped(self.source, node)) is not None:
            return Tile(tuple(map(self.size, shaped[1])), varies)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "item":
            return Tile((), varies)
        if name in SHAPED:
            return Tile(self.sizes(argument(node, "shape", SHAPED[name])), varies)
        if name == "arange":
            return Tile((self.size(node.args[0].value),), varies)
        if name == "gather":
            tiles = [self._tile(index) for index in indices_of(node)]
            return None if None in tiles else Tile(_together(tiles).shape, varies)  # type: ignore[union-attr]
        if name in SCANS and (scanned := argument(node, "x", 0)) is not None:
            return self._tile(scanned)
        if name in REDUCTIONS:
            return self._reduction(node, varies)
        if name == "mma" and (total := argument(node, "acc", 2)) is not None:
            added = self._tile(total)
            return added and Tile(added.shape, varies or added.varies)
        if name in ELEMENTWISE:
            return _together([self._tile(arg.value) for arg in node.args if arg.keyword is None])
        if name in SCALARS or (dotted(node.func) in SCALARS and not name):
            tiles = [self._tile(arg.value) for arg in node.args]
            return _together(tiles) if tiles else Tile(())
        return Tile(None, varies)

    def _reduction(self, node: cst.Call, varies: bool) -> Tile | None:
        tile = self._tile(node.args[0].value)
        if tile is None or tile.shape is None:
            return tile
        axes, keep = reduced_axes(node, len(tile.shape)), is_true(argument(node, "keepdims"))
        if axes is None or keep is None:
            return Tile(None, varies)
        sizes = enumerate(tile.shape)
        return Tile(tuple("1" if axis in axes else size for axis, size in sizes if keep or axis not in axes), varies)

    def sizes(self, node: Expression | None) -> Shape | None:
        """Returns the shape written as a tuple, as the name of a tuple, or as one size; None for anything else."""
        if isinstance(node, cst.Name):
            values = [value for name, value, _ in self.assigned if name == node.value]
            if len(values) == 1 and values[0] is not None and elements(values[0]) is not None:
                node = values[0]
        listed = elements(node)
        if listed is None and isinstance(node, (cst.Name, cst.Integer)):
            listed = [node]
        return None if listed is None else tuple(map(self.size, listed))

    def size(self, node: Expression) -> str:
        """Formats one extent of a shape. Equal numbers give equal strings: ``0x10`` is written ``16``."""
        value = number(node)
        return str(value) if value is not None else self.source.code(node)


class TurnedShapes(Shapes):
    """As `Shapes`; also follows tiles whose axes are exchanged, and marks all that is unpacked."""

    unpacked = Tile(None, varies=True)

    def _call(self, node: cst.Call) -> Tile | None:
        exchanged = turned(self.source, node)
        tile = self._tile(exchanged[0]) if exchanged is not None else None
        if exchanged is None or tile is None:
            return super()._call(node)
        axes = exchanged[1] or (1, 0)
        known = tile.shape is not None and sorted(axes) == list(range(len(tile.shape)))
        return Tile(tuple(tile.shape[axis] for axis in axes) if known and tile.shape else None, tile.varies)


def sides_of(node: cst.BinaryOperation | cst.BooleanOperation | cst.Comparison) -> list[Expression]:
    """Returns the operands of an operation, from left to right."""
    if isinstance(node, cst.Comparison):
        return [node.left, *(each.comparator for each in node.comparisons)]
    return [node.left, node.right]


def indices_of(call: cst.Call) -> list[Expression]:
    """Returns the indices of an access, one for each axis; a single expression if they are not written as a tuple."""
    given = argument(call, "indices", 1) or argument(call, "index", 1)
    return elements(given) or ([given] if given is not None else [])


def new_axes(node: cst.Subscript) -> list[bool] | None:
    """Returns, for a subscript such as ``[:, None]``, whether each axis is new; None for other subscripts."""
    added = []
    for part in node.slice:
        match part.slice:
            case cst.Slice(lower=None, upper=None, step=None):
                added.append(False)
            case cst.Index(value=cst.Name(value="None")):
                added.append(True)
            case _:
                return None
    return added


def with_new_axes(source: Source, node: Expression) -> Expression:
    """Returns the outermost subscript around a tile that only adds axes to it, such as ``x[:, None]`` around ``x``."""
    above = source.parent(node)
    if isinstance(above, cst.Subscript) and above.value is node and new_axes(above) is not None:
        return with_new_axes(source, above)
    return node


def reshaped(source: Source, call: cst.Call) -> tuple[Expression, list[Expression]] | None:
    """Returns tile and shape of ``x.reshape(shape)`` and ``ct.reshape(x, shape)``; None for any other call."""
    if tile_call(source, call) == "reshape":
        inside, shape = argument(call, "x", 0), argument(call, "shape", 1)
    elif isinstance(call.func, cst.Attribute) and call.func.attr.value == "reshape":
        inside, shape = call.func.value, argument(call, "shape", 0)
    else:
        return None
    listed = elements(shape)
    return None if inside is None or listed is None else (inside, listed)


def same_elements(source: Source, call: cst.Call) -> Expression | None:
    """Returns the tile ``x`` of ``x.astype(dtype)`` and ``ct.astype(x, dtype)``; None for any other call."""
    if tile_call(source, call) == "astype":
        return argument(call, "x", 0)
    match call.func:
        case cst.Attribute(value=inside, attr=cst.Name(value="astype")):
            return inside
    return None


def turned(source: Source, call: cst.Call) -> tuple[Expression, tuple[int, ...]] | None:
    """Returns tile and order of axes of ``ct.permute(x, (1, 0))``, ``ct.transpose(x)`` and the methods; None for any
    other call. The order is empty for the transpose of a matrix."""
    name, place = tile_call(source, call), 1
    inside = argument(call, "x", 0)
    if not name and isinstance(call.func, cst.Attribute):
        name, place, inside = call.func.attr.value, 0, call.func.value
    if inside is None or name not in ("permute", "transpose"):
        return None
    if name == "transpose":
        return None if len(call.args) > place else (inside, ())
    axes = [number(each) for each in elements(argument(call, "axes", place)) or ()]
    whole = tuple(axis for axis in axes if isinstance(axis, int))
    return (inside, whole) if whole and len(whole) == len(axes) else None


def rearranged(source: Source, call: cst.Call) -> Expression | None:
    """Returns the tile whose elements a call converts or reshapes; None for any other call."""
    shaped = reshaped(source, call)
    return same_elements(source, call) if shaped is None else shaped[0]


def tile_call(source: Source, call: cst.Call) -> str:
    """Returns the name of the called function of cuda.tile; "" for any other function."""
    name = dotted(call.func)
    module, _, function = name.rpartition(".")
    if module:
        return function if module == source.tile_module else ""
    return source.tile_name(name) if name else ""


def reduced_axes(call: cst.Call, rank: int) -> set[int] | None:
    """Returns the axes that a reduction removes or shrinks to 1; None if they are not integer literals."""
    axis = argument(call, "axis", 1)
    if axis is None or (isinstance(axis, cst.Name) and axis.value == "None"):
        return set(range(rank))
    numbers = [number(each) for each in elements(axis) or [axis]]
    whole = [each for each in numbers if isinstance(each, int)]
    return {each % rank for each in whole if rank} if whole == numbers else None


def is_true(node: Expression | None) -> bool | None:
    """Returns the value of a boolean argument. Returns False for a missing argument, and None for any other
    expression."""
    return False if node is None else {"True": True, "False": False}.get(dotted(node))


def _assignments(source: Source, function: Function) -> list[tuple[str, Expression | None, bool]]:
    """Lists the assignments of a function, as `Shapes.assigned` holds them."""
    found: list[tuple[str, Expression | None, bool]] = []
    for node in source.every(cst.BaseSmallStatement, function):  # type: ignore[type-abstract]
        match node:
            case cst.Assign():
                pairs = pairs_of(node)
                found += [(target.value, value, False) for target, value in pairs if isinstance(target, cst.Name)]
            case cst.AugAssign(target=cst.Name(value=name)):
                found.append((name, node.value, True))
            case cst.AnnAssign(target=cst.Name(value=name)):
                found.append((name, node.value, False))
    return found + [(dotted(each.target), each.value, False) for each in source.every(cst.NamedExpr, function)]


def _joined(first: Tile | None, second: Tile) -> Tile:
    """Returns the tile of a name that is assigned once to ``first`` and once to ``second``."""
    first = first or second
    return Tile(first.shape if first.shape == second.shape else None, first.varies or second.varies)


def _together(tiles: Sequence[Tile | None]) -> Tile | None:
    """Returns the tile that an elementwise operation on ``tiles`` gives. Ignores operands whose tile is not known
    yet."""
    known = [tile for tile in tiles if tile is not None]
    if not known:
        return None
    shape: Shape | None = ()
    for tile in known:
        shape = None if shape is None or tile.shape is None else _broadcast(shape, tile.shape)
    return Tile(shape, any(tile.varies for tile in known))


def _broadcast(first: Shape, second: Shape) -> Shape | None:
    """Returns the broadcast shape, aligned at the right. None if two sizes are written differently and neither is 1."""
    pairs = [*zip_longest(reversed(first), reversed(second), fillvalue="1")]
    if any(size != other and "1" not in (size, other) for size, other in pairs):
        return None
    return tuple(other if size == "1" else size for size, other in reversed(pairs))


def tuple_text(items: Sequence[str]) -> str:
    """Formats a tuple: ``(a,)``, ``(a, b)``."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
