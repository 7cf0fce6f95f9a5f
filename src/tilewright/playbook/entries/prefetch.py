"""Loads the tiles of the next iteration of a loop while the present iteration computes.

The first tiles are loaded before the loop. Each iteration then begins with the loads of the next one, whose values it
does not need. The last iteration loads tiles that nobody reads; beyond the array, such a load reads no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, assignments, names_assigned, names_read, range_of
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.renaming import NewNames
from tilewright.playbook.analyses.task_code import fresh_in
from tilewright.playbook.analyses.tile_shapes import is_true, tile_call
from tilewright.playbook.base import HINTS_OF_TILES, Effect, EntryDescription
from tilewright.playbook.rewriting import Rewritable, Rewriting, starting_with
from tilewright.source.syntax import Changes, Expression, Function, Source, argument, dotted

AHEAD = "one iteration ahead"


class Prefetch(Rewriting[Rewritable[cst.For]]):
    about = EntryDescription(
        id="prefetch",
        name="loads one iteration ahead",
        what="a loop that begins with the loads of its next iteration",
        when="loads wait for memory at the start of each iteration, and registers are left for a second set of tiles",
        when_not="loops whose loads the compiler makes ahead itself, as with TMA; tiles that fill the registers",
        priority={"memory": 4, "balanced": 5, "compute": 8},
        eases=("bytes in flight", "residency", "dependent loads"),
        together=HINTS_OF_TILES,
        order=194,
        effect=Effect.assumed(0.9, 1.4),
    )
    missing = "no loop here whose loads can be made one iteration ahead"
    needs_launch = True
    most = 3

    def places(self, source: Source, function: Function) -> Iterator[Rewritable[cst.For]]:
        for loop, loads in _loops(source, function):
            what = f"{_named(loads)} in the loop over {_target(loop)}"
            yield Rewritable(loop, what, {AHEAD: partial(_ahead, source, loop, loads)})


def _ahead(source: Source, loop: cst.For, loads: Sequence[_Load]) -> str:
    """Returns the text in which the loop makes ``loads`` one iteration ahead."""
    start, step = _start_and_step(source, loop)
    before, first = list[cst.BaseStatement](), list[cst.BaseStatement]()
    calls: dict[cst.CSTNode, cst.Name] = {}
    names = set[str]()
    for load in loads:
        array = dotted(load.call.args[0].value).rpartition(".")[2] or "tile"
        name = fresh_in(source, source.function_of(loop), f"next_{array}")
        while name in names:
            name += "_"
        names.add(name)
        now = name.replace("next_", "this_", 1)
        before.append(cst.parse_statement(f"{name} = {load.text(source, start)}"))
        ahead = load.text(source, f"{_target(loop)} + {step}")
        first += map(cst.parse_statement, (f"{now} = {name}", f"{name} = {ahead}"))
        calls[load.call] = cst.Name(now)
    before[0] = before[0].with_changes(leading_lines=loop.leading_lines)
    whole: Changes = {loop: lambda new: cst.FlattenSentinel([*before, new.with_changes(leading_lines=())])}
    return source.replaced({**calls, **whole, loop.body: starting_with(*first)})


@dataclass(frozen=True, eq=False)
class _Load:
    """A load in a loop. ``given``: for each name in it that the loop assigns, the expression that gives it its value;
    the loop's variable is not among them."""

    call: cst.Call
    given: Mapping[str, Expression]
    variable: str

    def text(self, source: Source, at: str) -> str:
        """Returns the load for the iteration in which the loop's variable is ``at``."""
        return source.code(_put(source, self.call, self.given, self.variable, at))


def _put(source: Source, node: Expression, given: Mapping[str, Expression], variable: str, at: str) -> Expression:
    """Returns an expression with ``at`` in place of the loop's variable, and without names that the loop assigns."""

    class Put(NewNames):
        def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
            if original_node.value == variable:
                return _bracketed(cst.parse_expression(at))
            if original_node.value in given:
                return _bracketed(_put(source, given[original_node.value], given, variable, at))
            return updated_node

        def leave_Element(self, original_node: cst.Element, updated_node: cst.Element) -> cst.Element:
            alone = isinstance(original_node.value, cst.Name)  # an element of a tuple needs no parentheses
            return updated_node.with_changes(value=updated_node.value.with_changes(lpar=(), rpar=())) if alone else (
                updated_node
            )  # fmt: skip

    new = node.visit(Put({}))
    assert isinstance(new, cst.BaseExpression)
    return new


def _bracketed(node: Expression) -> Expression:
    loose = isinstance(node, (cst.BinaryOperation, cst.UnaryOperation, cst.IfExp, cst.Comparison))
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]) if loose and not node.lpar else node


def _loops(source: Source, function: Function) -> Iterator[tuple[cst.For, list[_Load]]]:
    """Yields the innermost loops of a function with loads that can be made one iteration ahead."""
    effects = Effects(source, function)
    for loop in source.every(cst.For, function):
        counts = range_of(loop) and isinstance(loop.target, cst.Name) and _target(loop) not in names_assigned(loop.body)
        if counts and not source.every(cst.For, loop.body) and (loads := list(_loads(source, effects, loop))):
            yield loop, loads


def _loads(source: Source, effects: Effects, loop: cst.For) -> Iterator[_Load]:
    """Yields the loads whose addresses depend only on the loop's variable, and which are not ahead already."""
    variable, assigned = _target(loop), names_assigned(loop.body)
    given: dict[str, Expression] = {}
    carried = set[str]()  # names that the loop reads before it assigns them
    for line, name, value in assignments(source, loop.body):
        read = names_read(value)
        carried |= read - set(given)
        if source.parent(line) is not loop.body or name in carried:
            continue
        loads = [call for call in source.every(cst.Call, value) if effects.is_load(call)]
        inner = [call for call in loads if sum(each in source.every(cst.Call, call) for each in loads) == 1]
        for call in inner:
            address = names_read(call)
            known = not (address & set(assigned)) - set(given) and _depends(address, given, variable)
            if known and _movable(source, effects, call):
                yield _Load(call, dict(given), variable)
        if not loads and assigned[name] == 1 and effects.is_pure(value) and not (read & set(assigned)) - set(given):
            given[name] = value


def _movable(source: Source, effects: Effects, call: cst.Call) -> bool:
    """Returns whether a load is from an array that is not written, with checked bounds."""
    bounds = argument(call, "check_bounds")
    checked = bounds is None or is_true(bounds) is True
    return tile_call(source, call) in ("load", "gather") and effects.is_pure(call) and checked


def _depends(names: set[str], given: Mapping[str, Expression], variable: str) -> bool:
    """Returns whether an expression with these names depends on the loop's variable."""
    return variable in names or any(_depends(names_read(given[name]), given, variable) for name in names & set(given))


def _start_and_step(source: Source, loop: cst.For) -> tuple[str, str]:
    bounds: Sequence[Expression] = range_of(loop)
    start = source.code(bounds[0]) if len(bounds) > 1 else "0"
    return start, text_of(source, bounds[2]) if len(bounds) > 2 else "1"


def _target(loop: cst.For) -> str:
    return dotted(loop.target)


def _named(loads: Sequence[_Load]) -> str:
    arrays = dict.fromkeys(dotted(load.call.args[0].value) for load in loads)
    return f"loads of {', '.join(arrays)}"


ENTRY = Prefetch()
