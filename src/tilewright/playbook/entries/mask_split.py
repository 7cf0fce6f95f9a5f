"""Computes a mask only in the iterations that need it: on the diagonal, at the edge of a window, in the last tile.

    for n in range(end):                                   for n in range(min(full, end)):
        score = ct.where(columns <= rows, score, -inf)  →      …
                                                           for n in range(max(full, 0), end):
                                                               score = ct.where(columns <= rows, score, -inf)

A window has two edges: three loops, and only the one between them computes no mask. The order of the iterations stays
the same, and a mask that is true everywhere changes nothing. So the result is equal to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, breaks_of, names_assigned, names_read, parameters
from tilewright.playbook.analyses.decided_limits import NEVER, DecidedLimits
from tilewright.playbook.analyses.loop_bounds import (
    Header,
    LoopBound,
    all_of,
    counted,
    greatest,
    guarded,
    least,
    masked_if,
    masked_loops,
    others_of,
    placed,
)
from tilewright.playbook.analyses.masked_tiles import MaskedTile, loops_with_masks, negated
from tilewright.playbook.analyses.task_code import fresh_in
from tilewright.playbook.analyses.unmasked import moves_down, unmasked
from tilewright.playbook.base import (
    HINTS_OF_TILES,
    Effect,
    Entry,
    EntryDescription,
    KernelFacts,
    NotApplicable,
    Site,
    unless_refused,
)
from tilewright.records import Value
from tilewright.source.syntax import Source

VALUES = TWO_LOOPS, THREE_LOOPS, BRANCH = "two loops", "three loops", "branch"
WORTH = 0.4
"""The change is offered if in some launch at least this share of the iterations computes masks without need."""
MEASURED = 0.89
"""The effect was measured on kernels in which at least this share of the iterations computed masks without need."""
LONGEST = 40
"""The most statements of a loop that is written several times."""


class MaskSplit(Entry):
    about = EntryDescription(
        id="mask_split",
        name="masks only at the edge",
        what="a loop without masks, and others with masks for the tiles at the edges; or the masks behind a branch",
        when="a loop over keys that masks all tiles, though most are visible: causal attention, a window, a last tile",
        when_not="few tiles between the edges; masks that are loaded, or of every second element",
        priority={"memory": 5, "balanced": 3, "compute": 1},
        eases=("issue slots", "tile size"),
        together=HINTS_OF_TILES,
        order=134,
        effect=Effect(
            1.18, 1.20, "TileGym's attention: 954 → 810 µs with a window, 845 → 706 µs with sinks, H200", "2026-11-30"
        ),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found = []
        for function, loop, tiles in masked_loops(source, facts):
            header = Header.of(source, loop)
            edges = _edges(source, loop, _always(tiles))
            if edges is None:
                continue
            needless = f"({header.iterations(*edges)}) if {masked_if(tiles)} else 0"
            totals = counted(source, facts, function, loop, header.iterations(*header.whole), needless)
            shares = totals.shares if totals is not None else (1.0,)
            share = totals.some / max(totals.every, 1) if totals is not None else 1.0
            why = f"{totals or 'an unknown number of'} iterations compute masks without need"
            promise = min(1.0, share / MEASURED)
            site = Site.at(source, loop, f"masks in the loop over {header.name}", VALUES, promise, why)
            values = tuple(value for value in VALUES if unless_refused(self.apply, source, site, value) is not None)
            found += [replace(site, values=values)] if values and max(shares) >= WORTH else []
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        if value not in VALUES:
            raise NotApplicable(f"'{value}' is no value of this entry; known: {', '.join(VALUES)}")
        loops = dict(loops_with_masks(source, site.function(source)))
        loop = site.node(source, loops, "no loop with a mask begins here")
        if value == BRANCH:
            return _branched(source, site, loop, _always(loops[loop]))
        if len(source.every(cst.BaseSmallStatement, loop)) > LONGEST:  # type: ignore[type-abstract]
            raise site.refused(source, "the loop is too long to be written several times")
        return _in_loops(source, site, loop, _always(loops[loop]), value)


def _always(tiles: Sequence[MaskedTile]) -> list[MaskedTile]:
    """Returns the tiles that are masked in each iteration: not those that are behind a branch already."""
    return [tile for tile in tiles if not tile.onsets]


def _edges(source: Source, loop: cst.For, tiles: Sequence[MaskedTile]) -> tuple[LoopBound, LoopBound] | None:
    """Returns the start and the end of the iterations that need no mask. None if a mask is not understood."""
    unknown = [guards for tile in tiles for guards in tile.unknown]
    if () in unknown or not tiles:
        return None
    header, decided = Header.of(source, loop), _decided(source, loop)
    found = [(limit, decided.matters(limit)) for tile in tiles for limit in tile.limits]
    limits = [replace(limit, guards=(*limit.guards, *tests)) for limit, tests in found if NEVER not in tests]
    starts = guarded([limit for limit in limits if not limit.is_end], fully=True)
    ends = list(guarded([limit for limit in limits if limit.is_end], fully=True))
    ends += [(guards, header.start) for guards in unknown]  # then all iterations need it
    return greatest(header.start, starts), least(header.end, ends)


def _decided(source: Source, loop: cst.For) -> DecidedLimits:
    return DecidedLimits(source, source.function_around(loop), loop)


def _needed(source: Source, loop: cst.For, tiles: Sequence[MaskedTile]) -> str:
    """Returns the condition without which no iteration is left that needs no mask; "" if constants do not say it."""
    decided = _decided(source, loop)
    empties = others_of("", (part for tile in tiles for limit in tile.limits for part in decided.empties(limit)))
    return " and ".join(negated(all_of([*guards, test])) for guards, test in empties)


def _in_loops(source: Source, site: Site, loop: cst.For, tiles: Sequence[MaskedTile], value: Value) -> str:
    header = Header.of(source, loop)
    pure = Effects(source, site.function(source)).is_pure(loop.iter)
    if breaks_of(source, loop):
        raise site.refused(source, "this loop may end early: the loops after it would still run")
    if not pure or names_read(loop.iter) & set(names_assigned(loop)):
        raise site.refused(source, "the range of this loop cannot be computed a second time")
    edges = _known_edges(source, site, loop, tiles)
    both = all(bound.is_new for bound in edges)
    needed, where = (THREE_LOOPS, "both edges") if both else (TWO_LOOPS, "one edge")
    if value != needed:
        raise site.refused(source, f"masks are needed at {where} of this loop: {needed}")
    plain = unmasked(source, site.function(source), loop, tiles).loop
    (full_from, full_to), before = _named(source, site, edges)
    middle = header.after(full_from) if full_from else header.start
    loops = [_behind(_needed(source, loop, tiles), header.over(plain, middle, full_to or header.end))]
    if full_from:
        before.append(cst.parse_statement(f"{full_from} = min({full_from}, {header.end})"))
        loops.insert(0, _behind(edges[0].test, header.over(loop, header.start, full_from)))
    if full_to:
        last = header.after(f"max({full_from or header.start}, {full_to})")
        loops.append(_behind(edges[1].test, header.over(loop, last, header.end)))
    return placed(source, loop, [*before, *loops])


def _behind(test: str, loop: cst.For) -> cst.BaseStatement:
    """Returns a loop behind the condition without which it has no iterations: a constant one leaves no code."""
    return cst.If(test=cst.parse_expression(test), body=cst.IndentedBlock(body=[loop])) if test else loop


def _branched(source: Source, site: Site, loop: cst.For, tiles: Sequence[MaskedTile]) -> str:
    header = Header.of(source, loop)
    found = unmasked(source, site.function(source), loop, tiles)
    body = [each for each in loop.body.body if isinstance(each, cst.BaseStatement)]
    if not found.whole:
        raise NotApplicable(f"{source.name}:{site.line}: a mask is a part of another expression")
    first, last = (body.index(found.whole[place]) for place in (0, -1))
    between = [each for each in body[first:last] if each not in found.masks]
    if between or not moves_down(body, found.masks, first):
        raise NotApplicable(f"{source.name}:{site.line}: other statements stand between the masks")
    names, before = _named(source, site, _known_edges(source, site, loop, tiles))
    tests = [f"{header.name} {sign} {name}" for sign, name in zip(("<", ">="), names, strict=True) if name]
    branch = cst.If(test=cst.parse_expression(" or ".join(tests)), body=cst.IndentedBlock(body=found.masks))
    shown = [branch if each is body[last] else each for each in body if each is body[last] or each not in found.masks]
    new = loop.with_changes(body=loop.body.with_changes(body=shown), leading_lines=())
    return placed(source, loop, [*before, new])


def _known_edges(source: Source, site: Site, loop: cst.For, tiles: Sequence[MaskedTile]) -> tuple[LoopBound, LoopBound]:
    edges = _edges(source, loop, tiles)
    if edges is None:
        raise NotApplicable(f"{source.name}:{site.line}: a mask of this loop is not understood")
    if not any(bound.is_new for bound in edges):
        raise NotApplicable(f"{source.name}:{site.line}: the masks of this loop hide nothing in any iteration")
    return edges


def _named(source: Source, site: Site, edges: Sequence[LoopBound]) -> tuple[list[str], list[cst.BaseStatement]]:
    """Returns a name for the start and the end of the iterations without masks, "" for a bound of the loop itself, and
    the statements that compute them."""
    names, statements = list[str](), list[cst.BaseStatement]()
    function = site.function(source)
    if other := {"min", "max"} & {*parameters(function), *names_assigned(function), *source.functions}:
        raise site.refused(source, f"{min(other)} is another function here")
    for bound, name in zip(edges, ("full_from", "full_to"), strict=True):
        names.append(fresh_in(source, site.kernel, name) if bound.is_new else "")
        statements += map(cst.parse_statement, bound.statements(names[-1]) if bound.is_new else ())
    return names, statements


ENTRY = MaskSplit()
