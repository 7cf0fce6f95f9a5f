"""Finds the tiles that a loop masks by comparing positions, and the iterations in which the mask matters.

    for n in range(steps):
        …
        score = ct.where(columns <= rows, score, -inf)     columns grow with n

If no element of the comparison holds, the tile is *hidden*: the iteration sees nothing but -inf. If all elements hold,
the tile is *visible*, and the mask changes nothing. Both follow from the sums that `positions` computes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from tilewright.playbook.analyses.dataflow import LOOPS, names_assigned, range_of, reaching, values_by_name
from tilewright.playbook.analyses.positions import LAYOUTS, LoopPositions, Position, Total, comparisons
from tilewright.playbook.analyses.tile_shapes import new_axes, reshaped, tile_call
from tilewright.source.syntax import Expression, Function, Source, argument, dotted, number

ZERO, LOW, FIXED = "zero", "low", "fixed"
"""What a hidden tile holds: zeros, numbers whose exponential is 0 beside that of any score, or other numbers that are
the same in all iterations."""
LOWEST = -1e4
"""Numbers up to this one count as minus infinity."""
ONE_LESS = Total.of(times=-1)
EQUALS = re.compile(r"(\w+) == (\d+)")
"""A test whether a name is a number."""
_DEPTH = 4
_FLIPPED: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.LessThan: cst.GreaterThanEqual, cst.LessThanEqual: cst.GreaterThan,
    cst.GreaterThan: cst.LessThanEqual, cst.GreaterThanEqual: cst.LessThan,
}  # fmt: skip


@dataclass(frozen=True)
class MaskLimit:
    """A comparison that must hold where a tile is visible: ``factor · n + rest <= 0``, with the loop's variable n.

    guards: the conditions of the branches in which the comparison is made.
    """

    factor: Total
    rest: Position
    guards: tuple[str, ...] = ()

    @property
    def is_end(self) -> bool:
        """Whether the comparison fails from some n on; otherwise it fails up to some n."""
        return next(iter(self.factor.products.values())) > 0

    def bound(self, *, fully: bool) -> str:
        """Returns the end, or the start, of the iterations in which some elements of the tile are visible, or all of
        them (``fully``)."""
        before, bound, factor = self._ends(fully)
        if factor.constant != 1 and before.size < bound.size:  # a large limit plus the factor may overflow
            return f"{_quotient(before, factor)} + 1"
        return _quotient(bound, factor)

    def exact(self, *, fully: bool) -> Total | None:
        """Returns `bound` as a sum; None if it is a quotient."""
        _, bound, factor = self._ends(fully)
        return bound if factor.constant == 1 else None

    def _ends(self, fully: bool) -> tuple[Total, Total, Total]:
        """Returns the last value before the bound and the bound, both times the factor, and the factor."""
        rest, factor = self.rest.end(highest=fully), self.factor
        if self.is_end:  # n <= -rest / factor
            return -rest, -rest + factor, factor
        return rest + ONE_LESS, rest + -factor + ONE_LESS, -factor


def _quotient(total: Total, factor: Total) -> str:
    if factor.constant == 1:
        return str(total)
    [(product, times)] = factor.products.items()
    divisor = str(times) if not product else product[0] if times == 1 else f"({times} * {product[0]})"
    text, is_factor = str(total), [*total.products.values()] == [1] and all(len(each) == 1 for each in total.products)
    return f"{text} // {divisor}" if is_factor or text.isdigit() else f"({text}) // {divisor}"


@dataclass(frozen=True, eq=False)
class MaskedTile:
    """One masked value in a loop.

    node: the expression whose value is ``shown`` where the mask lets it through.
    hides: what a hidden tile holds: `ZERO`, `LOW` or `FIXED`.
    limits: the known comparisons; all must hold where an element is visible.
    unknown: the guards of each comparison that is not known.
    guards: the conditions under which the value is masked at all.
    onsets: the comparisons among them that hold from some iteration on: ``if n >= first_masked:``.
    """

    node: Expression
    shown: Expression
    hides: str
    limits: tuple[MaskLimit, ...]
    unknown: tuple[tuple[str, ...], ...]
    guards: tuple[str, ...]
    onsets: tuple[MaskLimit, ...] = ()


def masked_tiles(source: Source, function: Function, loop: cst.For) -> list[MaskedTile]:
    """Returns the masked values in the body of a loop whose variable is a name, but not those of loops inside it."""
    if not isinstance(loop.target, cst.Name) or not range_of(loop) or dotted(loop.target) in names_assigned(loop.body):
        return []
    masks, step = _Masks(source, function, loop), range_of(loop)[2:]
    if step and not (number(step[0]) or 0) > 0 and dotted(step[0]) not in masks.positions.extents:
        return []  # the loop may run backwards
    calls = [call for call in source.every(cst.Call, loop.body) if tile_call(source, call) == "where"]
    found = (masks.of(call) for call in calls if masks.is_directly_inside(call))
    return [each for each in found if each is not None]


@dataclass
class _Masks:
    source: Source
    function: Function
    loop: cst.For
    positions: LoopPositions = field(init=False)

    def __post_init__(self) -> None:
        self.positions = LoopPositions(self.source, self.function, self.loop)

    def is_directly_inside(self, node: cst.CSTNode) -> bool:
        around = next(above for above in self.source.parents(node) if isinstance(above, (*LOOPS, cst.Lambda)))
        return around is self.loop

    def of(self, call: cst.Call) -> MaskedTile | None:
        """Returns the masked value of ``ct.where(mask, x, low)``, ``ct.where(mask, low, x)`` or ``x + ct.where(…)``."""
        given = [argument(call, name, place) for place, name in enumerate(("cond", "x", "y"))]
        around = self._guards(call)
        if None in given or around is None:
            return None
        guards, onsets = around
        mask, first, second = given
        assert mask is not None and first is not None and second is not None
        hides = [hidden_constant(self.source, each) for each in (first, second)]
        node: Expression = call
        above = self.source.parent(call)
        if isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.Add) and set(hides) == {ZERO, LOW}:
            node, shown, hidden = above, above.right if above.left is call else above.left, LOW
            holds = hides[1] == LOW
        elif hides[1] is not None:
            shown, hidden, holds = first, hides[1], True
        elif hides[0] is not None:
            shown, hidden, holds = second, hides[0], False
        elif (fixed := [self.positions.is_invariant(each) for each in (first, second)]).count(True) == 1:
            shown, hidden, holds = (first if fixed[1] else second), FIXED, fixed[1]
        else:
            return None
        limits, unknown = list[MaskLimit](), list[tuple[str, ...]]()
        for limit in self._conditions(mask, holds, call, guards):
            if isinstance(limit, MaskLimit):
                limits.append(limit)
            else:
                unknown.append(limit)
        if not limits:
            return None
        tests, later = (*guards, *onsets), tuple(onsets.values())
        return MaskedTile(node, shown, hidden, tuple(limits), tuple(unknown), tests, later)

    def _guards(self, node: cst.CSTNode) -> tuple[tuple[str, ...], dict[str, MaskLimit]] | None:
        """Returns the conditions of the branches around ``node`` in the loop, and those that hold from some iteration
        on. None for any other condition that changes in the loop."""
        found, onsets, below = list[str](), dict[str, MaskLimit](), node
        for above in self.source.parents(node):
            if above is self.loop:
                return tuple(found), onsets
            if isinstance(above, cst.If):
                test = self.source.code(above.test)
                if self.positions.is_invariant(above.test):
                    found.insert(0, test if below is above.body else negated(test))
                elif (onset := self._onset(above.test)) is not None and below is above.body:
                    onsets[test] = onset
                else:
                    return None
            if isinstance(above, cst.IfExp):
                return None
            below = above
        return None

    def _onset(self, test: Expression) -> MaskLimit | None:
        if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
            return None
        [(left, operator, right)] = comparisons(test)
        limit = self._limit(left, type(operator), right, ())
        return None if limit is None or limit.is_end else limit

    # Conditions -----------------------------------------------------------------------------------------

    def _conditions(
        self, mask: Expression, holds: bool, at: cst.CSTNode, guards: tuple[str, ...]
    ) -> Iterator[MaskLimit | tuple[str, ...]]:
        """Yields the comparisons that must hold where a tile is visible, or the guards of one that is not known.

        holds: whether the mask is true where the tile is visible.
        """
        match mask:
            case cst.BinaryOperation(operator=operator) if isinstance(operator, cst.BitAnd if holds else cst.BitOr):
                yield from self._conditions(mask.left, holds, at, guards)
                yield from self._conditions(mask.right, holds, at, guards)
                return
            case cst.UnaryOperation(operator=cst.BitInvert()):
                yield from self._conditions(mask.expression, not holds, at, guards)
                return
            case cst.Comparison() if holds or len(mask.comparisons) == 1:
                for left, compared, right in comparisons(mask):
                    kind = type(compared) if holds else _FLIPPED.get(type(compared))
                    yield self._limit(left, kind, right, guards) or guards
                return
            case cst.Subscript() if new_axes(mask) is not None:
                yield from self._conditions(mask.value, holds, at, guards)
                return
            case cst.Call():
                shaped = reshaped(self.source, mask)
                name = tile_call(self.source, mask)
                inside = shaped[0] if shaped else mask.args[0].value if name in LAYOUTS and mask.args else None
                if inside is not None:
                    yield from self._conditions(inside, holds, at, guards)
                    return
                if name == "full" and dotted(argument(mask, "fill_value", 1) or mask) == str(holds):
                    return
            case cst.Name(value=name):
                yield from self._named(name, holds, at, guards)
                return
        yield guards

    def _named(
        self, name: str, holds: bool, at: cst.CSTNode, guards: tuple[str, ...]
    ) -> Iterator[MaskLimit | tuple[str, ...]]:
        """Yields the comparisons of the mask that ``name`` holds at ``at``. It may grow in branches:

        mask = columns < length
        if CAUSAL:
            mask = mask & (columns <= rows)
        """
        found = reaching(self.source, name, at)
        if found is not None:
            known = found.value is not None and self.positions.assigned[name] > 0
            yield from self._conditions(found.value, holds, found.node, guards) if known and found.value else (guards,)
            return
        grown = self._branch_before(name, at)
        if grown is None:
            yield guards
            return
        branch, value = grown
        inside = self._guards(value)
        if inside is None or inside[1]:
            yield guards
            return
        added = tuple(dict.fromkeys((*guards, *inside[0])))
        kept = list(self._conditions(value, holds, value, added))
        earlier = list(self._named(name, holds, branch, guards))
        limits = [each for each in kept if isinstance(each, MaskLimit)]
        if any(isinstance(each, MaskLimit) and not any(_equal(each, other) for other in limits) for each in earlier):
            yield guards  # the branch makes the mask looser, not stricter
            return
        yield from earlier
        repeated = [each for each in earlier if isinstance(each, MaskLimit)]
        for each in kept:
            if not (isinstance(each, MaskLimit) and any(_equal(each, other) for other in repeated)):
                yield each

    def _branch_before(self, name: str, at: cst.CSTNode) -> tuple[cst.If, Expression] | None:
        """Returns the last branch without ``else`` before ``at`` that assigns ``name`` once, and the assigned value."""
        below: cst.CSTNode = at
        for above in self.source.parents(at):
            if isinstance(above, cst.IndentedBlock):
                before = above.body[: next(place for place, each in enumerate(above.body) if each is below)]
                for statement in reversed(before):
                    if not names_assigned(statement)[name]:
                        continue
                    if not isinstance(statement, cst.If) or statement.orelse is not None:
                        return None
                    values = [
                        line.value for line in self.source.every(cst.Assign, statement.body)
                        if len(line.targets) == 1 and dotted(line.targets[0].target) == name
                    ]  # fmt: skip
                    read = values and name in {each.value for each in self.source.every(cst.Name, values[0])}
                    once = len(values) == names_assigned(statement)[name] == 1
                    return (statement, values[0]) if once and read else None
            if above is self.loop:
                return None
            below = above
        return None

    def _limit(
        self, left: Expression, kind: type[cst.BaseCompOp] | None, right: Expression, guards: tuple[str, ...]
    ) -> MaskLimit | None:
        """Returns ``left <= right``, or another comparison, as a limit. None if it does not depend on the iteration, or
        is not understood."""
        lower, higher = self.positions.of(left), self.positions.of(right)
        if lower is None or higher is None or kind is None or kind not in _FLIPPED:
            return None
        if kind in (cst.GreaterThan, cst.GreaterThanEqual):
            lower, higher = higher, lower
        difference = lower + -higher
        if kind in (cst.LessThan, cst.GreaterThan):
            difference = difference + Position(Total.of(times=1))
        parts = difference.parted(dotted(self.loop.target))
        if parts is None or len(parts[0].products) != 1:
            return None
        [(product, times)] = parts[0].products.items()
        positive = not product or (len(product) == 1 and product[0] in self.positions.extents)
        return MaskLimit(*parts, guards) if positive and times else None


def _equal(first: MaskLimit, second: MaskLimit) -> bool:
    return first.factor == second.factor and first.rest == second.rest


def negated(test: str) -> str:
    if match := EQUALS.fullmatch(test):
        return f"{match[1]} != {match[2]}"
    return f"not {test}" if test.isidentifier() else f"not ({test})"


def hidden_constant(source: Source, node: Expression) -> str | None:
    """Returns `ZERO` or `LOW` for a constant, or a tile filled with it; None for anything else."""
    value = filled_with(source, node)
    return None if value is None else ZERO if value == 0 else LOW if value <= LOWEST else None


def filled_with(source: Source, node: Expression, depth: int = 0) -> float | None:
    """Returns the value of a constant, or of a tile filled with it; None for anything else."""
    if (value := number(node)) is not None:
        return value
    if dotted(node).endswith(("NEG_INF", "neg_inf")) and "." in dotted(node):
        return -math.inf
    match node:
        case cst.UnaryOperation(operator=cst.Minus()):
            inside = source.code(node.expression).replace("'", '"')
            return -math.inf if inside in ('float("inf")', "math.inf", "np.inf") else None
        case cst.Call() if source.code(node).replace("'", '"') == 'float("-inf")':
            return -math.inf
        case cst.Call() if tile_call(source, node) == "zeros":
            return 0.0
        case cst.Call() if tile_call(source, node) == "full" and depth < _DEPTH:
            filled = argument(node, "fill_value", 1)
            return None if filled is None else filled_with(source, filled, depth + 1)
        case cst.Name(value=name) if depth < _DEPTH:
            found = reaching(source, name, node)
            if found is not None and found.value is not None:
                return filled_with(source, found.value, depth + 1)
            if found is not None and found.node is source.module:
                values = values_by_name(source, source.module).get(name, ())
                return filled_with(source, values[0], depth + 1) if len(values) == 1 else None
    return None


def loops_with_masks(source: Source, function: Function) -> Iterator[tuple[cst.For, Sequence[MaskedTile]]]:
    """Yields the loops of a function that mask tiles, with the masked values."""
    for loop in source.every(cst.For, function):
        if found := masked_tiles(source, function, loop):
            yield loop, found
