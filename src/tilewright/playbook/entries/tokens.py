"""Removes the wait of an access for another access, if the two access no common byte.

cuTile orders the accesses to one array by tokens. A load waits for the earlier stores to its array. To remove this
wait, the load is moved before the store. A store in a loop waits for the store of the previous iteration, unless one of
its indices is the loop's variable. To remove this wait, the stored index becomes the loop's variable. Both changes are
offered only if the interpreter has shown that the two accesses have no common byte. `findings` lists all waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, counted_indices, names_assigned, names_read, range_of
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.independent_accesses import waiting
from tilewright.playbook.base import Effect, EntryDescription, KernelFacts, Site
from tilewright.playbook.rewriting import Rewritable, Rewriting, moved_up
from tilewright.source.syntax import Expression, Function, Line, Source, argument, dotted, elements

OVER_INDEX = "loop over the index"
NEEDED = ": the wait is needed"
SPARED = " on any reduced workload: the wait is not needed (CUDA_TILE_TESTING_DISABLE_TOKEN_ORDER=1 shows the gain)"


@dataclass(frozen=True, eq=False)
class _Access(Rewritable[cst.Call]):
    """A load or store that no longer waits for ``stores`` after the last of its rewrites."""

    stores: tuple[cst.Call, ...]


class Tokens(Rewriting[_Access]):
    about = EntryDescription(
        id="tokens",
        name="token chains",
        what="removes needless waits: moves a load before stores to other bytes, or makes a store's index the loop's "
        "variable",
        when="accesses to one array wait for one another, and the interpreter shows that they share no byte",
        when_not="chains that depend on the data, or on shapes beyond the workloads; stores by scatter, and at indices "
        "computed by division: no change of the source removes these waits",
        priority={"memory": 9, "balanced": 9, "compute": 10},
        eases=("dependent loads", "bytes in flight"),
        order=140,
        effect=Effect.assumed(1.0, 1.1, kept=0, of=2),
    )
    missing = "no access here whose wait can be removed"

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        accesses = self.found(source, facts)
        proven = waiting(facts) if accesses else ""
        if isinstance(proven, str):
            return []
        independent = {(wait.place, wait.awaited_place) for wait in proven if wait.independent}
        found: dict[cst.Call, Site] = {}
        for access in accesses:  # the last move of a load is the longest, and overwrites the others
            place, stores = source.place(access.node), [source.place(store) for store in access.stores]
            if {(place, store) for store in stores} <= independent:
                lines = ", ".join(str(line) for line in sorted({line for line, _ in stores}))
                why = f"shares no byte on any reduced workload with the stores that it waits for (line {lines})"
                found[access.node] = access.site(source, why, tuple(access.rewrites)[-1:])
        return list(found.values())

    def findings(self, source: Source, facts: KernelFacts) -> tuple[str, ...]:
        """Lists every wait in the kernel, or the reason why the waits are not known."""
        proven = waiting(facts)
        if isinstance(proven, str):
            return (f"token chains: not known, {proven}",)
        return tuple(f"token chains: {wait}{SPARED if wait.independent else NEEDED}" for wait in proven)

    def places(self, source: Source, function: Function) -> Iterator[_Access]:
        effects = Effects(source, function)
        for statement in source.every(Line, function):
            loads = [call for call in source.every(cst.Call, statement) if effects.is_load(call)]
            plain = all(isinstance(part, cst.Assign) for part in statement.body) and effects.stores_nothing(statement)
            if plain and len(loads) == 1:
                yield from _ways_up(effects, statement, loads[0])
        yield from _stores_in_loops(effects)


def _ways_up(effects: Effects, statement: Line, load: cst.Call) -> Iterator[_Access]:
    """Yields the moves of a load to places before earlier stores to its array, the shortest move first. The moves end
    at a statement that must stay before the load."""
    source, block = effects.source, effects.source.parent(statement)
    assert isinstance(block, cst.IndentedBlock)
    reads, assigns = names_read(statement), set(names_assigned(statement))
    ways: dict[str, Callable[[], str]] = {}
    passed: tuple[cst.Call, ...] = ()
    for above in reversed(block.body[: block.body.index(statement)]):
        if not isinstance(above, Line) or not assigns.isdisjoint(names_read(above)):
            return
        if not set(names_assigned(above)).isdisjoint(reads | assigns):
            return
        stores = source.calls("store", "scatter", inside=above)
        if stores := [store for store in stores if not _arrays(effects, store).isdisjoint(_arrays(effects, load))]:
            passed = (*passed, *stores)
            ways = {**ways, f"above line {source.place(above)[0]}": partial(moved_up, source, statement, above)}
            yield _Access(load, "load after a store", ways, passed)


def _arrays(effects: Effects, call: cst.Call) -> set[str]:
    names = names_read(call.args[0].value) if call.args else ()
    return {array for name in names for array in effects.arrays_of(name)}


def _stores_in_loops(effects: Effects) -> Iterator[_Access]:
    """Yields the stores in a loop at an index that the loop counts up. The index may be the loop's variable."""
    source = effects.source
    for loop, line, index, base in counted_indices(source, effects.function):
        over_index = {OVER_INDEX: partial(_over_index, source, loop, line, index, base)}
        for store in source.calls("store", inside=loop) if effects.is_pure(base) else ():
            if index in map(dotted, elements(argument(store, "index", 1)) or []):
                yield _Access(store, "store in a loop", over_index, (store,))


def _over_index(source: Source, loop: cst.For, line: Line, index: str, base: Expression) -> str:
    """Returns the text with the stored index as the loop's variable."""
    first, block = source.code(base), loop.body
    limits = [f"{first} + {text_of(source, limit)}" for limit in range_of(loop)]
    if line.trailing_whitespace.comment is not None:
        block = block.with_changes(header=line.trailing_whitespace)
    new = loop.with_changes(
        target=cst.Name(index),
        iter=cst.parse_expression(f"range({', '.join([first, *limits][-2:])})"),
        body=block.with_changes(body=[each for each in block.body if each is not line]),
        leading_lines=[*loop.leading_lines, *(empty for empty in line.leading_lines if empty.comment is not None)],
    )
    return source.replaced({loop: new})


ENTRY = Tokens()
