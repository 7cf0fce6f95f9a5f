"""Loads the tiles of the next iteration of a loop while the present iteration computes.

The first tiles are loaded before the loop. Each iteration then begins with the loads of the next one, whose values it
does not need. The last iteration loads tiles that nobody reads; beyond the array, such a load reads no memory.

If the address of a tile is loaded, too, as the number of a page is, that load is made two iterations ahead.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import libcst as cst

from tilewright.playbook.analyses.access_hints import is_variable
from tilewright.playbook.analyses.dataflow import names_assigned, names_read, range_of
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.iterations import may_run
from tilewright.playbook.analyses.loads_ahead import Branches, LoadsAhead, LoopLoad, branch_of
from tilewright.playbook.analyses.removing import block_without
from tilewright.playbook.analyses.task_code import fresh_in
from tilewright.playbook.base import HINTS_OF_TILES, Effect, EntryDescription, KernelFacts, Site
from tilewright.playbook.rewriting import Rewritable, Rewriting, starting_with
from tilewright.source.syntax import Changes, Expression, Function, Line, Source, argument, dotted, number

Guarded: TypeAlias = tuple[Branches, str]
"""A statement as text, and the branches in which it runs."""
AHEAD = "one iteration ahead"
HINT = 4
"""The latency hint of loads whose addresses are loaded, too, if they are made ahead."""


@dataclass(frozen=True, eq=False)
class LoadingLoop(Rewritable[cst.For]):
    """A loop with ``loads`` that can be made ahead."""

    loads: Sequence[LoopLoad]


class Prefetch(Rewriting[LoadingLoop]):
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

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        runs = partial(may_run, source, facts.kernel, facts.launches)
        loops = (loop for loop in self.found(source, facts) if any(runs(load.call) for load in loop.loads))
        return [loop.site(source) for loop in itertools.islice(loops, self.most)]

    def places(self, source: Source, function: Function) -> Iterator[LoadingLoop]:
        for loop in source.every(cst.For, function):
            if _counts(source, loop) and (found := LoadsAhead(source, function, loop)).loads:
                what = f"{_named(found.loads)} in the loop over {found.variable}"
                yield LoadingLoop(loop, what, dict(_rewrites(found)), found.loads)


def _rewrites(found: LoadsAhead) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yields the values of a loop, each with its rewrite.

    All loads are made ahead. If the addresses of several are loaded, the first is also made ahead alone, because the
    tiles of all may fill the registers. A latency hint of another length changes the compiler's schedule: in TileGym's
    paged decoding on an H200 (64 sequences of 8,192 tokens, occupancy=2, 2026-11-30), all loads ahead take 1.14 times
    as long as none with the shipped latency=2, because registers spill, and 0.80 times as long with `HINT`.
    """
    dependent = [load for load in found.loads if load.needs]
    yield AHEAD, partial(_ahead, found, found.loads)
    if any(_new_hint(load, HINT) not in (None, number(argument(load.call, "latency"))) for load in dependent):
        yield f"{AHEAD}, latency={HINT}", partial(_ahead, found, found.loads, HINT)
    if len(dependent) > 1:
        yield f"{dependent[0].array} {AHEAD}", partial(_ahead, found, dependent[:1])


def _counts(source: Source, loop: cst.For) -> bool:
    """Returns whether a loop has no other inside, and steps through a range that it does not change."""
    assigned = set(names_assigned(loop.body))
    steps = range_of(loop) and isinstance(loop.target, cst.Name) and not names_read(loop.iter) & assigned
    return bool(steps) and dotted(loop.target) not in assigned and not source.every(cst.For, loop.body)


def _ahead(found: LoadsAhead, chosen: Sequence[LoopLoad], latency: int | None = None) -> str:
    """Returns the text in which the loop makes the loads ``chosen`` ahead.

    latency: the hint of the loads whose addresses are loaded; None keeps theirs.
    """
    source, loop = found.source, found.loop
    needed = list(dict.fromkeys(load for each in chosen for load in each.needs))  # two iterations ahead
    moved = [load for load in chosen if load not in needed]
    unread = found.unread([*moved, *needed])
    read = [load for load in needed if found.is_left(load, moved, unread)]
    new = _names(found, [*needed, *moved])
    this, later = ({load: name.replace("next_", word, 1) for load, name in new.items()} for word in ("this_", "later_"))
    last = {load: later[load] if load in read else new[load] for load in needed}

    def loaded(names: Mapping[LoopLoad, str], load: LoopLoad, steps: int, base: Expression) -> Guarded:
        text = found.text(load, _place(source, loop, steps, base), new, _new_hint(load, latency))
        return load.branches, f"{names[load]} = {_outdented(text)}"

    start = _start(loop)
    before = [loaded(new, load, 0, start) for load in (*needed, *moved)]
    before += [loaded(last, load, 1, start) for load in needed]
    first = list[Guarded]()
    for load in read:
        first += (load.branches, f"{this[load]} = {new[load]}"), (load.branches, f"{new[load]} = {later[load]}")
    for load in moved:
        first += (load.branches, f"{this[load]} = {new[load]}"), loaded(new, load, 1, loop.target)
    first += [loaded(last, load, 2, loop.target) for load in needed]
    top, *others = _statements(source, before)
    above = [top.with_changes(leading_lines=loop.leading_lines), *others]
    calls: Changes = {load.call: cst.Name(this[load]) for load in (*moved, *read)}
    whole: Changes = {loop: lambda new: cst.FlattenSentinel([*above, new.with_changes(leading_lines=())])}
    return source.replaced({**calls, **whole, **_blocks(source, loop, unread, first)})


