"""Shows that a loop subtracts a mean from just those elements that an earlier loop sums.

    for n in range(chunks): total = total + x[n]
    for n in range(chunks): d = where(inside, x[n] - mean, 0); squares = squares + d * d

The elements are compared as text, after the names that the loops assign are replaced by their values.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence

import libcst as cst

from tilewright.playbook.analyses.chunk_loops import Chunked
from tilewright.playbook.analyses.dataflow import LOOPS, names_assigned, range_of, reaching, values_by_name
from tilewright.playbook.analyses.expressions import bare
from tilewright.playbook.analyses.loop_sums import Sum
from tilewright.playbook.analyses.masked_tiles import ZERO, MaskLimit, hidden_constant, masked_tiles
from tilewright.playbook.analyses.positions import Total
from tilewright.playbook.analyses.tile_shapes import reshaped, same_elements, tile_call
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Function, Line, Source, argument, dotted

_CHUNK = "chunk_"
"""Stands for the variable of either loop."""


def refuse_other_elements(
    source: Source, function: Function, found: Chunked, loops: tuple[cst.For, cst.For], totals: Sequence[Sum],
    mean: Expression, differences: Sequence[Expression], squares: Line, squared: str,
) -> None:  # fmt: skip
    """Raises `NotApplicable` unless the second loop squares the differences of what the first one sums.

    mean: the mean, as computed from the sum. differences: the subtractions of the mean in the second loop.
    squares: the statement that adds d². squared: the text of d.

    A mask that only the second loop has must end at the row's length, or at the number that divides.
    """
    first, second = loops
    if not _is_difference(source, second, cst.parse_expression(squared), differences, squares):
        raise NotApplicable(f"{squared} is not just the difference between an element and the mean")
    summed = {_expanded(source, first, _bare(source, each.term)) for each in totals}
    subtracted = {_expanded(source, second, _bare(source, _minuend(each))) for each in differences}
    if summed != subtracted:
        raise NotApplicable("the second loop does not subtract the mean from the elements that the first one sums")
    masks = [{_expanded(source, loop, cond) for _, cond in _masked(source, loop)} for loop in loops]
    values = [reaching(source, each.value, each) for each in source.every(cst.Name, mean)]
    parts = [mean, *(each.value for each in values if each is not None and each.value is not None)]
    ends = {source.code(each) for part in parts for each in source.every(cst.BaseExpression, part)}  # type: ignore[type-abstract]
    factor = "1" if len(range_of(second)) > 2 else found.tile
    inside = {
        tile.node for tile in masked_tiles(source, function, second)
        if tile.hides == ZERO and not tile.unknown
        and all(_ends_at(limit, factor, found.tile, ends | {found.length}) for limit in tile.limits)
    }  # fmt: skip
    known = not masks[0] and all(call in inside for call, _ in _masked(source, second))
    if masks[0] != masks[1] and not known:
        raise NotApplicable("the two loops mask their elements in different ways")


def _ends_at(limit: MaskLimit, factor: str, tile: str, ends: Collection[str]) -> bool:
    """Returns whether a comparison holds for the elements of a chunk before one of ``ends``."""
    spans = [(str(extent), times) for extent, times in limit.rest.spans]
    end = str(-limit.rest.total + Total.of(times=1))
    return str(limit.factor) == factor and spans == [(tile, 1)] and end in ends


def differences(source: Source, loop: cst.For, means: Collection[str]) -> list[Expression]:
    """Returns the subtractions of the mean in a loop. Raises `NotApplicable` if the loop uses it in another way.

    means: the names of the mean before the loop.
    """
    pending, seen, found = list(means), set(means), list[Expression]()
    while pending:
        name = pending.pop()
        for node in source.every(cst.Name, loop.body):
            if node.value != name or isinstance(source.parent(node), cst.AssignTarget):
                continue
            use = _subtracted_or_assigned(source, node)
            if use is None:
                raise NotApplicable(f"the second loop does more with {name} than to subtract it")
            if isinstance(use, cst.Name):
                pending += {use.value} - seen
                seen.add(use.value)
            else:
                found.append(use)
    return found


def _subtracted_or_assigned(source: Source, node: cst.CSTNode) -> Expression | None:
    """Returns the subtraction of a mean, or the name to which it is assigned, perhaps reshaped; None for any other
    use."""
    while True:
        above = source.parent(node)
        match above:
            case cst.BinaryOperation(operator=cst.Subtract(), right=right) if right is node:
                return above
            case cst.Arg() if isinstance(call := source.parent(above), cst.Call):
                if tile_call(source, call) == "sub" and call.args[1] is above:
                    return call
                if tile_call(source, call) not in ("reshape", "astype", "broadcast_to") or call.args[0] is not above:
                    return None
                above = call
            case cst.Attribute() if isinstance(call := source.parent(above), cst.Call):
                above = call
            case cst.Subscript(value=value) if value is node:
                pass
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name() as target)]):
                return target
            case _:
                return None
        node = above


def starts_at_zero(source: Source, loop: cst.For, name: str) -> bool:
    """Returns whether a sum is zero before its loop, in every branch that may give it its first value."""
    block = source.parent(loop)
    assert isinstance(block, cst.IndentedBlock)
    for statement in reversed(block.body[: block.body.index(loop)]):
        if times := names_assigned(statement)[name]:
            values = values_by_name(source, statement).get(name, [])
            plain = len(values) == times and not any(source.every(kind, statement) for kind in LOOPS)
            return plain and all(hidden_constant(source, value) == ZERO for value in values)
    found = reaching(source, name, loop)
    return found is not None and found.value is not None and hidden_constant(source, found.value) == ZERO


def _minuend(difference: Expression) -> Expression:
    if isinstance(difference, cst.BinaryOperation):
        return difference.left
    assert isinstance(difference, cst.Call)
    return difference.args[0].value


def _kept(source: Source, node: Expression) -> Expression | None:
    """Returns ``x`` of ``ct.where(mask, x, 0)`` and ``ct.where(mask, 0, x)``; None for any other expression."""
    if not isinstance(node, cst.Call) or tile_call(source, node) != "where":
        return None
    first, second = argument(node, "x", 1), argument(node, "y", 2)
    if first is None or second is None:
        return None
    if hidden_constant(source, second) == ZERO:
        return first
    return second if hidden_constant(source, first) == ZERO else None


def _masked(source: Source, loop: cst.For) -> Iterator[tuple[cst.Call, Expression]]:
    """Yields the masked values in a loop, and their masks."""
    for call in source.every(cst.Call, loop.body):
        cond = argument(call, "cond", 0)
        if _kept(source, call) is not None and cond is not None:
            yield call, cond


def _is_difference(
    source: Source, loop: cst.For, node: Expression, differences: Iterable[Expression], at: cst.CSTNode
) -> bool:
    """Returns whether ``node`` is one of the differences, perhaps masked or reshaped. at: where it stands."""
    if source.code(bare(node)) in [source.code(bare(each)) for each in differences]:
        return True
    if isinstance(node, cst.Name):
        last = reaching(source, node.value, at)
        values = values_by_name(source, loop.body).get(node.value, [])
        known = len(values) == names_assigned(loop.body)[node.value] > 0
        if last is not None:
            values, known = [value for value in values if value is last.value], True
        return known and values != [] and all(_is_difference(source, loop, each, differences, each) for each in values)
    inside = _kept(source, node)
    if inside is None and isinstance(node, cst.Call):
        shaped = reshaped(source, node)
        inside = same_elements(source, node) or (shaped and shaped[0])
    return inside is not None and _is_difference(source, loop, inside, differences, at)


def _bare(source: Source, node: Expression) -> Expression:
    """Returns the elements that are reduced and masked by an expression."""
    match node:
        case cst.Call() if tile_call(source, node) == "sum":
            return _bare(source, node.args[0].value)
        case cst.Name():
            found = reaching(source, node.value, node)
            if found is not None and found.value is not None and _kept(source, found.value) is not None:
                return _bare(source, found.value)
    inside = _kept(source, node)
    return node if inside is None else _bare(source, inside)


def _expanded(source: Source, loop: cst.For, node: Expression) -> str:
    """Returns an expression of a loop's body as text, without the names that the body assigns."""
    new = node.visit(_Expanded(source, loop))
    assert isinstance(new, cst.BaseExpression)
    return ast.unparse(ast.parse(source.code(_parenthesised(new)), mode="eval"))


def _parenthesised(node: Expression) -> Expression:
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


class _Expanded(cst.CSTTransformer):
    """Replaces the names that the body of a loop assigns by their values, and the loop's variable by `_CHUNK`."""

    def __init__(self, source: Source, loop: cst.For) -> None:
        super().__init__()
        self.source, self.loop, self.assigned = source, loop, names_assigned(loop.body)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        name = original_node.value
        if name == dotted(self.loop.target):
            return cst.Name(_CHUNK)
        if name not in self.assigned:
            return updated_node
        found = reaching(self.source, name, original_node)
        if found is None or found.value is None or self.loop not in self.source.parents(found.node):
            raise NotApplicable(f"{name} is not computed from one chunk alone")
        new = found.value.visit(self)
        assert isinstance(new, cst.BaseExpression)
        return _parenthesised(new)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)
