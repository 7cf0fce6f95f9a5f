"""Reads the index of a gather or scatter: a scalar, or a range such as ``block * TILE + arange(TILE)``.

Integer arithmetic is read as a polynomial of names and calls, so ``start = n * TILE`` two lines above, ``TILE * n`` and
``(n + 1) * TILE - TILE`` mean the same. A name counts only where its value at the access is the one that the index was
computed with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_read, reaching
from tilewright.playbook.analyses.tile_shapes import Shapes, indices_of, new_axes, reshaped, same_elements, tile_call
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Source, argument, number

Term: TypeAlias = tuple[str, ...]
"""Names and calls that are multiplied, as written, in sorted order; () is the number 1."""


@dataclass(frozen=True)
class Scalar:
    """Sum of terms, each with a whole factor."""

    terms: Mapping[Term, int]

    def __add__(self, other: Scalar) -> Scalar:
        sums = dict(self.terms)
        for term, factor in other.terms.items():
            sums[term] = sums.get(term, 0) + factor
        return Scalar({term: factor for term, factor in sums.items() if factor})

    def __neg__(self) -> Scalar:
        return Scalar({term: -factor for term, factor in self.terms.items()})

    def __mul__(self, other: Scalar) -> Scalar:
        total = Scalar({})
        for term, factor in self.terms.items():
            for term_, factor_ in other.terms.items():
                total += Scalar({tuple(sorted(term + term_)): factor * factor_})
        return total

    @property
    def text(self) -> str:
        """As Python."""
        if not self.terms:
            return "0"
        text, *others = [_product(term, factor) for term, factor in self.terms.items()]
        for part in others:
            text += f" - {part[1:]}" if part.startswith("-") else f" + {part}"
        return text

    def over(self, size: Scalar) -> tuple[Scalar, Scalar]:
        """Quotient and rest of a division by ``size``, which is a single term."""
        [(divisor, by)] = size.terms.items()
        quotient, rest = {}, {}
        for term, factor in self.terms.items():
            if factor % by or Counter(divisor) - Counter(term):
                rest[term] = factor
            else:
                left = Counter(term) - Counter(divisor)
                quotient[tuple(sorted(left.elements()))] = factor // by
        return Scalar(quotient), Scalar(rest)


@dataclass(frozen=True)
class Span:
    """Consecutive elements from ``start`` along one axis of the index tile, or the same element for all lanes."""

    start: Scalar
    size: Scalar
    rank: int
    """Of the index tile."""
    axis: int
    """The axis that has ``size`` elements; the others have one."""
    same: bool = False
    """All lanes have the element ``start``: ``(n * PAGE + arange(PAGE)) // PAGE`` is n."""


Form: TypeAlias = Scalar | Span
ONE = Scalar({(): 1})


