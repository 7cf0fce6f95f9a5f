"""Computes facts about integers and pointers along each axis of a tile: contiguity, divisibility, constancy.

The definitions are the same as in Triton's own analysis. Along an axis, the elements form groups of ``contiguity``
neighbours that increase by one. The first element of each group is a multiple of ``divisibility``. Groups of
``constancy`` neighbours are equal. All three numbers are powers of two. Divisibility of pointers is in bytes. The facts
come from the kernel's signature, from hints such as `tl.multiple_of`, and from arithmetic. As in Triton, the rules for
division and remainder assume that the dividend is not negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.languages.tileir_from_triton.aliasing import branches_of
from tilewright.languages.tileir_from_triton.ttir import Dense, SsaValue, TtirBlock, TtirOp, ValueType

MOST = 1 << 30
Numbers = tuple[int, ...]


@dataclass(frozen=True)
class AxisFacts:
    """The facts about a value, for each axis. A scalar has one axis, of one element."""

    contiguity: Numbers
    divisibility: Numbers
    constancy: Numbers
    value: int | None = None
    """The common value of all elements; None if it is unknown."""

    def divisible(self, axis: int, group: int) -> int:
        """Returns the number that divides the first element of each group of ``group`` elements along ``axis``."""
        own = self.contiguity[axis]
        return self.divisibility[axis] if own in (1, group) else min(self.divisibility[axis], group)


def power_of_two(number: int) -> int:
    """Returns the largest power of two that divides the number."""
    return min(number & -number, MOST) if number else MOST


def unknown(kind: ValueType) -> AxisFacts:
    ones = (1,) * max(1, len(kind.shape))
    return AxisFacts(ones, ones, ones)


def same(number: int, kind: ValueType) -> AxisFacts:
    """Returns the facts about a tile whose elements all equal ``number``."""
    ones, shape = (1,) * max(1, len(kind.shape)), kind.shape or (1,)
    return AxisFacts(ones, (power_of_two(number),) * len(ones), shape, number)


class Axes:
    """The facts about all integers and pointers of a kernel, by value."""

    def __init__(self, function: TtirOp) -> None:
        self.facts: dict[SsaValue, AxisFacts] = {}
        blocks = function.regions[0]
        attributes = function.attributes.get("arg_attrs") or [{}] * len(blocks[0].arguments)
        for parameter, said in zip(blocks[0].arguments, attributes, strict=True):
            divisor = int(said.get("tt.divisibility", 1))
            self.facts[parameter] = replace(unknown(parameter.type), divisibility=(divisor,))
        for block in blocks:
            self._block(block)
            for label, passed in branches_of(block.ops[-1]):
                target = next(one for one in blocks if one.label == label)
                for argument, value in zip(target.arguments, passed, strict=True):
                    self.facts[argument] = self._met(self.facts.get(argument), self[value])

    def __getitem__(self, value: SsaValue) -> AxisFacts:
        return self.facts.get(value) or unknown(value.type)

    def alignment(self, pointers: SsaValue) -> tuple[int, int, int]:
        """Returns (bytes, every, axis) for the axis with the best facts.

        Along ``axis``, the address of every ``every``-th element is a multiple of ``bytes``.
        """
        facts = self[pointers]
        axis = max(range(len(facts.contiguity)), key=lambda at: (facts.contiguity[at], facts.divisibility[at]))
        return facts.divisibility[axis], facts.contiguity[axis], axis

    def is_promised(self, op: TtirOp) -> bool:
        """Returns whether the kernel promises an alignment of the result, for example by `tl.multiple_of`."""
        return any(f"tt.{name}" in op.attributes for name in ("contiguity", "divisibility"))

    def _block(self, block: TtirBlock) -> None:
        for op in block.ops:
            if op.regions:
                self._region(op)
            elif op.results:
                self.facts[op.results[0]] = self._hinted(op, self._result(op))

    def _result(self, op: TtirOp) -> AxisFacts:
        rule = RULES.get(op.name)
        if rule is None or not _tracked(op.type):
            return unknown(op.type)
        try:
            return rule(op, [self[value] for value in op.operands])
        except (LookupError, ValueError, TypeError):  # an operation in an unknown form; the translation reports it
            return unknown(op.type)

    def _hinted(self, op: TtirOp, facts: AxisFacts) -> AxisFacts:
        """Adds the promises about the result to ``facts``: `tl.multiple_of`, `tl.max_contiguous` and
        `tl.max_constancy`."""

        def most(name: str, known: Numbers) -> Numbers:
            said = op.attributes.get(f"tt.{name}")
            if not isinstance(said, Dense):
                return known
            numbers = said.values if isinstance(said.values, list) else [said.values] * len(known)
            return tuple(map(max, map(power_of_two, numbers), known))

        return AxisFacts(
            most("contiguity", facts.contiguity), most("divisibility", facts.divisibility),
            most("constancy", facts.constancy), facts.value,
        )  # fmt: skip

    # Regions --------------------------------------------------------------------------------------------------------

    def _region(self, op: TtirOp) -> None:
        """Computes the facts inside an operation with regions.

        The computation for a loop is repeated until the facts about the carried values no longer change. It ends,
        because facts can only become weaker.
        """
        if op.name == "scf.for":
            block, carried = op.body(), op.body().arguments[1:]
            self._start(carried, op.operands[3:])
            low, step = self[op.operands[0]], self[op.operands[2]]
            divisor = min(low.divisibility[0], step.divisibility[0])
            self.facts[block.arguments[0]] = replace(unknown(block.arguments[0].type), divisibility=(divisor,))
            self._repeat([block], lambda: zip(carried, block.ops[-1].operands, strict=True))
            self._start(op.results, carried)
        elif op.name == "scf.while":
            (before,), (after,) = op.regions
            self._start(before.arguments, op.operands)

            def through() -> Sequence[tuple[SsaValue, SsaValue]]:
                return list(zip(before.arguments, after.ops[-1].operands, strict=True))

            self._repeat([before, after], through, (after.arguments, before))
            self._start(op.results, before.ops[-1].operands[1:])
        else:
            for blocks in op.regions:
                for block in blocks:
                    self._block(block)
            if op.name == "scf.if":
                ends = [blocks[0].ops[-1].operands for blocks in op.regions if blocks]
                for result, *values in zip(op.results, *ends, strict=True):
                    self.facts[result] = self._met(self[values[0]], self[values[-1]])

    def _repeat(self, blocks: Sequence[TtirBlock], carried: Callable[[], object], passed: object = None) -> None:
        changed = True
        while changed:
            for block in blocks:
                if passed and block is blocks[-1]:
                    self._start(passed[0], passed[1].ops[-1].operands[1:])  # type: ignore[index]
                self._block(block)
            changed = False
            for argument, value in carried():  # type: ignore[attr-defined]
                met = self._met(self[argument], self[value])
                changed, self.facts[argument] = changed or met != self[argument], met

    def _start(self, values: Sequence[SsaValue], sources: Sequence[SsaValue]) -> None:
        for value, source in zip(values, sources, strict=True):
            self.facts[value] = self[source]

    @staticmethod
    def _met(one: AxisFacts | None, other: AxisFacts) -> AxisFacts:
        """Returns the facts that are true in both cases: for a value described by ``one`` or by ``other``."""
        if one is None or one == other:
            return other
        groups = tuple(map(min, one.contiguity, other.contiguity))
        divisors = (min(one.divisible(at, n), other.divisible(at, n)) for at, n in enumerate(groups))
        return AxisFacts(groups, tuple(divisors), tuple(map(min, one.constancy, other.constancy)))


def _tracked(kind: ValueType) -> bool:
    return not kind.descriptor and not kind.is_float


# Rules for operations -------------------------------------------------------------------------------------------------

Rule = Callable[[TtirOp, "list[AxisFacts]"], AxisFacts]


def _constant(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    value = op.attributes["value"]
    value = value.values if isinstance(value, Dense) else value
    return same(int(value), op.type) if isinstance(value, int) else unknown(op.type)


def _range(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    return AxisFacts(op.type.shape, (power_of_two(int(op.attributes["start"])),), (1,))


def _splat(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    count = max(1, len(op.type.shape))
    return AxisFacts((1,) * count, operands[0].divisibility[:1] * count, op.type.shape or (1,), operands[0].value)


def _expand(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    """Returns the facts about a tile with a new axis.

    A group along the new axis has one element. So the divisibility along this axis is the divisibility of the least
    divisible element.
    """
    facts, axis = operands[0], int(op.attributes["axis"])
    every = min(facts.divisible(at, 1) for at in range(len(facts.contiguity)))

    def widened(numbers: Numbers, new: int) -> Numbers:
        return (*numbers[:axis], new, *numbers[axis:])

    parts = (widened(facts.contiguity, 1), widened(facts.divisibility, every), widened(facts.constancy, 1))
    return AxisFacts(*parts, facts.value)


def _broadcast(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    before, facts = op.operands[0].type.shape, operands[0]
    sizes = zip(op.type.shape, before, facts.constancy, strict=True)
    return replace(facts, constancy=tuple(new if new != old else own for new, old, own in sizes))


def _transpose(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    facts, order = operands[0], op.attributes["order"]

    def turned(numbers: Numbers) -> Numbers:
        return tuple(numbers[at] for at in order)

    return AxisFacts(turned(facts.contiguity), turned(facts.divisibility), turned(facts.constancy), facts.value)


def _unchanged(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    return operands[0]


def _sum(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    """Returns the facts about a sum, or about a pointer plus an offset in elements.

    A sum is contiguous where one operand is contiguous and the other operand is constant.
    """
    left, right = operands
    scale = op.type.bits // 8 if op.name == "tt.addptr" else 1
    if left.value is not None and right.value is not None and not op.type.pointer:
        return same(left.value + (right.value if op.name != "arith.subi" else -right.value), op.type)
    groups = []
    for at in range(len(left.contiguity)):
        other = 1 if op.name == "arith.subi" else min(left.constancy[at], right.contiguity[at])
        groups.append(max(min(left.contiguity[at], right.constancy[at]), other))
    divisors = (min(left.divisible(at, n), right.divisible(at, n) * scale) for at, n in enumerate(groups))
    return AxisFacts(tuple(groups), tuple(divisors), tuple(map(min, left.constancy, right.constancy)))


def _product(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    left, right = operands
    if left.value is not None and right.value is not None:
        return same(left.value * right.value, op.type)
    if right.value == 1 or left.value == 1:
        return left if right.value == 1 else right
    count = range(len(left.contiguity))
    divisors = (min(left.divisible(at, 1) * right.divisible(at, 1), MOST) for at in count)
    return AxisFacts((1,) * len(count), tuple(divisors), tuple(map(min, left.constancy, right.constancy)))


def _shift(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    by = operands[1].value
    if by is None or not 0 <= by < 31:
        return unknown(op.type)
    return _product(op, [operands[0], same(1 << by, op.type)])


def _quotient(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    """Returns the facts about a quotient.

    The quotient is constant within a group that does not cross a multiple of the divisor. This is certain if the group
    starts at a multiple of the largest power of two that divides the divisor, and is not longer than this power.
    """
    left, right = operands
    if right.value == 1:
        return left
    grouped = [
        min(left.contiguity[at], left.divisibility[at], right.divisibility[at])
        if right.constancy[at] >= left.contiguity[at] else 1
        for at in range(len(left.contiguity))
    ]  # fmt: skip
    kept = map(min, left.constancy, right.constancy)
    ones = (1,) * len(grouped)
    return AxisFacts(ones, ones, tuple(map(max, grouped, kept)))


def _remainder(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    """Returns the facts about a remainder.

    The remainder increases by one within a group that does not cross a multiple of the divisor (see `_quotient`).
    """
    left, right = operands
    groups = tuple(
        max(1, min(left.contiguity[at], left.divisibility[at], right.divisibility[at]))
        if right.constancy[at] >= left.contiguity[at] else 1
        for at in range(len(left.contiguity))
    )  # fmt: skip
    divisors = (min(left.divisible(at, n), right.divisible(at, 1)) for at, n in enumerate(groups))
    return AxisFacts(groups, tuple(divisors), tuple(map(min, left.constancy, right.constancy)))


def _either(op: TtirOp, operands: list[AxisFacts]) -> AxisFacts:
    """Returns the facts about a selection: each element comes from one of the last two operands."""
    left, right = operands[-2:]
    divisors = tuple(min(left.divisible(at, 1), right.divisible(at, 1)) for at in range(len(left.contiguity)))
    constancy = tuple(map(min, left.constancy, right.constancy))
    for facts in operands[:-2]:
        constancy = tuple(map(min, constancy, facts.constancy)) if op.operands[0].type.shape else constancy
    return AxisFacts((1,) * len(divisors), divisors, constancy)


RULES: dict[str, Rule] = {
    "arith.constant": _constant, "tt.make_range": _range, "tt.splat": _splat, "tt.expand_dims": _expand,
    "tt.broadcast": _broadcast, "tt.trans": _transpose, "arith.shli": _shift, "arith.muli": _product,
    **dict.fromkeys(("arith.extsi", "arith.extui", "arith.trunci", "tt.ptr_to_int", "tt.int_to_ptr"), _unchanged),
    **dict.fromkeys(("arith.addi", "arith.subi", "tt.addptr"), _sum),
    **dict.fromkeys(("arith.divsi", "arith.divui"), _quotient),
    **dict.fromkeys(("arith.remsi", "arith.remui"), _remainder),
    **dict.fromkeys(("arith.select", "arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui"), _either),
}  # fmt: skip
