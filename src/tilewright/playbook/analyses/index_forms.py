"""Reads the index of a gather or scatter: a scalar, or a range such as ``block * TILE + arange(TILE)``.

Integer arithmetic is read as a polynomial of names and calls. So ``TILE * n``, ``(n + 1) * TILE - TILE`` and a name
that was assigned ``n * TILE`` are equal. An index is refused if the value of one of its names changes between the
computation of the index and the access.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_read, reaching
from tilewright.playbook.analyses.expressions import bare
from tilewright.playbook.analyses.tile_shapes import (
    Shapes,
    indices_of,
    new_axes,
    rearranged,
    reshaped,
    same_elements,
    tile_call,
)
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Source, argument, elements, number

Term: TypeAlias = tuple[str, ...]
"""The names and calls in a product, as written and sorted; () is the number 1."""


@dataclass(frozen=True)
class Scalar:
    """A sum of terms, each with an integer factor."""

    terms: Mapping[Term, int]

    @classmethod
    def sum_of(cls, parts: Iterable[tuple[Term, int]]) -> Scalar:
        """Adds up terms with their factors. Drops the terms that cancel."""
        sums: Counter[Term] = Counter()
        for term, factor in parts:
            sums[term] += factor
        return cls({term: factor for term, factor in sums.items() if factor})

    def __add__(self, other: Scalar) -> Scalar:
        return Scalar.sum_of([*self.terms.items(), *other.terms.items()])

    def __neg__(self) -> Scalar:
        return Scalar({term: -factor for term, factor in self.terms.items()})

    def __mul__(self, other: Scalar) -> Scalar:
        pairs = itertools.product(self.terms.items(), other.terms.items())
        return Scalar.sum_of((tuple(sorted(a + b)), x * y) for (a, x), (b, y) in pairs)

    @property
    def text(self) -> str:
        """The sum as the text of a Python expression."""
        text = ""
        for term, factor in self.terms.items():
            sign = "-" if factor < 0 else "+"
            text += f" {sign} " if text else sign.removeprefix("+")
            text += " * ".join([*([str(abs(factor))] if abs(factor) != 1 or not term else []), *term])
        return text or "0"

    def over(self, size: Scalar) -> tuple[Scalar, Scalar]:
        """Divides by ``size``, which has a single term. Returns quotient and remainder."""
        [(divisor, by)] = size.terms.items()
        quotient, rest = {}, {}
        for term, factor in self.terms.items():
            if factor % by or Counter(divisor) - Counter(term):
                rest[term] = factor
            else:
                left = Counter(term) - Counter(divisor)
                quotient[tuple(sorted(left.elements()))] = factor // by
        return Scalar(quotient), Scalar(rest)


ONE = Scalar({(): 1})


@dataclass(frozen=True)
class Span:
    """Consecutive elements from ``start``, along one axis of the index tile.

    The index tile has ``rank`` axes: ``size`` elements along ``axis``, one element along each other axis. ``same``:
    whether all elements of the tile equal ``start``, as in ``(n * PAGE + arange(PAGE)) // PAGE``, which is n
    everywhere. ``step``: the distance between two elements; 1 unless `Forms` reads steps.
    """

    start: Scalar
    size: Scalar
    rank: int
    axis: int
    same: bool = False
    step: Scalar = ONE


Form: TypeAlias = Scalar | Span


@dataclass
class Forms:
    """Reads the indices of one access. ``at``: the access. ``shapes``: the shapes of the tiles in its function.
    ``steps``: whether a range may have a step: ``arange(TILE) * STRIDE``."""

    source: Source
    at: cst.CSTNode
    shapes: Shapes
    steps: bool = False
    open_: set[int] = field(default_factory=set)  # names that are being read: a name may depend on itself

    def of(self, node: Expression, where: cst.CSTNode | None = None) -> Form:
        """Returns ``node`` as a `Scalar` or `Span`. Names have their values at ``where`` (default: at ``node``).

        Raises `NotApplicable` if ``node`` is neither a scalar nor a span.
        """
        where = where or node
        match node:
            case cst.Integer():
                return Scalar({(): node.evaluated_value}) if node.evaluated_value else Scalar({})
            case cst.Name():
                return self._name(node, where)
            case cst.BinaryOperation(operator=cst.Add() | cst.Subtract()):
                left, right = self.of(node.left, where), self.of(node.right, where)
                if isinstance(node.operator, cst.Add):
                    return _sum(left, right)
                if isinstance(right, Span):
                    raise NotApplicable("the indices are not consecutive")
                return _sum(left, -right)
            case cst.BinaryOperation(operator=cst.Multiply()):
                return self._product(self.of(node.left, where), self.of(node.right, where), node)
            case cst.BinaryOperation(operator=cst.FloorDivide() | cst.Modulo()):
                return self._divided(node, where)
            case cst.UnaryOperation(operator=cst.Minus()):
                return -self._scalar(node.expression, where)
            case cst.Call():
                return self._call(node, where)
            case cst.Subscript():
                return self._subscript(node, where)
        return self._atom(node, where)

    def _size(self, node: Expression, where: cst.CSTNode) -> Scalar:
        size = self._scalar(node, where)
        if len(size.terms) != 1 or next(iter(size.terms.values())) < 1:
            raise NotApplicable(f"the size {self.source.code(node)} is no product of constants")
        return size

    def _scalar(self, node: Expression, where: cst.CSTNode) -> Scalar:
        form = self.of(node, where)
        if not isinstance(form, Scalar):
            raise NotApplicable(f"{self.source.code(node)} is a tile; only a scalar is understood here")
        return form

    def _product(self, left: Form, right: Form, node: Expression) -> Form:
        spans = [form for form in (left, right) if isinstance(form, Span)]
        if len(spans) > 1 or any(not span.same and not self.steps for span in spans):
            raise NotApplicable(f"{self.source.code(node)} is no range of consecutive elements")
        product = _start(left) * _start(right)
        if not spans:
            return product
        [span] = spans
        by = next((form for form in (left, right) if form is not span), ONE)
        return replace(span, start=product, step=ONE if span.same else span.step * _start(by))

    def _divided(self, node: cst.BinaryOperation, where: cst.CSTNode) -> Form:
        """Divides a range by its size, if it begins at a multiple of that size.

        The result of ``//`` is the same for all elements: the number of the range. The result of ``%`` is an element's
        position in the range.
        """
        left = self.of(node.left, where)
        if isinstance(left, Scalar):
            return self._atom(node, where)
        if left.same or left.step != ONE or self._scalar(node.right, where) != left.size:
            raise NotApplicable(f"{self.source.code(node)} is no range of consecutive elements")
        number, rest = left.start.over(left.size)
        if rest.terms:
            raise NotApplicable(f"{self.source.code(node)} is not the same for its whole range")
        if isinstance(node.operator, cst.FloorDivide):
            return replace(left, start=number, same=True)
        return replace(left, start=Scalar({}))

    def _looked_up(self, call: cst.Call, where: cst.CSTNode) -> Form:
        """Reads ``ct.gather(table, (b, token // PAGE))`` as a scalar load. All elements of the index tile load the same
        page id."""
        forms = [self.of(index, where) for index in indices_of(call)]
        spans = [form for form in forms if isinstance(form, Span)]
        if not spans or len(call.args) != 2 or any(not span.same for span in spans):
            return self._atom(call, where)
        texts = [_start(form).text for form in forms]
        index = texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
        text = f"{self.source.code(call.func)}({self.source.code(call.args[0].value)}, {index}).item()"
        return replace(spans[0], start=Scalar({(text,): 1}))

    def _name(self, node: cst.Name, where: cst.CSTNode) -> Form:
        definition = reaching(self.source, node.value, where)
        if definition is None:
            raise NotApplicable(f"{node.value} may have several values here")
        value = definition.value
        if value is not None and id(definition.node) not in self.open_ and _is_arithmetic(self.source, value):
            self.open_.add(id(definition.node))
            try:
                return self.of(value, definition.node)
            finally:
                self.open_.discard(id(definition.node))
        if isinstance(value, cst.Call) and tile_call(self.source, value) == "gather":
            found = self._looked_up(value, definition.node)
            return found if isinstance(found, Span) else self._atom(node, where)
        return self._atom(node, where)

    def _call(self, node: cst.Call, where: cst.CSTNode) -> Form:
        if tile_call(self.source, node) == "arange":
            step, start = argument(node, "step"), argument(node, "start")
            if step is not None and number(step) != 1:
                raise NotApplicable("the indices are not consecutive")
            first = self._scalar(start, where) if start is not None else Scalar({})
            return Span(first, self._size(node.args[0].value, where), 1, 0)
        if tile_call(self.source, node) == "full":
            return self._filled(node, where)
        if (inside := same_elements(self.source, node)) is not None:
            return self.of(inside, where)
        if (shaped := reshaped(self.source, node)) is not None:
            return self._reshaped(*shaped, where)
        if tile_call(self.source, node) == "gather":
            return self._looked_up(node, where)
        return self._atom(node, where)

    def _filled(self, node: cst.Call, where: cst.CSTNode) -> Form:
        shape, value = elements(argument(node, "shape", 0)), argument(node, "fill_value", 1)
        if shape is None or value is None or len(shape) != 1:
            raise NotApplicable(f"{self.source.code(node)} is not understood as an index")
        return Span(self._scalar(value, where), self._size(shape[0], where), 1, 0, same=True)

    def _reshaped(self, inside: Expression, shape: list[Expression], where: cst.CSTNode) -> Form:
        form = self.of(inside, where)
        sizes = [self._scalar(size, where) for size in shape]
        if isinstance(form, Scalar):
            raise NotApplicable("a scalar is reshaped to a tile")
        long = [axis for axis, size in enumerate(sizes) if size == form.size]
        if len(long) != 1 or any(size not in (ONE, form.size) for size in sizes):
            raise NotApplicable("the index is reshaped to several long axes")
        return replace(form, rank=len(sizes), axis=long[0])

    def _subscript(self, node: cst.Subscript, where: cst.CSTNode) -> Form:
        added = new_axes(node)
        if added is None and isinstance(node.value, cst.Attribute) and node.value.attr.value in ("shape", "strides"):
            return self._atom(node, where)
        form = None if added is None else self.of(node.value, where)
        if added is None or not isinstance(form, Span) or added.count(False) != form.rank:
            raise NotApplicable(f"{self.source.code(node)} is not understood as an index")
        kept = [axis for axis, new in enumerate(added) if not new]
        return replace(form, rank=len(added), axis=kept[form.axis])

    def _atom(self, node: Expression, where: cst.CSTNode) -> Scalar:
        """Returns ``node`` as a scalar of one term. Raises `NotApplicable` if a name changes before the access."""
        for name in names_read(node):
            here, there = reaching(self.source, name, where), reaching(self.source, name, self.at)
            if here is None or there is None or here.node is not there.node:
                raise NotApplicable(f"{name} changes between the computation of the index and the access")
        if self.shapes.of(node):
            raise NotApplicable(f"{self.source.code(node)} is a tile of another form")
        text = self.source.code(bare(node))
        primary = isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
        return Scalar({(text if primary else f"({text})",): 1})


def _is_arithmetic(source: Source, value: Expression) -> bool:
    """Returns whether ``value`` is plain arithmetic, so that `Forms` reads the value in place of its name."""
    if isinstance(value, cst.Call):
        inside = rearranged(source, value)
        return tile_call(source, value) in ("arange", "full") or (inside is not None and _is_arithmetic(source, inside))
    if isinstance(value, cst.BinaryOperation):
        return isinstance(value.operator, (cst.Add, cst.Subtract, cst.Multiply))
    new = isinstance(value, cst.Subscript) and new_axes(value) is not None
    return new or isinstance(value, (cst.Name, cst.Integer, cst.UnaryOperation))


def _start(form: Form) -> Scalar:
    return form.start if isinstance(form, Span) else form


def _sum(left: Form, right: Form) -> Form:
    total = _start(left) + _start(right)
    spans = [form for form in (left, right) if isinstance(form, Span)]
    if not spans:
        return total
    # One of two spans must be the same for all elements. Both must lie along the same axis.
    axes = [(span.size, span.rank, span.axis) for span in spans]
    if len(spans) == 2 and (axes[0] != axes[1] or spans[0].same == spans[1].same):
        raise NotApplicable("the indices are not consecutive")
    step = next((span.step for span in spans if not span.same), ONE)
    return replace(spans[0], start=total, same=all(span.same for span in spans), step=step)
