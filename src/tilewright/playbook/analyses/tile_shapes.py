"""Finds the shapes of the tiles in a kernel, as they are written: ``("1", "TILE_N")``, and ``()`` of a scalar.

A name has the shape that all its assignments agree on. Where they disagree, or an operation is not known, the shape is
None, and an entry leaves the place alone. The same walk marks the tiles that depend on given names (`Tile.varies`):
`rows_per_tile` so finds what depends on the number of a row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

import libcst as cst

from tilewright.playbook.analyses.dataflow import pairs_of
from tilewright.source.syntax import Function, Source, argument, dotted, elements, number

Shape: TypeAlias = tuple[str, ...]

ELEMENTWISE = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "maximum", "minimum", "negative", "exp", "exp2", "log",
    "log2", "log1p", "expm1", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh", "floor", "ceil", "where",
    "fma", "isnan", "atan2", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "bitwise_and",
    "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_lshift", "bitwise_rshift",
)  # fmt: skip
REDUCTIONS = ("sum", "max", "min", "prod")
FILLED = ("zeros", "ones", "full")
SHAPED = {**dict.fromkeys(FILLED, 0), "broadcast_to": 1, "load": 2}
"""Functions that are told the shape of their result → its place among their arguments."""
SCALARS = ("bid", "num_blocks", "cdiv", "min", "max", "int", "float", "bool", "abs", "range", "len")


@dataclass(frozen=True)
class Tile:
    shape: Shape | None
    varies: bool = False
    """Whether the tile depends on one of the varying names."""


class Shapes:
    """The shapes in one function. ``varying`` names are taken as scalars that vary."""

    def __init__(self, source: Source, function: Function, varying: Collection[str] = ()) -> None:
        self.source, self.function, self.varying = source, function, frozenset(varying)
        self.names: dict[str, Tile] = {}
        """Assigned name → its tile."""
        self.assigned = assigned = _assignments(source, function)
        """Name, value (None where it has no expression of its own), and whether it is added to what was there."""
        self._assigned = {name for name, _, _ in assigned}
        for _ in range(len(assigned) + 1):
            before = dict(self.names)
            for name, value, added in assigned:
                tile = Tile(None) if value is None else self._tile(value)
                if added and tile is not None:
                    tile = _together([self.names.get(name), tile])
                if tile is not None:
                    self.names[name] = _joined(self.names.get(name), tile)
            if self.names == before:
                return

    def of(self, node: cst.BaseExpression) -> Shape | None:
        return self.tile(node).shape

    def tile(self, node: cst.BaseExpression) -> Tile:
        """Shape of an expression of the function; None where it is not known."""
        return self._tile(node) or Tile(None)

    def _tile(self, node: cst.BaseExpression) -> Tile | None:
        """The tile of an expression; None if it depends on a name that was not visited yet."""
        match node:
            case cst.Name(value=name) if name in self._assigned and name not in self.varying:
                return self.names.get(name)
            case cst.Name(value=name):  # a parameter, a loop's variable, a constant of the module
                return Tile((), name in self.varying)
            case cst.Integer() | cst.Float() | cst.SimpleString():
                return Tile(())
            case cst.BinaryOperation() | cst.BooleanOperation():
                return _together([self._tile(node.left), self._tile(node.right)])
            case cst.UnaryOperation():
                return self._tile(node.expression)
            case cst.Comparison():
                return _together([self._tile(one) for one in (node.left, *(c.comparator for c in node.comparisons))])
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
        names = {one.value for one in self.source.every(cst.Name, node)}
        known = (self.names.get(name) for name in names)
        return bool(names & self.varying) or any(one.varies for one in known if one is not None)

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
            return Tile(tuple(self.size(one) for one in shaped[1]), varies)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "item":
            return Tile((), varies)
        if name in SHAPED:
            return Tile(self.sizes(argument(node, "shape", SHAPED[name])), varies)
        if name == "arange":
            return Tile((self.size(node.args[0].value),), varies)
        if name == "gather":
            tiles = [self._tile(one) for one in indices_of(node)]
            return None if None in tiles else Tile(_together(tiles).shape, varies)  # type: ignore[union-attr]
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

    def sizes(self, node: cst.BaseExpression | None) -> Shape | None:
        """The shape in a tuple, in a name assigned to a tuple, or in a single size."""
        if isinstance(node, cst.Name):
            values = [value for name, value, _ in self.assigned if name == node.value]
            if len(values) == 1 and values[0] is not None and elements(values[0]) is not None:
                node = values[0]
        listed = elements(node)
        if listed is not None:
            return tuple(self.size(one) for one in listed)
        return None if not isinstance(node, (cst.Name, cst.Integer)) else (self.size(node),)

    def size(self, node: cst.BaseExpression) -> str:
        value = number(node)
        return str(value) if value is not None else self.source.code(node)


def indices_of(call: cst.Call) -> list[cst.BaseExpression]:
    """The indices of a gather or scatter, one for each axis."""
    given = argument(call, "indices", 1)
    return elements(given) or ([given] if given is not None else [])


def new_axes(node: cst.Subscript) -> list[bool] | None:
    """For ``[:, None]``: which axes are new; None for any other subscript."""
    added = []
    for one in node.slice:
        match one.slice:
            case cst.Slice(lower=None, upper=None, step=None):
                added.append(False)
            case cst.Index(value=cst.Name(value="None")):
                added.append(True)
            case _:
                return None
    return added


def reshaped(source: Source, call: cst.Call) -> tuple[cst.BaseExpression, list[cst.BaseExpression]] | None:
    """Tile and shape of ``x.reshape(shape)`` and ``ct.reshape(x, shape)``; None of any other call."""
    if tile_call(source, call) == "reshape":
        inside, shape = argument(call, "x", 0), argument(call, "shape", 1)
    elif isinstance(call.func, cst.Attribute) and call.func.attr.value == "reshape":
        inside, shape = call.func.value, argument(call, "shape", 0)
    else:
        return None
    listed = elements(shape)
    return None if inside is None or listed is None else (inside, listed)


def same_elements(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """What ``x.astype(dtype)`` and ``ct.astype(x, dtype)`` convert; None of any other call."""
    if tile_call(source, call) == "astype":
        return argument(call, "x", 0)
    is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "astype"
    return call.func.value if is_method and isinstance(call.func, cst.Attribute) else None


def tile_call(source: Source, call: cst.Call) -> str:
    """Name of the function of cuda.tile that is called; "" of any other call."""
    name = dotted(call.func)
    module, _, function = name.rpartition(".")
    if module:
        return function if module == source.tile_module else ""
    return source.tile_name(name) if name else ""


def reduced_axes(call: cst.Call, rank: int) -> set[int] | None:
    """The axes that a reduction reduces; None where they are not written as numbers."""
    axis = argument(call, "axis", 1)
    if axis is None or (isinstance(axis, cst.Name) and axis.value == "None"):
        return set(range(rank))
    numbers = [number(one) for one in elements(axis) or [axis]]
    whole = [one for one in numbers if isinstance(one, int)]
    return {one % rank for one in whole if rank} if whole == numbers else None


def is_true(node: cst.BaseExpression | None) -> bool | None:
    """A literal truth value, False where there is none; None where it is no literal."""
    return False if node is None else {"True": True, "False": False}.get(dotted(node))


def _assignments(source: Source, function: Function) -> list[tuple[str, cst.BaseExpression | None, bool]]:
    found: list[tuple[str, cst.BaseExpression | None, bool]] = []
    for node in source.every(cst.BaseSmallStatement, function):  # type: ignore[type-abstract]
        match node:
            case cst.Assign():
                pairs = pairs_of(node)
                found += [(one.value, value, False) for one, value in pairs if isinstance(one, cst.Name)]
            case cst.AugAssign(target=cst.Name(value=name)):
                found.append((name, node.value, True))
            case cst.AnnAssign(target=cst.Name(value=name)):
                found.append((name, node.value, False))
    return found + [(dotted(one.target), one.value, False) for one in source.every(cst.NamedExpr, function)]


def _joined(first: Tile | None, second: Tile) -> Tile:
    first = first or second
    return Tile(first.shape if first.shape == second.shape else None, first.varies or second.varies)


def _together(tiles: Sequence[Tile | None]) -> Tile | None:
    """The tile of an element-by-element result. Operands whose tile is not known yet are left out."""
    known = [one for one in tiles if one is not None]
    if not known:
        return None
    shape: Shape | None = ()
    for one in known:
        shape = None if shape is None or one.shape is None else _broadcast(shape, one.shape)
    return Tile(shape, any(one.varies for one in known))


def _broadcast(first: Shape, second: Shape) -> Shape | None:
    """The common shape, aligned at the right; None where two sizes are not seen to agree."""
    pairs = [*zip_longest(reversed(first), reversed(second), fillvalue="1")]
    if any(one != other and "1" not in (one, other) for one, other in pairs):
        return None
    return tuple(other if one == "1" else one for one, other in reversed(pairs))


def tuple_text(items: Sequence[str]) -> str:
    """A tuple as it is written."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
