"""Moves statements that compute the same value in every iteration of a loop to before the loop.

The front end of cuda-tile 1.7 moves most statements itself: ``scale = ct.load(weight, …)`` gives the same Tile IR
inside and before the loop. It does not move statements under an ``if`` in the loop, so this entry offers only such
statements. A moved tile occupies registers during the whole loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read, parameters
from tilewright.playbook.base import Effect, EntryDescription
from tilewright.playbook.rewriting import Rewritable, Rewriting, moved_up
from tilewright.source.syntax import Function, Line, Source, argument

BEFORE_LOOP = "before the loop"


class Hoisting(Rewriting[Rewritable[Line]]):
    about = EntryDescription(
        id="hoisting",
        name="loop-invariant hoisting",
        what="a conversion, a constant tile or a load that is the same in every iteration, moved before the loop",
        when="the statement is under an if within the loop, from where the compiler does not move it",
        when_not="the statement is directly in the loop's body: cuda-tile moves it itself; branches that are rarely "
        "taken; tiles for which no registers are left",
        priority={"memory": 8, "balanced": 5, "compute": 6},
        eases=("dependent loads", "issue slots", "traffic"),
        order=200,
        effect=Effect.assumed(1.0, 1.1),
    )
    missing = "nothing here that is the same in each iteration"
    most = 6

    def places(self, source: Source, function: Function) -> Iterator[Rewritable[Line]]:
        """Yields assignments under an ``if`` in a loop. Each moves before the outermost loop that keeps its value."""
        effects, counted, given = Effects(source, function), names_assigned(function), parameters(function)
        for statement in source.every(Line, function):
            targets = names_assigned(statement)
            once = targets and all(counted[name] == 1 and name not in given for name in targets)
            if not once or len(statement.body) != 1 or not isinstance(statement.body[0], cst.Assign):
                continue
            calls = source.every(cst.Call, statement)
            unchecked = any(argument(call, "check_bounds") is not None for call in calls)  # the branch may guard it
            loop = _around(source, statement) if calls and not unchecked else None
            if loop is not None and effects.is_pure(statement):
                what = f"{' and '.join(targets)}, the same in each iteration"
                yield Rewritable(statement, what, {BEFORE_LOOP: partial(moved_up, source, statement, loop)})


def _around(source: Source, statement: Line) -> cst.BaseStatement | None:
    """Returns the outermost loop in which a statement under an ``if`` has the same value in each iteration."""
    under_if, outermost = False, None
    for above in source.parents(statement):
        if isinstance(above, (cst.For, cst.While)):
            if names_read(statement) & set(names_assigned(above)):
                break
            outermost = above
        under_if = under_if or (isinstance(above, cst.If) and outermost is None)
    return outermost if under_if else None


ENTRY = Hoisting()
