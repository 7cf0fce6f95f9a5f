"""Bounds the scores of an attention by constants of its kernel, as far as the text shows them.

score = ct.tanh(…) * CAP               |score| <= CAP
score = ct.where(seen, score, -1e6)    or masked, in this place
score = score * SCALE                  |score| <= CAP * SCALE, or masked: -1e6 * SCALE
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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


@dataclass(frozen=True)
class ScoreBounds:
    """Finds bounds in a function. ``after``: the factors by which a tile is multiplied afterwards, for its masks."""

    source: Source
    function: Function

    def of(self, node: Expression, after: tuple[str, ...] = ()) -> BoundedScores:
        """Returns the bound of a tile. Raises `NotApplicable`."""
        match node:
            case cst.Name():
                return self._named(node, after)
            case cst.BinaryOperation(operator=cst.Multiply(), left=left, right=right):
                for factor, scaled in ((right, left), (left, right)):
                    if is_constant(self.source, self.function, factor):
                        text = text_of(self.source, factor)
                        found = self.of(scaled, (text, *after))
                        return replace(found, factors=(*found.factors, text))
            case cst.Call() if tile_call(self.source, node) in _AT_MOST_ONE:
                return BoundedScores(())
            case cst.Call() if (hidden := self._hidden(node, after)) is not None:
                shown, masks = hidden
                found = self.of(shown, after)
                return replace(found, masks=(*found.masks, *masks))
        raise _unbounded(self.source.code(node))

    def _named(self, node: cst.Name, after: tuple[str, ...]) -> BoundedScores:
        """Follows a name to its assignment. Branches between may only mask it, or constants choose one of them."""
        masks = list[HidingNumber]()
        below: cst.CSTNode = node
        for above in self.source.parents(node):
            if isinstance(above, (cst.For, cst.While, cst.FunctionDef)):
                break
            if isinstance(above, cst.IndentedBlock):
                body: list[cst.CSTNode] = list(above.body)
                found = self._left_in(body[: body.index(below)], node.value, after, masks)
                if found is not None:
                    return found
            below = above
        raise _unbounded(node.value)

    def _left_in(
        self, body: Sequence[cst.CSTNode], name: str, after: tuple[str, ...], masks: list[HidingNumber]
    ) -> BoundedScores | None:
        """Returns the bound that statements leave in a name; None if they only mask it, which adds to ``masks``."""
        for statement in reversed([each for each in body if names_assigned(each)[name]]):
            if (value := assigned_value(statement)) is not None:
                found = self.of(value, after)
                return replace(found, masks=(*found.masks, *masks), lines=found.lines | {statement})
            try:
                masks += self._only_masks(statement, name, after)
            except NotApplicable:
                if not isinstance(statement, cst.If) or not is_constant(self.source, self.function, statement.test):
                    raise
                return self._chosen(statement, name, after, masks)
        return None

    def _chosen(
        self, branch: cst.If, name: str, after: tuple[str, ...], masks: Sequence[HidingNumber]
    ) -> BoundedScores:
        """Returns the bound that one block of a branch leaves in a name, with the test for this block."""
        test, reason = self.source.code(branch.test), _unbounded(name)
        for block, dead, guard in ((branch, branch.orelse, test), (branch.orelse, branch.body, negated(test))):
            try:
                body = block.body.body if isinstance(block, (cst.If, cst.Else)) else ()
                if (found := self._left_in(body, name, after, [*masks])) is not None:
                    other = found.other if dead is None else found.other | {dead}
                    return replace(found, guards=(guard, *found.guards), other=other)
            except NotApplicable as refused:
                reason = refused
        raise reason

    def _only_masks(self, branch: cst.CSTNode, name: str, after: tuple[str, ...]) -> list[HidingNumber]:
        """Returns the masks in a branch that changes nothing else of a name."""
        source, found = self.source, list[HidingNumber]()
        lines = [each for each in source.every(Line, branch) if plain_target(each) == name]
        if (
            not isinstance(branch, cst.If)
            or len(lines) != names_assigned(branch)[name]
            or source.every(cst.For, branch)
        ):
            raise _unbounded(f"{name} after line {source.place(branch)[0]}")
        for line in lines:
            hidden = self._hidden(assigned_value(line), after)
            if hidden is None or dotted(hidden[0]) != name:
                raise _unbounded(f"{name} after line {source.place(line)[0]}")
            found += hidden[1]
        return found

    def _hidden(self, node: cst.CSTNode | None, after: tuple[str, ...]) -> tuple[Expression, list[HidingNumber]] | None:
        """Returns the scores of ``ct.where(seen, scores, -1e6)``, in either order, and what hides them: nothing for
        -inf, which stays as it is. None for other nodes."""
        if not isinstance(node, cst.Call) or tile_call(self.source, node) != "where" or len(node.args) != 3:
            return None
        values = {arg.value: filled_with(self.source, arg.value) for arg in node.args[1:]}
        low = [each for each, value in values.items() if value is not None and value <= LOWEST]
        if len(low) != 1:
            return None
        [shown] = values.keys() - low
        return shown, [] if values[low[0]] == -math.inf else [HidingNumber(low[0], after)]


def _unbounded(what: str) -> NotApplicable:
    return NotApplicable(f"no constant is known to bound {what}")


def product_of(source: Source, factors: Sequence[str]) -> float | str:
    """Returns the product of factors, a number if the text shows it."""
    names = log2_e_names(source)
    values = [LOG2_E if each in names else number(cst.parse_expression(each)) for each in factors]
    known = [each for each in values if each is not None]
    return math.prod(known) if len(known) == len(values) else " * ".join(factors)