def _new_hint(load: LoopLoad, latency: int | None) -> int | None:
    """Returns ``latency`` for a load whose address is loaded and whose hint is no variable; None for any other."""
    return latency if load.needs and not is_variable(argument(load.call, "latency")) else None


def _blocks(source: Source, loop: cst.For, unread: Sequence[Line], first: Sequence[Guarded]) -> Changes:
    """Returns the changes of a loop's blocks: without the statements ``unread``, and with ``first`` at the start of the
    loop, or of the branch with which it begins."""
    start: cst.CSTNode = loop.body
    head = next((each for each in loop.body.body if each not in unread), None)
    if isinstance(head, cst.If) and all(branches[:1] == (branch_of(source, head),) for branches, _ in first):
        start, first = head.body, [(branches[1:], text) for branches, text in first]
    added = starting_with(*_statements(source, first))

    def changed(block: cst.CSTNode, new: cst.CSTNode) -> cst.CSTNode:
        if isinstance(block, cst.IndentedBlock) and isinstance(new, cst.IndentedBlock):
            new = block_without(block, new, unread)
        return added(new) if block is start else new

    blocks = dict.fromkeys([start, *filter(None, map(source.parent, unread))])
    return {block: partial(changed, block) for block in blocks}


def _statements(source: Source, lines: Iterable[Guarded]) -> Sequence[cst.BaseStatement]:
    """Returns the statements, each in its branches."""
    text = _guarded(lines, source.module.default_indent)
    return cst.parse_module(text, source.module.config_for_parsing).body


def _guarded(lines: Iterable[Guarded], indent: str) -> str:
    """Returns the text of statements in their branches. Neighbours share the branches that they have in common."""
    text, before = "", Branches()
    for outermost, group in itertools.groupby(lines, lambda line: line[0][:1]):
        if not outermost:
            text += "".join(f"{line}\n" for _, line in group)
            before = ()
            continue
        [(test, holds)] = outermost
        inverted = f"not {test}" if test.isidentifier() else f"not ({test})"
        head = "else" if before == ((test, not holds),) else f"if {test if holds else inverted}"
        inner = _guarded([(branches[1:], line) for branches, line in group], indent)
        text += f"{head}:\n{textwrap.indent(inner, indent)}"
        before = outermost if head != "else" else ()
    return text


def _outdented(text: str) -> str:
    """Returns a call of several lines with its last line at the left."""
    first, *others = text.splitlines()
    space = others[-1][: -len(others[-1].lstrip())] if others else ""
    return "\n".join([first, *(line.removeprefix(space) for line in others)])


def _names(found: LoadsAhead, loads: Sequence[LoopLoad]) -> dict[LoopLoad, str]:
    """Returns a new name for what each load will have loaded next."""
    names: dict[LoopLoad, str] = {}
    for load in loads:
        array = load.array.rpartition(".")[2] or "tile"
        name = fresh_in(found.source, found.function.name.value, f"next_{array}")
        while name in names.values():
            name += "_"
        names[load] = name
    return names


def _start(loop: cst.For) -> Expression:
    bounds = range_of(loop)
    return bounds[0] if len(bounds) > 1 else cst.Integer("0")


def _place(source: Source, loop: cst.For, steps: int, base: Expression) -> str:
    """Returns the value that the loop's variable has so many steps after it was ``base``."""
    bounds = range_of(loop)
    step = bounds[2] if len(bounds) > 2 else cst.Integer("1")
    start, by = number(base), number(step)
    if not steps:
        return source.code(base)
    if start is not None and by is not None:
        return str(start + steps * by)
    way = str(steps * by) if by is not None else text_of(source, step)
    way = f"{steps} * {way}" if by is None and steps > 1 else way
    return way if start == 0 else f"{text_of(source, base)} + {way}"


def _named(loads: Sequence[LoopLoad]) -> str:
    return f"loads of {', '.join(dict.fromkeys(load.array for load in loads))}"


ENTRY = Prefetch()
