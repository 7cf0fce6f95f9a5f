"""Compares a product in place of an exact quotient: ``a > b / c`` as ``a * c > b``, where c is at least 1.

An exact float32 quotient takes about ten instructions and a branch, a product one. The change is lossless: for finite
values, both forms round once, to nearest. Such a rounding may make two different numbers equal, but never turns their
order around. So both forms are wrong only in taking the two sides for equal that differ by less than one rounding. If
the two sides are equal, both forms see it.

- c must be proven to be a float of at least 32 bits, finite and at least 1. Then b / c does not overflow, and a * c
  does not vanish. With a c below 1, ``a * c > 0`` might be false for a small positive a. With an infinite c, the forms
  differ.
- a * c may overflow. Its order to a finite b stays; only an infinite b of the same sign then becomes equal to it.
- The largest of some quotients must stay equal to itself: ``b / c >= ct.max(b / c)``. So the quotient must have no
  other use, and no other quotient may have the same operands.
- A NaN in a or b makes all four relations false, before and after.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.compiled_dtypes import may_be_computed_in
from tilewright.playbook.analyses.dataflow import Effects, assignments, names_assigned, names_read, reaching
from tilewright.playbook.analyses.expressions import bare, exact_quotient, factor_of, operands_of, text_of
from tilewright.playbook.analyses.ranges import FLOAT, range_of_values
from tilewright.playbook.analyses.removing import without_dead
from tilewright.playbook.analyses.tile_shapes import Shapes, sides_of
from tilewright.playbook.base import HINTS_OF_TILES, Effect, EntryDescription, KernelFacts, NotApplicable, Site, refusal
from tilewright.playbook.rewriting import Rewritable, Rewriting
from tilewright.source.syntax import Changes, Expression, Function, Line, Source

PRODUCT = "product"
_ORDERS = (cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)
_CALLS = ("less", "less_equal", "greater", "greater_equal")


@dataclass(frozen=True)
class ComparedQuotient:
    """A comparison ``node`` of ``other`` with the quotient ``dividend / divisor``.

    ``side`` is the operand that is the quotient, or a ``name`` for it that the comparison alone reads.
    """

    node: Expression
    side: Expression
    other: Expression
    dividend: Expression
    divisor: Expression
    name: str = ""
    line: Line | None = None


class WithoutDivision(Rewriting[Rewritable[Expression]]):
    about = EntryDescription(
        id="comparison",
        name="comparison without division",
        what="a > b / c as a * c > b, where c is at least 1",
        when="a tile of exact quotients that is only compared, with a divisor such as a column + 1",
        when_not="divisors that may be below 1 or infinite; one quotient for a whole row",
        priority={"memory": 2, "balanced": 2, "compute": 4},
        eases=("issue slots", "conversions and special functions", "residency"),
        together=HINTS_OF_TILES,
        order=197,
        effect=Effect(1.02, 1.25, "sparsemax 8192×4096 with one quotient an element 112 → 97.9 µs, H200", "2026-11-29"),
    )
    missing = "no comparison with a quotient begins here"
    most = 6

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        places = [place for place in self.found(source, facts) if not refusal(place.rewrites[PRODUCT])]
        if places and may_be_computed_in(facts, "f64"):
            return []  # a product of float32 would round more than a quotient of float64
        return [place.site(source) for place in places[: self.most]]

    def places(self, source: Source, function: Function) -> Iterator[Rewritable[Expression]]:
        for compared in _compared(source, function):
            rewrites = {PRODUCT: partial(_with_product, source, function, compared)}
            yield Rewritable(compared.node, f"comparison with {_short(source, compared)}", rewrites)


def _compared(source: Source, function: Function) -> Iterator[ComparedQuotient]:
    """Yields each comparison with a quotient, one operand of each."""
    named = {name: (line, value) for line, name, value in assignments(source, function)}
    once = names_assigned(function)
    nodes: list[cst.Comparison | cst.Call] = [
        *source.every(cst.Comparison, function),
        *source.calls(*_CALLS, inside=function),
    ]
    for node in nodes:
        sides = _sides(node)
        for side, other in (sides, sides[::-1]) if sides is not None else ():
            line, name, value = None, "", side
            if isinstance(side, cst.Name) and once[side.value] == 1 and side.value in named:
                name, (line, value) = side.value, named[side.value]
            if (parts := exact_quotient(source, value)) is not None:
                yield ComparedQuotient(node, side, other, *parts, name, line)
                break


def _sides(node: cst.Comparison | cst.Call) -> tuple[Expression, Expression] | None:
    """Returns both operands of an order relation; None for any other comparison."""
    if isinstance(node, cst.Call):
        return operands_of(node) if len(node.args) == 2 else None
    if len(node.comparisons) != 1 or not isinstance(node.comparisons[0].operator, _ORDERS):
        return None
    left, right = sides_of(node)
    return left, right


def _with_product(source: Source, function: Function, compared: ComparedQuotient) -> str:
    """Returns the text with the product in place of the quotient."""
    _check(source, function, compared)
    dividend = compared.dividend
    divided = source.code(bare(dividend) if isinstance(dividend, cst.BinaryOperation) else dividend)
    product = f"{factor_of(source, compared.other)} * {text_of(source, compared.divisor)}"
    changes: Changes = {compared.side: cst.parse_expression(divided), compared.other: cst.parse_expression(product)}
    changed = source.changed(changes)
    return without_dead(changed, function.name.value, [compared.name]).text if compared.name else changed.text


def _check(source: Source, function: Function, compared: ComparedQuotient) -> None:
    """Raises `NotApplicable` if the product might decide otherwise, or if it would not be faster."""
    place = f"{source.name}:{source.place(compared.node)[0]}"
    divisor, shapes, effects = compared.divisor, Shapes(source, function), Effects(source, function)
    what = source.code(divisor)
    found = range_of_values(source, divisor)
    if found is None or found.kind != FLOAT or found.low < 1:
        raise NotApplicable(f"{place}: {what} is not proven to be a float of at least 1 that is not infinite")
    if "float64" in source.code(function):
        raise NotApplicable(f"{place}: the kernel computes in float64, in which {what} may not be")
    quotient, shape = shapes.of(compared.side), shapes.of(compared.node)
    if not quotient or quotient != shape:
        raise NotApplicable(f"{place}: there may be fewer quotients than comparisons")
    if not effects.stores_nothing(compared.node):
        raise NotApplicable(f"{place}: the comparison has side effects")
    if _times_computed(source, function, compared) > 1:
        raise NotApplicable(
            f"{place}: the same quotient is computed elsewhere, too, and may have to be equal to itself"
        )
    if compared.name:
        _check_moved(source, function, compared, place, effects)


def _times_computed(source: Source, function: Function, compared: ComparedQuotient) -> int:
    """Counts the quotients in ``function`` of the same two operands as this one, also under other names."""
    nodes = [*source.every(cst.BinaryOperation, function), *source.calls("truediv", inside=function)]
    quotients = [parts for node in nodes if (parts := exact_quotient(source, node)) is not None]
    written = [tuple(_written(source, part) for part in parts) for parts in quotients]
    return written.count((_written(source, compared.dividend), _written(source, compared.divisor)))


def _written(source: Source, node: Expression) -> str:
    """Returns the text of an operand; for a name, that of its value."""
    while isinstance(node, cst.Name):
        found = reaching(source, node.value, node)
        if found is None or found.value is None:
            break
        node = found.value
    return "".join(source.code(bare(node)).split())


def _check_moved(source: Source, function: Function, compared: ComparedQuotient, place: str, effects: Effects) -> None:
    """Raises `NotApplicable` if a named quotient has another use, or another value at the comparison."""
    name, line = compared.name, compared.line
    assert line is not None
    uses = [node for node in source.every(cst.Name, function.body) if node.value == name]
    statement = next((above for above in source.parents(compared.node) if isinstance(above, cst.BaseStatement)), None)
    if len(uses) != 2 or statement is None or source.parent(statement) is not source.parent(line):
        raise NotApplicable(f"{place}: {name} is read elsewhere, too, or in another block")
    for part in (compared.dividend, compared.divisor):
        for read in names_read(part):
            before, now = reaching(source, read, line), reaching(source, read, compared.node)
            if before is None or now is None or before.node is not now.node:
                raise NotApplicable(f"{place}: {read} may have another value than where {name} is computed")
        if not effects.is_pure(part):
            raise NotApplicable(f"{place}: {name} has side effects, or loads what the kernel may store")


def _short(source: Source, compared: ComparedQuotient) -> str:
    return compared.name or "a quotient"


ENTRY = WithoutDivision()
