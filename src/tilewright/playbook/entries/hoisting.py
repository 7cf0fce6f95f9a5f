"""Moves what every iteration of a loop computes alike in front of the loop.

The front end of cuda-tile 1.7 does most of this itself: the Tile IR is the same with ``scale = ct.load(weight, …)``
inside the loop or before it. It leaves alone what stands under an ``if`` in the loop, and that is offered here. A moved
tile occupies registers during the whole loop. No gain is recorded yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from tilewright.playbook.analyses.dataflow import LOOPS, Effects, names_assigned, names_read
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.records import Value
from tilewright.source.syntax import Function, Source

BEFORE_LOOP = "before the loop"
MOST_SITES = 6


class Hoisting(Entry):
    about = EntryDescription(
        id="hoisting",
        name="loop-invariant hoisting",
        what="a conversion, a constant tile or a load that is the same in every iteration, moved before the loop",
        when="it stands under an if within the loop, where the compiler does not move it",
        when_not="directly in the loop's body, from where cuda-tile moves it itself; branches that are rarely taken; "
        "tiles for which no registers are left",
        priority={"memory": 8, "balanced": 5, "compute": 6},
        order=200,
        effect=Effect.assumed(1.0, 1.1),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        statements = [one for function in source.tile_code.values() for one, _ in _invariant(source, function)]
        named = [(one, " and ".join(names_assigned(one))) for one in statements[:MOST_SITES]]
        return [Site.at(source, one, f"{names}, the same in each iteration", (BEFORE_LOOP,)) for one, names in named]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        loops = dict(_invariant(source, site.function(source))) if value == BEFORE_LOOP else {}
        statement = site.node(source, loops, "nothing here that is the same in each iteration")
        return _hoisted(source, statement, loops[statement])


def _invariant(source: Source, function: Function) -> Iterator[tuple[cst.SimpleStatementLine, cst.For | cst.While]]:
    """Assignments under an ``if`` in a loop, with the outermost loop in which they do not change."""
    effects, counted = Effects(source, function), names_assigned(function)
    for statement in source.every(cst.SimpleStatementLine, function):
        plain = len(statement.body) == 1 and isinstance(statement.body[0], cst.Assign)
        targets = set(names_assigned(statement))
        if not plain or not targets or any(counted[name] != 1 for name in targets):
            continue
        if not source.every(cst.Call, statement) or not effects.is_pure(statement):
            continue
        under_if, outermost = False, None
        for above in source.parents(statement):
            if isinstance(above, cst.FunctionDef):
                break
            under_if = under_if or (isinstance(above, cst.If) and outermost is None)
            if isinstance(above, LOOPS):
                if names_read(statement) & set(names_assigned(above)):
                    break
                outermost = above
        if under_if and isinstance(outermost, (cst.For, cst.While)):
            yield statement, outermost


def _hoisted(source: Source, statement: cst.SimpleStatementLine, loop: cst.For | cst.While) -> str:
    block = source.parent(statement)
    assert isinstance(block, cst.IndentedBlock)
    left = [cst.SimpleStatementLine([cst.Pass()])] if len(block.body) == 1 else []
    changed = source.changed({statement: cst.FlattenSentinel(left)})
    place = source.place(loop)
    again = next(one for kind in LOOPS for one in changed.every(kind) if changed.place(one) == place)
    return changed.replaced({again: cst.FlattenSentinel([statement, again])})


ENTRY = Hoisting()
