"""Moves statements that compute the same value in every iteration of a loop to before the loop.

The front end of cuda-tile 1.7 moves most statements itself: ``scale = ct.load(weight, …)`` gives the same Tile IR
inside and before the loop. It does not move statements under an ``if`` in the loop, so this entry offers only such
statements. A moved tile occupies registers during the whole loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import libcst as cst

from tilewright.playbook.analyses.dataflow import LOOPS, Effects, names_assigned, names_read
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.records import Value
from tilewright.source.syntax import Function, Line, Source

BEFORE_LOOP = "before the loop"
MOST_SITES = 6


class Hoisting(Entry):
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

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found = (line for function in source.tile_code.values() for line, _ in _invariant(source, function))
        named = [(line, " and ".join(names_assigned(line))) for line in itertools.islice(found, MOST_SITES)]
        return [Site.at(source, line, f"{names}, the same in each iteration", (BEFORE_LOOP,)) for line, names in named]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        loops = dict(_invariant(source, site.function(source))) if value == BEFORE_LOOP else {}
        statement = site.node(source, loops, "nothing here that is the same in each iteration")
        block, loop = source.parent(statement), loops[statement]
        assert isinstance(block, cst.IndentedBlock)
        left = [Line([cst.Pass()])] if len(block.body) == 1 else []
        changed = source.changed({statement: cst.FlattenSentinel(left)})
        place = source.place(loop)
        again = next(each for kind in LOOPS for each in changed.every(kind) if changed.place(each) == place)
        return changed.replaced({again: cst.FlattenSentinel([statement, again])})


def _invariant(source: Source, function: Function) -> Iterator[tuple[Line, cst.For | cst.While]]:
    """Yields assignments under an ``if`` in a loop, each with the outermost loop that does not change its value."""
    effects, counted = Effects(source, function), names_assigned(function)
    for statement in source.every(Line, function):
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


ENTRY = Hoisting()
