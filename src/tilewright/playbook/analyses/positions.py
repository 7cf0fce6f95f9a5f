"""Writes the positions that a kernel compares in a mask as sums of products, spans and scalars.

    columns = n * TILE_N + ct.arange(TILE_N, …)   →   n · TILE_N + span of TILE_N
    rows = m * TILE_M + ct.arange(TILE_M, …)      →   m · TILE_M + span of TILE_M

A span holds the numbers from 0 to its extent - 1. The difference of two such sums says for which iterations of a loop a
comparison holds for all elements of a tile, for some, or for none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, names_read, parameters, reaching
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.tile_shapes import SCALARS, Shapes, new_axes, rearranged, same_elements, tile_call
from tilewright.source.syntax import Expression, Function, Source, argument, dotted, number

Product = tuple[str, ...]
"""The factors of a product, sorted; () is 1."""
LAYOUTS = ("expand_dims", "broadcast_to", "transpose", "permute")
_DEPTH = 40


@dataclass(frozen=True)
class Total:
    """A sum of products of scalars, each with a whole factor: ``{("TILE_M", "m"): 1, (): -1}`` is m · TILE_M - 1."""

    products: Mapping[Product, int]

    @classmethod
    def of(cls, *factors: str, times: int = 1) -> Total:
        return cls({tuple(sorted(factors)): times} if times else {})

    def __add__(self, other: Total) -> Total:
        counted = Counter(self.products)
        for product, times in other.products.items():
            counted[product] += times
        return Total({product: times for product, times in counted.items() if times})

    def times(self, factor: Total) -> Total:
        made = Total({})
        for mine, count in self.products.items():
            for theirs, often in factor.products.items():
                made += Total({tuple(sorted((*mine, *theirs))): count * often})
        return made

    def __neg__(self) -> Total:
        return self.times(Total.of(times=-1))

    @property
    def constant(self) -> int | None:
        """The value of a sum without names; None for another."""
        return self.products.get((), 0) if not set(self.products) - {()} else None

    @property
    def size(self) -> int:
        """The sum of the magnitudes of all factors."""
        return sum(map(abs, self.products.values()))

    def __str__(self) -> str:
        ordered = sorted(self.products.items(), key=lambda item: (not item[0], item[1] < 0))
        text = ""
        for product, times in ordered:
            size = "" if abs(times) == 1 and product else str(abs(times))
            written = " * ".join(filter(None, (size, *product)))
            sign = ("-" if not text else " - ") if times < 0 else ("" if not text else " + ")
            text += sign + written
        return text or "0"


@dataclass(frozen=True)
class Position:
    """A sum with spans. spans: the extent of each span, and its whole factor."""

    total: Total
    spans: tuple[tuple[Total, int], ...] = ()

    def __add__(self, other: Position) -> Position:
        return Position(self.total + other.total, self.spans + other.spans)

    def __neg__(self) -> Position:
        return Position(-self.total, tuple((extent, -times) for extent, times in self.spans))

    def end(self, *, highest: bool) -> Total:
        """Returns the least or the highest value in the tile."""
        ends = [
            (extent + Total.of(times=-1)).times(Total.of(times=times))
            for extent, times in self.spans
            if (times > 0) == highest
        ]
        return sum(ends, self.total)

    def parted(self, name: str) -> tuple[Total, Position] | None:
        """Returns the factor of ``name``, and the sum without it; None if a product has it twice."""
        factor, rest = Total({}), Total({})
        for product, times in self.total.products.items():
            if product.count(name) > 1:
                return None
            if name in product:
                factor += Total({tuple(each for each in product if each != name): times})
            else:
                rest += Total({product: times})
        return factor, Position(rest, self.spans)


@dataclass
class Positions:
    """The positions in the body of one loop. Names that the loop does not assign are scalars in them."""

    source: Source
    function: Function
    loop: cst.For
    assigned: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        self.assigned = names_assigned(self.loop)

    @cached_property
    def _shapes(self) -> Shapes:
        return Shapes(self.source, self.function)

    @cached_property
    def _often(self) -> Counter[str]:
        return names_assigned(self.function)

    @cached_property
    def _given(self) -> set[str]:
        """The parameters that may be tiles: a helper's caller passes anything."""
        if self.function.name.value in self.source.kernels:
            return set()
        return {name for name in parameters(self.function) if not _is_scalar(self.source, self.function, name)}

    @cached_property
    def extents(self) -> set[str]:
        """The names of the extents of all ranges in the function: positive numbers."""
        calls = self.source.calls("arange", inside=self.function)
        return {dotted(call.args[0].value) for call in calls if call.args} - {""}

    def of(self, node: Expression, depth: int = 0) -> Position | None:
        """Returns an expression as a sum; None if it is none."""
        if depth > _DEPTH:
            return None
        if isinstance(value := number(node), int):
            return Position(Total.of(times=value))
        if self._is_scalar(node):
            return self._scalar(node)
        match node:
            case cst.Name():
                found = reaching(self.source, node.value, node)
                if found is not None and found.node is self.loop:
                    return Position(Total.of(node.value))
                return None if found is None or found.value is None else self.of(found.value, depth + 1)
            case cst.UnaryOperation(operator=cst.Minus()):
                inside = self.of(node.expression, depth)
                return None if inside is None else -inside
            case cst.BinaryOperation():
                return self._both(node, self.of(node.left, depth), self.of(node.right, depth))
            case cst.Call() | cst.Subscript():
                return self._called(node, depth)
        return None

    def is_invariant(self, node: cst.CSTNode) -> bool:
        """Returns whether an expression of the loop's body has the same value in each iteration, and before the
        loop."""
        return not names_read(node) & set(self.assigned)

    def _is_scalar(self, node: Expression) -> bool:
        """Returns whether ``node`` is a whole number that the loop does not change, and that is no sum itself.

        Before the loop, its names must hold the values that they hold in the loop.
        """
        match node:
            case cst.BinaryOperation(operator=cst.FloorDivide() | cst.Modulo()):
                pass
            case cst.BinaryOperation() | cst.UnaryOperation() | cst.Float():
                return False
        inside = any(above is self.loop for above in self.source.parents(node))
        names, given = names_read(node), parameters(self.function)
        once = inside or all(self._often[name] + (name in given) <= 1 for name in names)
        calls = self.source.every(cst.Call, node)
        once = once and all((tile_call(self.source, call) or dotted(call.func)) in SCALARS for call in calls)
        return once and self.is_invariant(node) and not names & self._given and self._shapes.of(node) == ()

    def _scalar(self, node: Expression) -> Position:
        return Position(Total.of(text_of(self.source, node)))

    def _both(self, node: cst.BinaryOperation, left: Position | None, right: Position | None) -> Position | None:
        if left is None or right is None:
            return None
        match node.operator:
            case cst.Add():
                return left + right
            case cst.Subtract():
                return left + -right
            case cst.Multiply():
                if left.spans and right.spans:
                    return None
                spanned, other = (left, right) if left.spans else (right, left)
                if spanned.spans and other.total.constant is None:
                    return None
                spans = tuple((extent, times * (other.total.constant or 0)) for extent, times in spanned.spans)
                return Position(left.total.times(right.total), spans)
        return None

    def _called(self, node: cst.Call | cst.Subscript, depth: int) -> Position | None:
        if isinstance(node, cst.Subscript):
            return self.of(node.value, depth) if new_axes(node) is not None else None
        name = tile_call(self.source, node)
        converted = same_elements(self.source, node)
        dtype = node.args[-1].value if converted is not None else argument(node, "dtype", 2 if name == "full" else 1)
        if dtype is not None and name in ("", "astype", "arange", "full") and not _is_int32(dtype):
            return None  # a bound of the loop is computed in int32
        inside = rearranged(self.source, node)
        if inside is None and name in LAYOUTS and node.args:
            inside = node.args[0].value
        if inside is not None:
            return self.of(inside, depth)
        if name == "arange" and len([arg for arg in node.args if arg.keyword is None]) == 1:
            extent = self.of(node.args[0].value, depth)
            plain = (
                extent is not None and not extent.spans and not argument(node, "start") and not argument(node, "step")
            )
            return Position(Total({}), ((extent.total, 1),)) if extent is not None and plain else None
        if name == "full" and (value := argument(node, "fill_value", 1)) is not None:
            return self.of(value, depth)
        return Position(Total({})) if name == "zeros" else None


def _is_scalar(source: Source, function: Function, name: str) -> bool:
    """Returns whether all callers of a helper pass a scalar for a parameter."""
    place = parameters(function).index(name)
    given = [(caller, argument(call, name, place)) for caller in source.tile_code.values()
             for call in source.every(cst.Call, caller) if dotted(call.func) == function.name.value]  # fmt: skip
    return bool(given) and all(
        node is not None and caller.name.value in source.kernels and Shapes(source, caller).of(node) == ()
        for caller, node in given
    )


def _is_int32(dtype: Expression) -> bool:
    return dotted(dtype).rpartition(".")[2] == "int32"


def comparisons(node: cst.Comparison) -> Iterator[tuple[Expression, cst.BaseCompOp, Expression]]:
    """Yields the single comparisons of ``a <= b < c``."""
    left = node.left
    for target in node.comparisons:
        yield left, target.operator, target.comparator
        left = target.comparator
