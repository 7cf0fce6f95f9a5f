"""Removes the wait of an access for another access, if the two access no common byte.

cuTile orders the accesses to one array by tokens. A load waits for the earlier stores to its array. To remove this
wait, the load is moved before the store. A store in a loop waits for the store of the previous iteration, unless one of
its indices is the loop's variable. To remove this wait, the stored index becomes the loop's variable. Both changes are
offered only if the interpreter has shown that the two accesses have no common byte. `findings` lists all waits.
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
from tilewright.source.syntax import Expression, Function, Line, Source, argument, dotted, elements

OVER_INDEX = "loop over the index"
NEEDED = ": the wait is needed"
SPARED = " on any reduced workload: the wait is not needed (CUDA_TILE_TESTING_DISABLE_TOKEN_ORDER=1 shows the gain)"
GONE: cst.FlattenSentinel[cst.CSTNode] = cst.FlattenSentinel([])


@dataclass(frozen=True, eq=False)
class _Move:
    """A ``load`` whose ``statement`` may move up, before the statement ``above``.

    After the move, the load no longer waits for the stores in ``passed``.
    """

    load: cst.Call
    statement: Line
    above: Line
    passed: tuple[cst.Call, ...]


@dataclass(frozen=True, eq=False)
class _IndexLoop:
    """A ``loop`` that reads its variable only in ``statement``: ``index = base + variable``. ``index`` is an index of
    ``store``."""

    store: cst.Call
    loop: cst.For
    statement: Line
    index: str
    base: Expression


class Tokens(Entry):
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

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        moves = [move for function in source.tile_code.values() for move in _moves(source, function)]
        loops = [loop for function in source.tile_code.values() for loop in _index_loops(source, function)]
        proven = waiting(facts) if moves or loops else ""
        if isinstance(proven, str):
            return []
        independent = {(wait.place, wait.awaited_place) for wait in proven if wait.independent}
        found: dict[cst.Call, Site] = {}
        for move in moves:  # the last move of a load is the longest, and overwrites the others
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
        function, missing = site.function(source), "no access here whose wait can be removed"
        if value == OVER_INDEX:
            loops = {loop.store: loop for loop in reversed([*_index_loops(source, function)])}
            return _over_index(source, loops[site.node(source, loops, missing)])
        moves = {move.load: move for move in _moves(source, function) if _above(source, move) == value}
        move = moves[site.node(source, moves, missing)]
        return source.replaced({move.above: cst.FlattenSentinel([move.statement, move.above]), move.statement: GONE})

    def findings(self, source: Source, facts: KernelFacts) -> tuple[str, ...]:
        """Lists every wait in the kernel, or the reason why the waits are not known."""
        proven = waiting(facts)
        if isinstance(proven, str):
            return (f"token chains: not known, {proven}",)
        return tuple(f"token chains: {wait}{SPARED if wait.independent else NEEDED}" for wait in proven)


def _moves(source: Source, function: Function) -> Iterator[_Move]:
    """Yields the moves of each load to places before earlier stores to its array, the shortest move first. The load
    must be in a plain assignment."""
    effects = Effects(source, function)
    for block in source.every(cst.IndentedBlock, function):
        for index, statement in enumerate(block.body):
            if not isinstance(statement, Line) or not effects.stores_nothing(statement):
                continue
            loads = [call for call in source.every(cst.Call, statement) if effects.is_load(call)]
            if len(loads) == 1 and all(isinstance(part, cst.Assign) for part in statement.body):
                yield from _ways_up(effects, statement, loads[0], block.body[:index])


def _ways_up(effects: Effects, statement: Line, load: cst.Call, before: Sequence[cst.BaseStatement]) -> Iterator[_Move]:
    """Yields the moves of one load over the statements ``before`` it, until a statement must stay before the load."""
    reads, assigns = names_read(statement), set(names_assigned(statement))
    passed: list[cst.Call] = []
    for above in reversed(before):
        if not isinstance(above, Line):
            return
        if set(names_assigned(above)) & (reads | assigns) or names_read(above) & assigns:
            return
        stores = effects.source.calls("store", "scatter", inside=above)
        stores = [store for store in stores if _arrays(effects, store) & _arrays(effects, load)]
        passed += stores
        if stores:
            yield _Move(load, statement, above, tuple(passed))


def _arrays(effects: Effects, call: cst.Call) -> set[str]:
    names = names_read(call.args[0].value) if call.args else ()
    return {array for name in names for array in effects.arrays_of(name)}


def _above(source: Source, move: _Move) -> str:
    return f"above line {source.place(move.above)[0]}"


def _index_loops(source: Source, function: Function) -> Iterator[_IndexLoop]:
    for loop in source.every(cst.For, function):
        for statement, index, base in _index_of(source, function, loop):
            for store in source.calls("store", inside=loop):
                if index in map(dotted, elements(argument(store, "index", 1)) or []):
                    yield _IndexLoop(store, loop, statement, index, base)


def _index_of(source: Source, function: Function, loop: cst.For) -> Iterator[tuple[Line, str, Expression]]:
    """Finds ``index = base + variable`` in a loop over ``range(…)`` that reads its variable nowhere else.

    Yields the statement, the name ``index`` and the expression ``base``.
    """
    if not isinstance(loop.target, cst.Name) or len(range_of(loop)) not in (1, 2):
        return
    variable, changing, counted = loop.target.value, set(names_assigned(loop)), names_assigned(function)
    uses = [node for node in source.every(cst.Name, function) if node.value == variable]
    if len(uses) != 2 or counted[variable] != 1:
        return
    for statement, index, value in assignments(source, loop):
        if source.parent(statement) is not loop.body or counted[index] != 1:
            continue
        if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, cst.Add):
            continue
        for operand, base in ((value.right, value.left), (value.left, value.right)):
            plain = len(names_assigned(statement)) == 1 and dotted(operand) == variable
            if plain and not names_read(base) & changing and Effects(source, function).is_pure(base):
                yield statement, index, base


def _over_index(source: Source, found: _IndexLoop) -> str:
    """Returns the text with the stored index as the loop's variable."""
    base, block = source.code(found.base), found.loop.body
    limits = [f"{base} + {text_of(source, limit)}" for limit in range_of(found.loop)]
    if found.statement.trailing_whitespace.comment is not None:
        block = block.with_changes(header=found.statement.trailing_whitespace)
    comments = [line for line in found.statement.leading_lines if line.comment is not None]
    loop = found.loop.with_changes(
        target=cst.Name(found.index),
        iter=cst.parse_expression(f"range({', '.join(limits if len(limits) == 2 else [base, *limits])})"),
        body=block.with_changes(body=[line for line in block.body if line is not found.statement]),
        leading_lines=[*found.loop.leading_lines, *comments],
    )
    return source.replaced({found.loop: loop})


ENTRY = Tokens()
