"""Keeps no running maximum of scores that constants of the kernel bound: ``ct.tanh(…) * CAP`` is at most CAP.

    for n in range(steps):                          bounded = 0 < CAP * LOG2_E <= 75.0 and v.dtype in (…)
        score = ct.tanh(score / CAP) * CAP      →   masked = -112.0 / LOG2_E if bounded else -1e6
        score = ct.where(seen, score, -1e6)         …
        higher = max(highest, …)                        if bounded: higher = highest = 0, else as before

The maximum keeps exponentials from becoming too large or too small. A float has the same relative precision at each
scale. So any other number may stand for the maximum if no exponential leaves the range of the dtype. The compiler then
drops the products by a factor of 1, and the reductions. `bounded` is a constant: other caps and float16 keep the old
form.

An exponential is from 2^-75 to 2^75. So 2^20 terms may have values up to 2^31 in float32 and bfloat16, and values from
2^-51 are normal numbers. A masked score has 2^-112, or 0 if it is -inf: at most 2^-37 of any other. It was exactly 0: a
masked value that is 2^20 times as large as the others, such as what a cache held before, now shows. A row that is
masked everywhere is the mean of the values as before, or no number. Only its values under 2^-14 lose precision.

The change is lossy: terms are rounded to bfloat16 before they are multiplied by values. The largest one of a row was 1,
and exact; now it is rounded as all others are, by at most 2^-8. On average over rows with one large score, errors are
1.6 times as large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeAlias

import libcst as cst

from tilewright.playbook.analyses.bounded_scores import BoundedScores, ScoreBounds, product_of
from tilewright.playbook.analyses.chunk_loops import plain_target
from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read, range_of, reaching
from tilewright.playbook.analyses.expressions import imported, text_of
from tilewright.playbook.analyses.loop_bounds import all_of
from tilewright.playbook.analyses.masked_tiles import filled_with
from tilewright.playbook.analyses.online_loops import (
    OnlineLoop,
    Update,
    block_around,
    line_around,
    online_loop,
    reads_of,
    updates_of,
)
from tilewright.playbook.analyses.online_state import refuse_other_reads
from tilewright.playbook.analyses.task_code import fresh_in
from tilewright.playbook.base import (
    HINTS_OF_TILES,
    Effect,
    EntryDescription,
    KernelFacts,
    NotApplicable,
    Site,
    refusal,
    refused_at,
)
from tilewright.playbook.rewriting import Rewritable, Rewriting, preceded
from tilewright.source.syntax import Expression, Function, Line, Source, dotted

NO_MAXIMUM = "no maximum"
LIMITS = {"exp2": 75.0, "exp": 51.9}
"""The largest exponent without a maximum, of 2 and of e."""
MASKED = {"exp2": -112.0, "exp": -77.6}
"""The exponent of a masked score."""
_HIDDEN = -1000.0  # a masked score with a larger exponent may count in the old form
_DTYPES = ("float32", "bfloat16")


class BoundedMaximum(Rewriting[Rewritable[cst.For]]):
    about = EntryDescription(
        id="bounded_maximum",
        name="no maximum of bounded scores",
        what="an online softmax without a running maximum, where a cap bounds the scores; the old form for other caps",
        when="attention that caps its scores by tanh, in bfloat16 or float32",
        when_not="scores without a cap, or one above 51; float16; values above 2^31; huge values behind a finite mask",
        priority={"memory": 6, "balanced": 4, "compute": 2},
        eases=("issue slots", "tile size"),
        together=HINTS_OF_TILES,
        risk="lossy",
        order=137,
        effect=Effect(
            1.05, 1.11, "TileGym's attention for Gemma: 297 → 269 µs, 161 → 152 µs with a window, H200", "2026-12-01"
        ),
    )  # fmt: skip
    missing = "no loop with a maximum of bounded scores begins here"

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        places = self.found(source, facts)
        return [place.site(source) for place in places if not refusal(place.rewrites[NO_MAXIMUM])]

    def places(self, source: Source, function: Function) -> Iterator[Rewritable[cst.For]]:
        """Yields one place for all loops of a function: loops that are copies of each other change together."""
        for loop in source.every(cst.For, function):
            if next(updates_of(source, function, loop), None) is not None:
                rewrites = {NO_MAXIMUM: partial(_rewritten, source, function)}
                yield Rewritable(loop, "running maximum of bounded scores", rewrites)
                return


def _rewritten(source: Source, function: Function) -> str:
    found = [(loop, list(updates_of(source, function, loop))) for loop in source.every(cst.For, function)]
    loops = [_bounded(source, function, loop, updates) for loop, updates in found if updates]
    conditions = {_conditions(source, function, loop, scores) for loop, scores in loops}
    if len(conditions) != 1:
        raise NotApplicable(f"the loops of {function.name.value} have different bounds")
    masks = {(filled_with(source, mask.fill), mask.factors) for _, scores in loops for mask in scores.masks}
    if len(masks) > 1:
        raise NotApplicable("scores are masked by different numbers")
    condition = all_of(conditions.pop()) or "True"
    refuse_other_reads(source, function, [loop for loop, _ in loops], condition)
    return _Writer(source, function, condition).written(loops)


Bounded: TypeAlias = tuple[OnlineLoop, BoundedScores]


def _bounded(source: Source, function: Function, loop: cst.For, updates: Sequence[Update]) -> Bounded:
    """Returns a loop with the bound of its scores. Raises `NotApplicable` with the reason of its last maximum."""
    for update in updates:
        try:
            found = online_loop(source, loop, update)
            scores = ScoreBounds(source, function).of(found.scores)
            _refuse_other_scores(source, function, found, scores)
            return found, scores
        except NotApplicable as reason:
            last = reason
    raise last


def _refuse_other_scores(source: Source, function: Function, loop: OnlineLoop, scores: BoundedScores) -> None:
    """Refuses scores that are read for more than the maximum and the terms: other numbers may hide them now."""
    masks = (each for mask in scores.masks for each in source.parents(mask.fill) if isinstance(each, Line))
    lines = {*scores.lines, *masks} if scores.masks else set()
    last = line_around(source, loop.scores)
    known = {*lines, last, loop.update.statement, *loop.update.other, *scores.other}
    first = min(map(source.place, lines), default=(0, 0))
    for name in sorted({plain_target(line) for line in lines}):
        starts = [source.place(line) for line in loop.loop.body.body if plain_target(line) == name]
        for read in reads_of(source, name, function):
            around, place = set(source.parents(read)), source.place(line_around(source, read))
            is_term = plain_target(last) == name and place > source.place(last)
            here = loop.loop in around
            if here and not (known & around or min(starts, default=first) < place < first or is_term):
                raise refused_at(source, read, f"{name} is read for more than its terms")
            if not here and not any(
                list(updates_of(source, function, each)) for each in around if isinstance(each, cst.For)
            ):
                raise refused_at(source, read, f"{name} is read outside of the loop")


def _conditions(source: Source, function: Function, loop: OnlineLoop, scores: BoundedScores) -> tuple[str, ...]:
    """Returns the tests of constants without which the new form would not hold."""
    limit, bound = LIMITS[loop.exponential], product_of(source, scores.factors)
    found = [*loop.update.guards, *scores.guards, f"0.0 < {bound} <= {limit}"]
    if not isinstance(bound, str):
        if not 0 < bound <= limit:
            raise NotApplicable(f"the exponents are up to {bound:g}: more than {limit:g} leave no room")
        found.pop()
    for mask in scores.masks:
        factor, fill = product_of(source, mask.factors), filled_with(source, mask.fill)
        assert fill is not None
        if isinstance(factor, str):
            found.append(f"{fill} * {factor} < {_HIDDEN}")
        elif fill * factor >= _HIDDEN:
            raise NotApplicable(f"{source.code(mask.fill)} is not far below the scores")
    found += [test for dtype in loop.dtypes if (test := _has_range(source, loop, dtype))]
    changed = names_assigned(function)
    for test in found:
        names = names_read(cst.parse_expression(test))
        if any(changed[name] for name in names if f"{name}.dtype in" not in test):
            raise NotApplicable(f"the names in {test} are assigned")
    return tuple(dict.fromkeys(found))


def _has_range(source: Source, loop: OnlineLoop, dtype: Expression) -> str:
    """Returns the test that a dtype has the exponents of float32; "" if it is such a dtype."""
    if (name := source.tile_name(dotted(dtype))) in _DTYPES:
        return ""
    match dtype:
        case cst.Attribute(value=cst.Name(value=tile), attr=cst.Name(value="dtype")) if not name:
            if not names_assigned(loop.loop)[tile]:
                return f"{tile}.dtype in ({', '.join(imported(source, each) for each in _DTYPES)})"
    raise NotApplicable(f"{source.code(dtype)} may not have the exponents of float32")


class _Writer:
    """Writes the new form of a function's loops."""

    def __init__(self, source: Source, function: Function, condition: str) -> None:
        self.source, self.function, self.condition = source, function, condition
        self.flag = fresh_in(source, function.name.value, "bounded")
        self.fills = dict[str, str]()
        """The text of a masked score → its name."""

    def written(self, loops: Sequence[Bounded]) -> str:
        changes: dict[cst.CSTNode, object] = {}
        for loop, scores in loops:
            changes[loop.update.statement] = self._maximum(loop)
            for mask in scores.masks:
                changes[mask.fill] = cst.Name(self._fill(mask.fill, mask.factors, loop.exponential))
        block = block_around(self.source, [loop.loop for loop, _ in loops])
        around = {each for loop, _ in loops for each in (loop.loop, *self.source.parents(loop.loop))}
        first = next(each for each in block.body if each in around)
        self._refuse_unknown(first)
        lines = [f"{self.flag} = {self.condition}", *(f"{name} = {text}" for text, name in self.fills.items())]
        before: dict[cst.CSTNode, list[cst.CSTNode]] = {first: [cst.parse_statement(line) for line in lines]}
        for loop, _ in loops:
            before.setdefault(loop.loop, []).append(self._scaled(loop))
        changes |= {node: partial(preceded, statements) for node, statements in before.items()}
        return self.source.replaced(changes)  # type: ignore[arg-type]

    def _refuse_unknown(self, first: cst.CSTNode) -> None:
        """Refuses a condition on a tile that does not exist yet where the condition stands."""
        for name in names_read(cst.parse_expression(self.condition)):
            found = reaching(self.source, name, first)
            if found is None or (f"{name}.dtype in" in self.condition and found.node is self.source.module):
                raise NotApplicable(f"{name} is not known before the loops of {self.function.name.value}")

    def _fill(self, fill: Expression, factors: Sequence[str], exponential: str) -> str:
        """Returns the name of the number that hides a score."""
        factor, old = " * ".join(factors), self.source.code(fill)
        found = None if not isinstance(fill, cst.Name) else reaching(self.source, fill.value, fill)
        if "(" in old or (found is not None and found.node is not self.source.module):
            raise NotApplicable(f"{old} is no number where the loops begin")
        divisor = factor if len(factors) == 1 else f"({factor})"
        new = f"{MASKED[exponential]} / {divisor}" if factors else str(MASKED[exponential])
        text = f"{new} if {self.flag} else {old}"
        name = fresh_in(self.source, self.function.name.value, "masked", self.fills.values())
        return self.fills.setdefault(text, name)

    def _maximum(self, loop: OnlineLoop) -> cst.If:
        """Returns the statement that computes the new maximum: the old one and the new one are 0 if it is not needed,
        so that the factor of the sums is the constant 1."""
        old, new = loop.update.old, loop.update.new
        statement = loop.update.statement
        block = cst.IndentedBlock([cst.parse_statement(self._zeros(old, old)), cst.parse_statement(f"{new} = {old}")])
        other = cst.IndentedBlock([statement.with_changes(leading_lines=())])
        return cst.If(cst.Name(self.flag), block, cst.Else(other), leading_lines=statement.leading_lines)

    def _zeros(self, name: str, like: str) -> str:
        zeros, dtype = imported(self.source, "zeros"), imported(self.source, "float32")
        return f"{name} = {zeros}({like}.shape, dtype={dtype})"

    def _scaled(self, loop: OnlineLoop) -> cst.If:
        """Returns the statement that scales the sums before a loop to the maximum 0, if the loop has any iteration."""
        start, end = self._range(loop.loop)
        old, new = loop.update.old, loop.update.new
        lines = [self._zeros(new, old), *loop.before, f"{old} = {new}"]
        test = cst.parse_expression(f"{self.flag} and {start} < {end}")
        return cst.If(test, cst.IndentedBlock([cst.parse_statement(line) for line in lines]))

    def _range(self, loop: cst.For) -> tuple[str, str]:
        bounds = [text_of(self.source, each) for each in range_of(loop)]
        if not Effects(self.source, self.function).is_pure(loop.iter):
            raise NotApplicable("the range of a loop cannot be computed a second time")
        return ("0", bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])


ENTRY = BoundedMaximum()