@dataclass
class Forms:
    """Reads the indices of an access. ``at`` is the place where their parts will be written."""

    source: Source
    at: cst.CSTNode
    shapes: Shapes
    """The shapes of the function's tiles: a known tile is no scalar."""
    open_: set[int] = field(default_factory=set)

    def of(self, node: cst.BaseExpression, where: cst.CSTNode | None = None) -> Form:
        """The form of ``node``, whose names have the values that they have at ``where`` (as a rule, ``node``).

        Raises `NotApplicable` where it has another form.
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

    def size(self, node: cst.BaseExpression, where: cst.CSTNode) -> Scalar:
        size = self._scalar(node, where)
        if len(size.terms) != 1 or next(iter(size.terms.values())) < 1:
            raise NotApplicable(f"the size {self.source.code(node)} is no product of constants")
        return size

    def _scalar(self, node: cst.BaseExpression, where: cst.CSTNode) -> Scalar:
        form = self.of(node, where)
        if not isinstance(form, Scalar):
            raise NotApplicable(f"{self.source.code(node)} is a tile, where a scalar is understood")
        return form

    def _product(self, left: Form, right: Form, node: cst.BaseExpression) -> Form:
        spans = [form for form in (left, right) if isinstance(form, Span)]
        if len(spans) > 1 or any(not span.same for span in spans):
            raise NotApplicable(f"{self.source.code(node)} is no range of consecutive elements")
        product = _start(left) * _start(right)
        return replace(spans[0], start=product) if spans else product

    def _divided(self, node: cst.BinaryOperation, where: cst.CSTNode) -> Form:
        """A range that begins at a multiple of its size, divided by that size: its number, or the place in it."""
        left = self.of(node.left, where)
        if isinstance(left, Scalar):
            return self._atom(node, where)
        if left.same or self._scalar(node.right, where) != left.size:
            raise NotApplicable(f"{self.source.code(node)} is no range of consecutive elements")
        number, rest = left.start.over(left.size)
        if rest.terms:
            raise NotApplicable(f"{self.source.code(node)} is not the same for all of its range")
        if isinstance(node.operator, cst.FloorDivide):
            return replace(left, start=number, same=True)
        return replace(left, start=Scalar({}))

    def _looked_up(self, call: cst.Call, where: cst.CSTNode) -> Form:
        """``ct.gather(table, (b, token // PAGE))``, which reads one page id for all lanes: as a scalar, read once."""
        forms = [self.of(one, where) for one in indices_of(call)]
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
            raise NotApplicable(f"the value of {node.value} is not plain where it is used")
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
            return Span(first, self.size(node.args[0].value, where), 1, 0)
        if (inside := same_elements(self.source, node)) is not None:
            return self.of(inside, where)
        if (shaped := reshaped(self.source, node)) is not None:
            return self._reshaped(*shaped, where)
        if tile_call(self.source, node) == "gather":
            return self._looked_up(node, where)
        return self._atom(node, where)

    def _reshaped(self, inside: cst.BaseExpression, shape: list[cst.BaseExpression], where: cst.CSTNode) -> Form:
        form = self.of(inside, where)
        sizes = [self._scalar(one, where) for one in shape]
        if isinstance(form, Scalar):
            raise NotApplicable("a scalar is given the shape of a tile")
        long = [axis for axis, one in enumerate(sizes) if one == form.size]
        if len(long) != 1 or any(one not in (ONE, form.size) for one in sizes):
            raise NotApplicable("the index is given another shape")
        return replace(form, rank=len(sizes), axis=long[0])

    def _subscript(self, node: cst.Subscript, where: cst.CSTNode) -> Form:
        added = new_axes(node)
        if added is None:
            if isinstance(node.value, cst.Attribute) and node.value.attr.value in ("shape", "strides"):
                return self._atom(node, where)
            raise NotApplicable(f"{self.source.code(node)} is not understood as an index")
        form = self.of(node.value, where)
        if isinstance(form, Scalar) or added.count(False) != form.rank:
            raise NotApplicable(f"{self.source.code(node)} is not understood as an index")
        kept = [axis for axis, new in enumerate(added) if not new]
        return replace(form, rank=len(added), axis=kept[form.axis])

    def _atom(self, node: cst.BaseExpression, where: cst.CSTNode) -> Scalar:
        """``node`` as one factor; its names must mean the same where the access stands."""
        for name in names_read(node):
            here, there = reaching(self.source, name, where), reaching(self.source, name, self.at)
            if here is None or there is None or here.node is not there.node:
                raise NotApplicable(f"{name} has another value at the access than where its index is computed")
        if self.shapes.of(node):
            raise NotApplicable(f"{self.source.code(node)} is a tile of another form")
        text, primary = (
            self.source.code(bare(node)),
            isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)),
        )
        return Scalar({(text if primary else f"({text})",): 1})


def bare(node: cst.BaseExpression) -> cst.BaseExpression:
    """Without parentheses around it."""
    return node.with_changes(lpar=(), rpar=()) if getattr(node, "lpar", ()) else node


def _is_arithmetic(source: Source, value: cst.BaseExpression) -> bool:
    """Whether a value is plain arithmetic, so that the name it has can be replaced by it."""
    if isinstance(value, cst.Call):
        shaped = reshaped(source, value)
        inside = same_elements(source, value) or (shaped[0] if shaped is not None else None)
        return tile_call(source, value) == "arange" or (inside is not None and _is_arithmetic(source, inside))
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
    # A range and one element for all of its lanes can be added.
    lie = [(span.size, span.rank, span.axis) for span in spans]
    if len(spans) == 2 and (lie[0] != lie[1] or spans[0].same == spans[1].same):
        raise NotApplicable("the indices are not consecutive")
    return replace(spans[0], start=total, same=all(span.same for span in spans))


def _product(term: Term, factor: int) -> str:
    if not term:
        return str(factor)
    text = " * ".join(term)
    return text if factor == 1 else f"-{text}" if factor == -1 else f"{factor} * {text}"
