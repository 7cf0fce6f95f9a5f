"""Computes a mask only in the iterations that need it: on the diagonal, at the edge of a window, in the last tile.

    for n in range(end):                                   for n in range(min(full, end)):
        score = ct.where(columns <= rows, score, -inf)  →      …
                                                           for n in range(max(full, 0), end):
                                                               score = ct.where(columns <= rows, score, -inf)

The order of the iterations stays the same, and a mask that is true everywhere changes nothing. So the result is equal
to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read
from tilewright.playbook.analyses.loop_bounds import (
    Header,
    LoopBound,
    counted,
    greatest,
    guarded,
    least,
    masked_loops,
    placed,
)
from tilewright.playbook.analyses.masked_tiles import MaskedTile, loops_with_masks
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

VALUES = TWO_LOOPS, BRANCH = "two loops", "branch"
WORTH = 0.4
"""The change is offered if at least this share of the iterations needs no mask."""
LONGEST = 40
"""The most statements of a loop that is written twice."""


class MaskSplit(Entry):
    about = EntryDescription(
        id="mask_split",
        name="masks only at the edge",
        what="a loop without masks, and one with masks for the tiles at the edge; or the masks behind a branch",
        when="a loop over keys that masks all tiles, though most are visible: causal attention, a window, a last tile",
        when_not="few tiles between the edges; masks that are loaded, or of every second element",
        priority={"memory": 5, "balanced": 3, "compute": 3},
        eases=("issue slots",),
        together=HINTS_OF_TILES,
        order=134,
        effect=Effect.assumed(1.0, 1.2),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found = []
        for function, loop, tiles in masked_loops(source, facts):
            header = Header.of(source, loop)
            edges = _edges(header, _always(tiles))
            if edges is None:
                continue
            totals = counted(source, facts, function, loop, header.iterations(*header.whole), header.iterations(*edges))
            why, promise = f"{totals or 'an unknown number of'} iterations need no mask", 1.0
            if totals is not None:
                promise = totals.some / max(totals.every, 1)
            site = Site.at(source, loop, f"masks in the loop over {header.name}", VALUES, promise, why)
            values = tuple(value for value in VALUES if unless_refused(self.apply, source, site, value) is not None)
            found += [replace(site, values=values)] if values and promise >= WORTH else []
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        if value not in VALUES:
            raise NotApplicable(f"'{value}' is no value of this entry; known: {', '.join(VALUES)}")
        loops = dict(loops_with_masks(source, site.function(source)))
        loop = site.node(source, loops, "no loop with a mask begins here")
        if value == TWO_LOOPS and len(source.every(cst.BaseSmallStatement, loop)) > LONGEST:  # type: ignore[type-abstract]
            raise NotApplicable(f"{source.name}:{site.line}: the loop is too long to be written twice")
        return (_in_two_loops if value == TWO_LOOPS else _branched)(source, site, loop, _always(loops[loop]))


def _always(tiles: Sequence[MaskedTile]) -> list[MaskedTile]:
    """Returns the tiles that are masked in each iteration: not those that are behind a branch already."""
    return [tile for tile in tiles if not tile.onsets]


def _edges(header: Header, tiles: Sequence[MaskedTile]) -> tuple[LoopBound, LoopBound] | None:
    """Returns the start and the end of the iterations that need no mask. None if a mask is not understood."""
    unknown = [guards for tile in tiles for guards in tile.unknown]
    if () in unknown or not tiles:
        return None
    limits = [limit for tile in tiles for limit in tile.limits]
    starts = guarded([limit for limit in limits if not limit.is_end], fully=True)
    ends = list(guarded([limit for limit in limits if limit.is_end], fully=True))
    ends += [(guards, header.start) for guards in unknown]  # then all iterations need it
    return greatest(header.start, starts), least(header.end, ends)


def _in_two_loops(source: Source, site: Site, loop: cst.For, tiles: Sequence[MaskedTile]) -> str:
    header = Header.of(source, loop)
    pure = Effects(source, site.function(source)).is_pure(loop.iter)
    if not pure or names_read(loop.iter) & set(names_assigned(loop)):
        raise NotApplicable(f"{source.name}:{site.line}: the range of this loop cannot be computed a second time")
    first, last = _known_edges(source, site, header, tiles)
    if first.is_new and last.is_new:
        raise NotApplicable(f"{source.name}:{site.line}: a window needs masks at both of its edges: three loops")
    plain = unmasked(source, site.function(source), loop, tiles).loop
    name = fresh_in(source, site.kernel, f"full_{header.name}")
    if last.is_new:
        earlier = header.over(plain, header.start, name)
        later = header.over(loop, f"max({header.start}, {header.after(name)})", header.end)
    else:
        earlier = header.over(loop, header.start, f"min({name}, {header.end})")
        later = header.over(plain, header.after(name), header.end)
    before = (last if last.is_new else first).statements(name)
    return placed(source, loop, [*map(cst.parse_statement, before), earlier, later])


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
    tests, before = list[str](), list[cst.BaseStatement]()
    for bound, name, test in zip(_known_edges(source, site, header, tiles), ("from", "to"), ("<", ">="), strict=True):
        if bound.is_new:
            name = fresh_in(source, site.kernel, f"full_{name}")
            before += map(cst.parse_statement, bound.statements(name))
            tests.append(f"{header.name} {test} {name}")
    branch = cst.If(test=cst.parse_expression(" or ".join(tests)), body=cst.IndentedBlock(body=found.masks))
    shown = [branch if each is body[last] else each for each in body if each is body[last] or each not in found.masks]
    new = loop.with_changes(body=loop.body.with_changes(body=shown), leading_lines=())
    return placed(source, loop, [*before, new])


def _known_edges(
    source: Source, site: Site, header: Header, tiles: Sequence[MaskedTile]
) -> tuple[LoopBound, LoopBound]:
    edges = _edges(header, tiles)
    if edges is None:
        raise NotApplicable(f"{source.name}:{site.line}: a mask of this loop is not understood")
    if not any(bound.is_new for bound in edges):
        raise NotApplicable(f"{source.name}:{site.line}: the masks of this loop hide nothing in any iteration")
    return edges


ENTRY = MaskSplit()
