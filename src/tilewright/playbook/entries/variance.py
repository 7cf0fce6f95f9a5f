"""Computes the mean and the variance of a row in one pass, by shifted sums.

    for n: total = total + x                   pivot = mean of the first chunk, or 0
    mean = sum(total) / N                      for n: total = total + (x - pivot)
    for n: squares = squares + (x - mean)²  →         squares = squares + (x - pivot)²
    variance = sum(squares) / N                shift = sum(total) / N
                                               mean = pivot + shift
                                               variance = sum(squares) / N - shift²

The row is read once less; its first chunk is read once more. Without a pivot, the difference at the end would lose all
digits of a row whose mean is much larger than its deviation. The mean of a chunk bounds the loss: the first of k chunks
holds 1/k of the row, so shift² is at most some k times the variance, whatever the row holds. If the mean of the
first chunk is smaller than its deviation, the pivot is 0: pivot and shift together have fewer digits of a mean that is
smaller than both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.chunk_loops import Chunked, Pair, first_pair, once, plain_target, site_of_passes
from tilewright.playbook.analyses.dataflow import Effects, assignments, names_assigned, names_read
from tilewright.playbook.analyses.deviations import differences, refuse_other_elements, starts_at_zero
from tilewright.playbook.analyses.expressions import bare, fitting, line_of, text_of
from tilewright.playbook.analyses.loop_sums import Statements, Sum, needed, read_from_outside, sums_of
from tilewright.playbook.analyses.renaming import renamed
from tilewright.playbook.analyses.tile_shapes import rearranged, tile_call
from tilewright.playbook.analyses.unchanged import read_later
from tilewright.playbook.base import (
    HINTS_OF_TILES,
    Effect,
    Entry,
    EntryDescription,
    KernelFacts,
    NotApplicable,
    Site,
    refusal,
    unless_refused,
)
from tilewright.records import Value
from tilewright.source.syntax import Expression, Line, Source, argument, dotted, number

ONE_LOOP = "one loop"


class Variance(Entry):
    about = EntryDescription(
        id="variance",
        name="mean and variance in one pass",
        what="one loop for the mean and the variance of a row, by sums of differences from a pivot, in place of two",
        when="layer norm, group norm or batch norm of rows that do not fit into registers",
        when_not="rows that fit; rows with infinities, whose mean becomes NaN",
        priority={"memory": 1, "balanced": 2},
        eases=("traffic", "bytes in flight", "issue slots"),
        together=HINTS_OF_TILES,
        order=193,
        effect=Effect.assumed(1.1, 1.4),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        kernel = facts.kernel
        moments = unless_refused(_moments, source, kernel) if kernel in source.kernels else None
        if moments is None:
            return []
        what = f"passes for {moments.total} and {moments.squares.name}"
        site = site_of_passes(source, kernel, moments.found, facts, what, ONE_LOOP)
        return [site] if self.applies(source, site) else []

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        return refusal(_moments, source, facts.kernel) if facts.kernel in source.kernels else ""

    def apply(self, source: Source, site: Site, value: Value) -> str:
        kernel = site.function_here(source).name.value
        if value != ONE_LOOP:
            raise NotApplicable(f"'{value}' is no value of this entry; known: {ONE_LOOP}")
        return _fused(source, kernel, _moments(source, kernel)).text


@dataclass(frozen=True, eq=False)
class _Moments:
    """Two loops over the chunks of a row: the first sums the row, the second the squares of differences from its mean.

    total: the name of the sum. squares: the sum of the squares.
    difference: what the loop for the mean would add to the sum, with differences in place of elements.
    mean: the statement that divides the sum. variance: the quotient of the squares, after both loops.
    moved: the statements between the loops that the second loop needs and the first one does not change.
    chain: those that depend on the mean, without the first, which is ``mean``.
    """

    found: Chunked
    loops: Pair
    total: str
    squares: Sum
    difference: str
    mean: Line
    variance: Expression
    moved: Statements
    chain: Statements


def _moments(source: Source, kernel: str) -> _Moments:
    """Finds two loops that may become one. Raises `NotApplicable` with the reason of the last pair."""
    return first_pair(source, kernel, _paired)


def _paired(source: Source, kernel: str, found: Chunked, loops: Pair) -> _Moments:
    if not all(map(source.spelled, ("maximum", "where"))):
        raise NotApplicable(f"{source.name} does not import maximum and where of cuda.tile")
    effects = Effects(source, source.kernels[kernel])
    if not all(effects.is_pure(loop.body) for loop in loops):
        raise NotApplicable(f"{kernel} stores in a loop that computes a mean or a variance")
    totals, squares = (_carried(source, loop) for loop in loops)
    if len({each.name for each in totals}) != 1 or len(squares) != 1:
        raise NotApplicable(f"the loops of {kernel} compute more than a mean and a variance")
    total, squared = totals[0].name, squares[0]
    deviation, around = _squared(source, loops[1], squared.term)
    if {_around(source, each.term) for each in totals} != {around}:
        raise NotApplicable(f"{total} and {squared.name} are not reduced in the same way")
    moved, chain = _parted(source, kernel, loops, found.between(loops))
    if not chain or not plain_target(chain[0]):
        raise NotApplicable("the second loop does not read the mean of the first")
    mean = chain[0]
    assert isinstance(mean, cst.SimpleStatementLine) and isinstance(mean.body[0], cst.Assign)
    _refuse_unless_linear(source, mean.body[0].value, total)
    _refuse_other_reads(source, loops, total, squared.name, mean)
    means = differences(source, loops[1], {target for each in chain for target in names_assigned(each)})
    refuse_other_elements(
        source, source.kernels[kernel], found, loops, totals, mean.body[0].value, means, squared.statement, deviation
    )
    if not starts_at_zero(source, loops[0], total):
        raise NotApplicable(f"{total} does not begin at 0")
    quotient = renamed(mean.body[0].value, {total: squared.name})
    variance = _found_after(source, found, loops[1], source.code(quotient), squared.name)
    line = next(each for each in source.parents(variance) if isinstance(each, cst.BaseStatement))
    if isinstance(line, Line) and set(names_assigned(mean)) & names_read(line) and source.parent(line) is found.block:
        raise NotApplicable(f"{kernel} corrects the variance by the mean")
    difference = around.replace(_INSIDE, deviation) if around else deviation
    return _Moments(found, loops, total, squared, difference, mean, variance, moved, chain[1:])


_INSIDE, _TOTAL = "_tile_that_is_reduced_", "_sum_of_the_row_"
"""Names that stand for the tile in the text of a reduction, and for the sum in a loop that is renamed."""


def _carried(source: Source, loop: cst.For) -> list[Sum]:
    """Returns the sums that a loop carries: nothing else in it assigns them."""
    sums, times = sums_of(source, loop.body), names_assigned(loop.body)
    return [each for each in sums if times[each.name] == sum(other.name == each.name for other in sums)]


def _around(source: Source, term: Expression) -> str:
    """Returns the text of a reduction with a placeholder for its tile; "" for a term that is no reduction."""
    if not isinstance(term, cst.Call) or tile_call(source, term) != "sum":
        return ""
    first, *others = term.args
    return source.code(term.with_changes(args=[first.with_changes(value=cst.Name(_INSIDE)), *others]))


def _squared(source: Source, loop: cst.For, node: Expression) -> tuple[str, str]:
    """Returns the text of d for d², and the text of the reduction around it. Raises `NotApplicable` for other terms."""
    match node:
        case cst.Name(value=name):
            values = [value for _, target, value in assignments(source, loop.body) if target == name]
            if len(values) == 1:
                return _squared(source, loop, values[0])
        case cst.BinaryOperation(operator=cst.Multiply(), left=left, right=right):
            if source.code(left) == source.code(right):
                return source.code(left), ""
        case cst.BinaryOperation(operator=cst.Power(), left=left, right=right) if number(right) == 2:
            return source.code(left), ""
        case cst.Call(args=[first, *others]):
            called, inside = tile_call(source, node), first.value
            if called == "mul" and others and source.code(inside) == source.code(others[0].value):
                return source.code(inside), ""
            if called == "sum" and (found := _squared(source, loop, inside)) and not found[1]:
                return found[0], _around(source, node)
            if called == "where" and (kept := argument(node, "x", 1)) is not None:
                deviation, _ = _squared(source, loop, kept)
                return source.code(node.deep_replace(kept, cst.parse_expression(deviation))), ""
    raise NotApplicable("the second loop sums no squares")


def _parted(
    source: Source, kernel: str, loops: Pair, between: Statements
) -> tuple[list[cst.BaseStatement], list[cst.BaseStatement]]:
    """Returns the statements between the loops that the second one needs: those that do not depend on the first loop,
    and those that do."""
    first, second = loops
    wanted = needed(between, read_from_outside(source, second))
    late, early, chain = set(names_assigned(first)), list[cst.BaseStatement](), list[cst.BaseStatement]()
    for statement in between:
        if depends := bool(names_read(statement) & late):
            late |= names_assigned(statement).keys()
        if statement in wanted:
            (chain if depends else early).append(statement)
    effects, used = Effects(source, source.kernels[kernel]), names_read(first) | set(names_assigned(first))
    for statement in (*early, *chain):
        if not effects.is_pure(statement) or (statement in early and used & set(names_assigned(statement))):
            raise NotApplicable(f"{source.code(statement).strip().splitlines()[-1]} stands between the loops")
    return early, chain


def _refuse_unless_linear(source: Source, quotient: Expression, total: str) -> None:
    """Raises `NotApplicable` unless ``quotient`` is the sum times a number, perhaps reduced or reshaped."""
    reads = [node for node in source.every(cst.Name, quotient) if node.value == total]
    node: cst.CSTNode = reads[0] if len(reads) == 1 else source.module
    while node is not quotient:
        above = source.parent(node)
        match above:
            case cst.Arg() if isinstance(call := source.parent(above), cst.Call) and call.args[0] is above:
                if tile_call(source, call) not in ("sum", "reshape", "astype", "truediv", "mul"):
                    break
                above = call
            case cst.Attribute() if isinstance(call := source.parent(above), cst.Call):
                if rearranged(source, call) is None and dotted(above):
                    break
                above = call
            case cst.Subscript(value=value) if value is node:
                pass
            case cst.BinaryOperation(operator=cst.Divide(), left=left) if left is node:
                pass
            case cst.BinaryOperation(operator=cst.Multiply()):
                pass
            case _:
                break
        node = above
    if node is not quotient:
        raise NotApplicable(f"{source.code(quotient)} is no mean of {total}")


def _refuse_other_reads(source: Source, loops: Pair, total: str, squares: str, mean: Line) -> None:
    """Raises `NotApplicable` if a loop computes more than its sum, or if ``total`` gives more than the mean."""
    for loop, own in zip(loops, (total, squares), strict=True):
        for name in sorted({*names_assigned(loop)} - {own}):
            if read_later(source, loop, name):
                raise NotApplicable(f"the kernel needs {name} after the loop that computes {own}")
    block = source.parent(mean)
    assert isinstance(block, cst.IndentedBlock)
    between = block.body[block.body.index(loops[0]) + 1 : block.body.index(mean)]
    later = plain_target(mean) != total and read_later(source, mean, total)
    if later or any(total in names_read(each) for each in between):
        raise NotApplicable(f"the kernel needs {total} for more than the mean")


def _found_after(source: Source, found: Chunked, loop: cst.For, text: str, squares: str) -> Expression:
    """Returns the quotient ``text`` of the squares after a loop. Raises `NotApplicable` if they are read before it."""
    body = list(found.block.body)
    for statement in body[body.index(loop) + 1 :]:
        if squares not in names_read(statement):
            continue
        reads = [node for node in source.every(cst.Name, statement) if node.value == squares]
        reads = [node for node in reads if not isinstance(source.parent(node), cst.AssignTarget)]
        for node in source.every(cst.BaseExpression, statement):  # type: ignore[type-abstract]
            if len(reads) == 1 and source.code(bare(node)) == text:
                if not names_assigned(statement)[squares] and read_later(source, statement, squares):
                    raise NotApplicable(f"the kernel needs {squares} for more than the variance")
                return node
        break
    raise NotApplicable(f"{squares} is not divided in the same way as the sum: {text}")


# The new loop -------------------------------------------------------------------------------------------


def _fused(source: Source, kernel: str, moments: _Moments) -> Source:
    first, second = moments.loops
    body = list(moments.found.block.body)
    begin, end = body.index(first), body.index(second)
    target, quotient = plain_target(moments.mean), source.code(moments.mean.body[0].value)  # type: ignore[attr-defined]
    shift, pivot = (task_code.fresh_in(source, kernel, name) for name in (f"{target}_shift", f"{target}_pivot"))
    names = {name: task_code.fresh_in(source, kernel, f"{name}_pivot") for each in moments.chain
             for name in names_assigned(each)}  # fmt: skip
    names[target] = pivot
    middle = [each for each in body[begin + 1 : end] if each not in moments.moved]
    at = middle.index(moments.mean)
    shifted = line_of(f"{shift} = {quotient}").with_changes(leading_lines=moments.mean.leading_lines)
    mean = line_of(f"{target} = {pivot} + {shift}").with_changes(trailing_whitespace=moments.mean.trailing_whitespace)
    middle[at : at + 1] = [shifted, mean]
    rest = [_with_shift(source, each, moments.variance, shift) for each in body[end + 1 :]]
    divisor = needed(moments.moved, names_read(moments.mean))
    new_body = [
        *body[:begin], *divisor, *_first_chunk(source, kernel, moments, quotient, pivot),
        *(renamed(_bare(each), names) for each in moments.chain),
        *(each for each in moments.moved if each not in divisor),
        _with_sum(second, moments, names), *middle, *rest,
    ]  # fmt: skip
    return source.changed({moments.found.block: moments.found.block.with_changes(body=new_body)})


def _with_shift(source: Source, statement: cst.BaseStatement, variance: Expression, shift: str) -> cst.BaseStatement:
    """Returns a statement in which ``variance`` is about the mean, not about the pivot."""
    if variance not in source.every(cst.BaseExpression, statement):  # type: ignore[type-abstract]
        return statement
    text = f"{source.code(bare(variance))} - {shift} * {shift}"
    larger = fitting(source, variance, f"{source.spelled('maximum')}({text}, 0.0, propagate_nan=True)")
    new = statement.deep_replace(variance, larger)
    assert isinstance(new, cst.BaseStatement)
    return new


def _first_chunk(source: Source, kernel: str, moments: _Moments, quotient: str, pivot: str) -> list[cst.BaseStatement]:
    """Returns the statements that compute the mean of the first chunk."""
    first, found = moments.loops[0], moments.found
    own = sorted({*names_assigned(first.body), dotted(first.target)})
    names = {name: task_code.fresh_in(source, kernel, f"{name}_first") for name in own}
    total, squared = names[moments.total], task_code.fresh_in(source, kernel, f"{moments.total}_squared")
    lines = [renamed(statement, names) for statement in once(_with_squares(source, first, moments.total, squared))]
    lines.insert(1, line_of(f"{total} = {moments.total}"))
    if not any(squared in names_assigned(line) for line in lines):  # the sum is the tile of the first chunk itself
        lines.append(line_of(f"{squared} = {total} * {total}"))
    share = f"({found.length} / min({found.tile}, {found.length}))"
    mean, square = (
        source.code(renamed(cst.parse_expression(quotient), {moments.total: name})) for name in (total, squared)
    )
    squares = task_code.fresh_in(source, kernel, f"{pivot}_squares")
    return [
        *lines,
        line_of(f"{pivot} = {mean} * {share}"),
        line_of(f"{squares} = {square} * {share}"),
        line_of(f"{pivot} = {source.spelled('where')}(2.0 * {pivot} * {pivot} > {squares}, {pivot}, 0.0)"),
    ]


def _with_squares(source: Source, loop: cst.For, total: str, squared: str) -> cst.For:
    """Returns a loop that computes the reduced squares of a chunk, too, if its sum is one of reduced chunks."""
    for each in sums_of(source, loop.body):
        if each.name == total and _around(source, each.term):
            assert isinstance(each.term, cst.Call)
            tile = text_of(source, each.term.args[0].value)
            added = line_of(f"{squared} = {_around(source, each.term).replace(_INSIDE, f'{tile} * {tile}')}")
            new = loop.visit(_Before(each.statement, added))
            assert isinstance(new, cst.For)
            loop = new
    return loop


def _with_sum(loop: cst.For, moments: _Moments, names: Mapping[str, str]) -> cst.For:
    """Returns the second loop with the sum of the first in it, and with ``names`` of pivots for those of means.

    The sum has another name while others are renamed, because the mean may have its name.
    """
    added = line_of(f"{_TOTAL} = {_TOTAL} + {moments.difference}")
    new = loop.visit(_Before(moments.squares.statement, added))
    assert isinstance(new, cst.For)
    return renamed(renamed(new, names), {_TOTAL: moments.total})


class _Before(cst.CSTTransformer):
    """Puts a statement before another one."""

    def __init__(self, statement: Line, added: Line) -> None:
        super().__init__()
        self.statement, self.added = statement, added

    def leave_SimpleStatementLine(
        self, original_node: Line, updated_node: Line
    ) -> Line | cst.FlattenSentinel[cst.BaseStatement]:
        if original_node is not self.statement:
            return updated_node
        return cst.FlattenSentinel([self.added, updated_node])


def _bare(statement: cst.BaseStatement) -> cst.BaseStatement:
    new = statement.with_changes(leading_lines=())
    assert isinstance(new, cst.BaseStatement)
    return new


ENTRY = Variance()
