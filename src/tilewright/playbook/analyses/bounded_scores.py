"""Bounds the scores of an attention by constants of its kernel, as far as the text shows them.

score = ct.tanh(…) * CAP               |score| <= CAP
score = ct.where(seen, score, -1e6)    or masked, in this place
score = score * SCALE                  |score| <= CAP * SCALE, or masked: -1e6 * SCALE
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from tilewright.playbook.analyses.chunk_loops import assigned_value, plain_target
from tilewright.playbook.analyses.constants import is_constant
from tilewright.playbook.analyses.dataflow import names_assigned
from tilewright.playbook.analyses.expressions import LOG2_E, log2_e_names, text_of
from tilewright.playbook.analyses.masked_tiles import LOWEST, filled_with, negated
from tilewright.playbook.analyses.tile_shapes import tile_call
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Function, Line, Source, dotted, number

_AT_MOST_ONE = ("tanh", "sin", "cos")
"""The functions of cuTile whose results are from -1 to 1, or no number."""


@dataclass(frozen=True, eq=False)
class HidingNumber:
    """A number ``fill``, far below all scores, that hides a score. It is multiplied by ``factors`` afterwards."""

    fill: Expression
    factors: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class BoundedScores:
    """Scores of which no absolute value is above the product of ``factors``, but for those that ``masks`` hide, if all
    ``guards`` hold: tests of constants.

    lines: the statements that compute the scores from what bounds them. other: what is not compiled if the guards hold.
    """

    factors: tuple[str, ...]
    masks: tuple[HidingNumber, ...] = ()
    guards: tuple[str, ...] = ()
    lines: frozenset[cst.CSTNode] = frozenset()
    other: frozenset[cst.CSTNode] = frozenset()


def bounded_scores(source: Source, function: Function, node: Expression, after: tuple[str, ...] = ()) -> BoundedScores:
    """Returns the bound of a tile. ``after``: the factors of the tile, for its masks. Raises `NotApplicable`."""
    match node:
        case cst.Name():
            return _named(source, function, node, after)
        case cst.BinaryOperation(operator=cst.Multiply(), left=left, right=right):
            for factor, scaled in ((right, left), (left, right)):
                if is_constant(source, function, factor):
                    text = text_of(source, factor)
                    found = bounded_scores(source, function, scaled, (text, *after))
                    return replace(found, factors=(*found.factors, text))
        case cst.Call() if tile_call(source, node) in _AT_MOST_ONE:
            return BoundedScores(())
        case cst.Call() if (hidden := _hidden(source, node)) is not None:
            shown, fill = hidden
            found = bounded_scores(source, function, shown, after)
            return replace(found, masks=(*found.masks, *_masks(source, fill, after)))
    raise NotApplicable(f"no constant is known to bound {source.code(node)}")


def _named(source: Source, function: Function, node: cst.Name, after: tuple[str, ...]) -> BoundedScores:
    """Follows a name to its assignment. Branches between may only mask it, or constants choose one of them."""
    masks = list[HidingNumber]()
    below: cst.CSTNode = node
    for above in source.parents(node):
        if isinstance(above, (cst.For, cst.While, cst.FunctionDef)):
            break
        if isinstance(above, cst.IndentedBlock):
            body: list[cst.CSTNode] = list(above.body)
            found = _left_in(source, function, body[: body.index(below)], node.value, after, masks)
            if found is not None:
                return found
        below = above
    raise NotApplicable(f"no constant is known to bound {node.value}")


def _left_in(
    source: Source,
    function: Function,
    body: Sequence[cst.CSTNode],
    name: str,
    after: tuple[str, ...],
    masks: list[HidingNumber],
) -> BoundedScores | None:
    """Returns the bound that statements leave in a name; None if they only mask it, by what is added to ``masks``."""
    for statement in reversed([each for each in body if names_assigned(each)[name]]):
        if (value := assigned_value(statement)) is not None:
            found = bounded_scores(source, function, value, after)
            return replace(found, masks=(*found.masks, *masks), lines=found.lines | {statement})
        try:
            masks += list(_only_masks(source, statement, name, after))
        except NotApplicable:
            if not isinstance(statement, cst.If) or not is_constant(source, function, statement.test):
                raise
            return _chosen(source, function, statement, name, after, masks)
    return None


def _chosen(
    source: Source, function: Function, branch: cst.If, name: str, after: tuple[str, ...], masks: list[HidingNumber]
) -> BoundedScores:
    """Returns the bound that one block of a branch leaves in a name, with the test for this block."""
    test, reason = source.code(branch.test), NotApplicable(f"no constant is known to bound {name}")
    for block, dead, guard in ((branch, branch.orelse, test), (branch.orelse, branch.body, negated(test))):
        try:
            body = block.body.body if isinstance(block, (cst.If, cst.Else)) else ()
            if (found := _left_in(source, function, body, name, after, [*masks])) is not None:
                other = found.other if dead is None else found.other | {dead}
                return replace(found, guards=(guard, *found.guards), other=other)
        except NotApplicable as refused:
            reason = refused
    raise reason


def _only_masks(source: Source, branch: cst.CSTNode, name: str, after: tuple[str, ...]) -> Iterator[HidingNumber]:
    """Yields the masks in a branch that changes nothing else of a name."""
    lines = [each for each in source.every(Line, branch) if plain_target(each) == name]
    if not isinstance(branch, cst.If) or len(lines) != names_assigned(branch)[name] or source.every(cst.For, branch):
        raise NotApplicable(f"no constant is known to bound {name} after line {source.place(branch)[0]}")
    for line in lines:
        hidden = _hidden(source, assigned_value(line))
        if hidden is None or dotted(hidden[0]) != name:
            raise NotApplicable(f"no constant is known to bound {name} after line {source.place(line)[0]}")
        yield from _masks(source, hidden[1], after)


def _hidden(source: Source, node: cst.CSTNode | None) -> tuple[Expression, Expression] | None:
    """Returns the scores and the number of ``ct.where(seen, scores, -1e6)``, in either order; None for other nodes."""
    if not isinstance(node, cst.Call) or tile_call(source, node) != "where" or len(node.args) != 3:
        return None
    shown, fill = node.args[1].value, node.args[2].value
    if _is_low(source, shown):
        shown, fill = fill, shown
    return (shown, fill) if _is_low(source, fill) and not _is_low(source, shown) else None


def _is_low(source: Source, node: Expression) -> bool:
    return (value := filled_with(source, node)) is not None and value <= LOWEST


def _masks(source: Source, fill: Expression, after: tuple[str, ...]) -> list[HidingNumber]:
    """Returns the mask of a finite number; -inf stays as it is."""
    return [HidingNumber(fill, after)] if filled_with(source, fill) != -math.inf else []


def product_of(source: Source, factors: Sequence[str]) -> float | str:
    """Returns the product of factors, a number if the text shows it."""
    names = log2_e_names(source)
    values = [LOG2_E if each in names else number(cst.parse_expression(each)) for each in factors]
    known = [each for each in values if each is not None]
    return math.prod(known) if len(known) == len(values) else " * ".join(factors)
