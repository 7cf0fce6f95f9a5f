"""Ends the wait of an access for another one with which it shares no byte.

cuTile orders accesses to one array by tokens. A load waits for the stores to its array before it. A store in a loop
waits for that of the iteration before, unless one of its indices is the loop's own variable. Moving the load in front
of the store ends the first wait, and a loop over the stored index itself ends the second. Both are offered only where
the interpreter has shown that no byte is shared; `findings` lists all other waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, assignments, names_assigned, names_read, range_of
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.independence import waiting
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.records import Value
from tilewright.source.syntax import Function, Source, argument, dotted, elements

OVER_INDEX = "loop over the index"
NEEDED = ": the wait is needed"
SPARED = " on any reduced workload: the wait could be spared (CUDA_TILE_TESTING_DISABLE_TOKEN_ORDER=1 shows the gain)"
GONE: cst.FlattenSentinel[cst.CSTNode] = cst.FlattenSentinel([])


@dataclass(frozen=True, eq=False)
class _Move:
    """A load that may stand further up in its block."""

    load: cst.Call
    statement: cst.SimpleStatementLine
    above: cst.SimpleStatementLine
    passed: tuple[cst.Call, ...]
    """The stores that it no longer waits for afterwards."""


@dataclass(frozen=True, eq=False)
class _Renamed:
    """A loop whose variable only serves to compute the index of a store: ``index = base + variable``."""

    store: cst.Call
    loop: cst.For
    statement: cst.SimpleStatementLine
    index: str
    base: cst.BaseExpression


class Tokens(Entry):
    about = EntryDescription(
        id="tokens",
        name="token chains",
        what="a load in front of the stores that it need not wait for, or a loop over the index that is stored at",
        when="accesses to one array wait for one another, and the interpreter shows that they share no byte",
        when_not="chains that depend on the data, or on shapes beyond the workloads; stores by scatter, and at indices "
        "computed by division, which no source form frees",
        priority={"memory": 9, "balanced": 9, "compute": 10},
        order=140,
        effect=Effect.assumed(1.0, 1.1, kept=0, of=2),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        moves = [one for function in source.tile_code.values() for one in _moves(source, function)]
        loops = [one for function in source.tile_code.values() for one in _renamed(source, function)]
        proven = waiting(facts) if moves or loops else ""
        if isinstance(proven, str):
            return ()
        independent = {(one.place, one.awaited_place) for one in proven if one.independent}
        found: dict[cst.Call, Site] = {}
        for move in moves:  # the furthest way up comes last and stays
            pairs = {(source.place(move.load), source.place(store)) for store in move.passed}
            if pairs <= independent:
                lines = sorted({source.place(call)[0] for call in move.passed})
                where = f"line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}"
                why = f"waits for stores in {where}, with which it shares no byte on any reduced workload"
                found[move.load] = Site.at(source, move.load, "load after a store", (_above(source, move),), why=why)
        for loop in loops:
            place = source.place(loop.store)
            if (place, place) in independent:
                why = "waits for the store of the iteration before, with which it shares no byte"
                found[loop.store] = Site.at(source, loop.store, "store in a loop", (OVER_INDEX,), why=why)
        return list(found.values())

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function, missing = site.function(source), "no access here whose wait a change of source would end"
        if value == OVER_INDEX:
            loops = {loop.store: loop for loop in reversed([*_renamed(source, function)])}
            return _over_index(source, loops[site.node(source, loops, missing)])
        moves = {move.load: move for move in _moves(source, function) if _above(source, move) == value}
        move = moves[site.node(source, moves, missing)]
        return source.replaced({move.above: cst.FlattenSentinel([move.statement, move.above]), move.statement: GONE})

    def findings(self, source: Source, facts: KernelFacts) -> tuple[str, ...]:
        """Every wait in the kernel, or why the waits are not known."""
        proven = waiting(facts)
        if isinstance(proven, str):
            return (f"token chains: not known, {proven}",)
        return tuple(f"token chains: {one}{SPARED if one.independent else NEEDED}" for one in proven)


# A load moved up ----------------------------------------------------------------------------------


def _moves(source: Source, function: Function) -> Iterator[_Move]:
    """For each load in a plain assignment: the places above stores to its array, the nearest first."""
    effects = Effects(source, function)
    for block in source.every(cst.IndentedBlock, function):
        for index, statement in enumerate(block.body):
            if not isinstance(statement, cst.SimpleStatementLine) or not effects.stores_nothing(statement):
                continue
            loads = [call for call in source.every(cst.Call, statement) if effects.is_load(call)]
            if len(loads) == 1 and all(isinstance(one, cst.Assign) for one in statement.body):
                yield from _ways_up(source, effects, statement, loads[0], block.body[:index])


def _ways_up(
    source: Source,
    effects: Effects,
    statement: cst.SimpleStatementLine,
    load: cst.Call,
    before: Sequence[cst.BaseStatement],
) -> Iterator[_Move]:
    reads, gives = names_read(statement), set(names_assigned(statement))
    passed: list[cst.Call] = []
    for above in reversed(before):
        if not isinstance(above, cst.SimpleStatementLine):
            return
        if set(names_assigned(above)) & (reads | gives) or names_read(above) & gives:
            return
        stores = [call for call in source.calls("store", "scatter", inside=above) if _same_array(effects, call, load)]
        passed += stores
        if stores:
            yield _Move(load, statement, above, tuple(passed))


def _same_array(effects: Effects, store: cst.Call, load: cst.Call) -> bool:
    arrays = [
        {name for one in names_read(call.args[0].value) for name in effects.arrays_of(one)} if call.args else set()
        for call in (store, load)
    ]
    return bool(arrays[0] & arrays[1])


def _above(source: Source, move: _Move) -> str:
    return f"above line {source.place(move.above)[0]}"


# A loop over the index ----------------------------------------------------------------------------


def _renamed(source: Source, function: Function) -> Iterator[_Renamed]:
    for loop in source.every(cst.For, function):
        for statement, index, base in _index_of(source, function, loop):
            for store in source.calls("store", inside=loop):
                if index in map(dotted, elements(argument(store, "index", 1)) or []):
                    yield _Renamed(store, loop, statement, index, base)


def _index_of(
    source: Source, function: Function, loop: cst.For
) -> Iterator[tuple[cst.SimpleStatementLine, str, cst.BaseExpression]]:
    """``index = base + variable`` at the top of a loop over ``range(…)`` that uses the variable nowhere else."""
    if not isinstance(loop.target, cst.Name) or len(range_of(loop)) not in (1, 2):
        return
    variable, changing, counted = loop.target.value, set(names_assigned(loop)), names_assigned(function)
    uses = [one for one in source.every(cst.Name, function) if one.value == variable]
    if len(uses) != 2 or counted[variable] != 1:
        return
    for statement, index, value in assignments(source, loop):
        if source.parent(statement) is not loop.body or counted[index] != 1:
            continue
        if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, cst.Add):
            continue
        for one, base in ((value.right, value.left), (value.left, value.right)):
            plain = len(names_assigned(statement)) == 1 and dotted(one) == variable
            if plain and not names_read(base) & changing and Effects(source, function).is_pure(base):
                yield statement, index, base


def _over_index(source: Source, found: _Renamed) -> str:
    base, block = source.code(found.base), found.loop.body
    limits = [f"{base} + {text_of(source, one)}" for one in range_of(found.loop)]
    if found.statement.trailing_whitespace.comment is not None:
        block = block.with_changes(header=found.statement.trailing_whitespace)
    comments = [one for one in found.statement.leading_lines if one.comment is not None]
    loop = found.loop.with_changes(
        target=cst.Name(found.index),
        iter=cst.parse_expression(f"range({', '.join(limits if len(limits) == 2 else [base, *limits])})"),
        body=block.with_changes(body=[one for one in block.body if one is not found.statement]),
        leading_lines=[*found.loop.leading_lines, *comments],
    )
    return source.replaced({found.loop: loop})


ENTRY = Tokens()
