"""Writes the positions that a kernel compares in a mask as sums of products, spans and scalars.

    columns = n * TILE_N + ct.arange(TILE_N, …)   →   n · TILE_N + span of TILE_N
    rows = m * TILE_M + ct.arange(TILE_M, …)      →   m · TILE_M + span of TILE_M

A span holds the numbers from 0 to its extent - 1. The difference of two such sums says for which iterations of a loop a
comparison holds for all elements of a tile, for some, or for none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, names_read, parameters, reaching
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.helper_calls import HelperCall, calls_of, extents_in, is_scalar, may_be_imported
from tilewright.playbook.analyses.tile_shapes import SCALARS, new_axes, rearranged, same_elements, tile_call
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

    def renamed(self, name: Callable[[str], str | None]) -> Total | None:
        names = {factor: name(factor) for product in self.products for factor in product}
        if None in names.values():
            return None
        parts = (
            Total.of(*(names[each] or "" for each in product), times=times) for product, times in self.products.items()
        )
        return sum(parts, Total({}))

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

    def renamed(self, name: Callable[[str], str | None]) -> Position | None:
        """Returns the position with other names for the scalars; None if ``name`` has none for one of them."""
        total, extents = self.total.renamed(name), [extent.renamed(name) for extent, _ in self.spans]
        spans = [(extent, times) for extent, (_, times) in zip(extents, self.spans, strict=True) if extent is not None]
        return None if total is None or len(spans) < len(extents) else Position(total, tuple(spans))

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


class Positions(ABC):
    """The positions at some place of a function. `scalar` says which expressions are the scalars in them."""

    def __init__(self, source: Source, function: Function) -> None:
        self.source, self.function = source, function

    @abstractmethod
    def scalar(self, node: Expression) -> str | None:
        """Returns the text of a whole number that is no sum itself; None for any other expression."""

    def of(self, node: Expression, depth: int = 0) -> Position | None:
        """Returns an expression as a sum; None if it is none."""
        if depth > _DEPTH:
            return None
        if isinstance(value := number(node), int):
            return Position(Total.of(times=value))
        if self._may_be_scalar(node) and (text := self.scalar(node)) is not None:
            return Position(Total.of(text))
        match node:
            case cst.Name():
                return self._named(node, depth)
            case cst.UnaryOperation(operator=cst.Minus()):
                inside = self.of(node.expression, depth)
                return None if inside is None else -inside
            case cst.BinaryOperation():
                return self._both(node, self.of(node.left, depth), self.of(node.right, depth))
            case cst.Call() | cst.Subscript():
                return self._called(node, depth)
        return None

    def _named(self, node: cst.Name, depth: int) -> Position | None:
        found = reaching(self.source, node.value, node)
        if found is None:
            return None
        if found.node is self.function:
            return self._passed(node.value)
        return None if found.value is None else self.of(found.value, depth + 1)

    def _passed(self, parameter: str) -> Position | None:
        """Returns what a helper gets for a parameter, if all its calls pass the same."""
        if may_be_imported(self.source, self.function):
            return None
        found = list[Position | None]()
        for call in calls_of(self.source, self.function):
            given = call.given.get(parameter)
            found.append(None if given is None else _AtCall(call).of(given))
        return found[0] if found and all(each == found[0] for each in found) else None

    def _may_be_scalar(self, node: Expression) -> bool:
        match node:
            case cst.BinaryOperation(operator=cst.FloorDivide() | cst.Modulo()):
                pass
            case cst.BinaryOperation() | cst.UnaryOperation() | cst.Float():
                return False
        calls = self.source.every(cst.Call, node)
        if not all((tile_call(self.source, call) or dotted(call.func)) in SCALARS for call in calls):
            return False
        return is_scalar(self.source, self.function, node)

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


class LoopPositions(Positions):
    """The positions in the body of one loop. Names that the loop does not assign are scalars in them.

    extents: the names that are positive numbers.
    """

    def __init__(self, source: Source, function: Function, loop: cst.For) -> None:
        super().__init__(source, function)
        self.loop, self.assigned, self._often = loop, names_assigned(loop), names_assigned(function)
        self.extents = extents_in(source, function)

    def is_invariant(self, node: cst.CSTNode) -> bool:
        """Returns whether an expression of the loop's body has the same value in each iteration, and before the
        loop."""
        return not names_read(node) & set(self.assigned)

    def scalar(self, node: Expression) -> str | None:
        """Before the loop, the names of a scalar must hold the values that they hold in the loop."""
        inside = any(above is self.loop for above in self.source.parents(node))
        given = parameters(self.function)
        once = inside or all(self._often[name] + (name in given) <= 1 for name in names_read(node))
        return text_of(self.source, node) if once and self.is_invariant(node) else None

    def _named(self, node: cst.Name, depth: int) -> Position | None:
        found = reaching(self.source, node.value, node)
        if found is not None and found.node is self.loop:
            return Position(Total.of(node.value))
        return super()._named(node, depth)


class _AtCall(Positions):
    """The positions that a call passes to a helper, in the helper's own names."""

    def __init__(self, call: HelperCall) -> None:
        super().__init__(call.source, call.caller)
        self.call = call

    def scalar(self, node: Expression) -> str | None:
        return self.call.name_of(node)

    def _passed(self, parameter: str) -> Position | None:
        found = super()._passed(parameter)
        return None if found is None else found.renamed(self.call.renamed)


def _is_int32(dtype: Expression) -> bool:
    return dotted(dtype).rpartition(".")[2] == "int32"


def comparisons(node: cst.Comparison) -> Iterator[tuple[Expression, cst.BaseCompOp, Expression]]:
    """Yields the single comparisons of ``a <= b < c``."""
    left = node.left
    for target in node.comparisons:
        yield left, target.operator, target.comparator
        left = target.comparator
