"""Leaves out iterations in which a mask hides the whole tile: keys after the last query, or before a sliding window.

    for n in range(steps):                                 →   end = min(steps, (m * TILE_M + …) // TILE_N)
        score = ct.where(columns <= rows, score, -inf)         for n in range(end):

The new bound follows from the compared positions. An iteration is left out only if a hidden tile leaves all that the
loop carries as it was (`unchanged`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import libcst as cst

from tilewright.playbook.analyses.loop_bounds import (
    Header,
    LoopBound,
    Part,
    counted,
    greatest,
    guarded,
    least,
    masked_loops,
    placed,
)
from tilewright.playbook.analyses.masked_tiles import FIXED, LOW, MaskedTile, MaskLimit, loops_with_masks
from tilewright.playbook.analyses.task_code import fresh_in
from tilewright.playbook.analyses.unchanged import UNKNOWN, carried, changed_names, read_outside
from tilewright.playbook.base import HINTS_OF_TILES, Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Function, Source

LEFT_OUT = "left out"


class CausalSkip(Entry):
    about = EntryDescription(
        id="causal_skip",
        name="no hidden blocks",
        what="bounds of a loop that leave out the iterations in which a mask hides the whole tile",
        when="a loop over all keys whose mask compares positions: causal, a sliding window, a length",
        when_not="masks that are loaded; rows that see no key at all; infinite values that are masked",
        priority={"memory": 1, "balanced": 1, "compute": 1},
        eases=("traffic", "issue slots", "conversions and special functions", "tile size", "dependent loads"),
        together=("mask_split", "longest_first", *HINTS_OF_TILES),
        order=133,
        effect=Effect.assumed(1.1, 1.9),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found = []
        for function, loop, tiles in masked_loops(source, facts):
            bounds = _bounds(source, function, loop, tiles)
            if bounds is None:
                continue
            header = Header.of(source, loop)
            totals = counted(
                source, facts, function, loop, header.iterations(*header.whole), header.iterations(*bounds)
            )
            if totals is not None and totals.some >= totals.every:
                continue
            why, promise = f"{totals or 'an unknown number of'} iterations see something", 1.0
            if totals is not None:
                promise = min(1.0, 2 * (1 - totals.some / totals.every))  # the effect is that of a causal mask: half
            found.append(
                Site.at(source, loop, f"hidden tiles of the loop over {header.name}", (LEFT_OUT,), promise, why)
            )
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        loops = dict(loops_with_masks(source, site.function(source))) if value == LEFT_OUT else {}
        loop = site.node(source, loops, "no loop with a mask begins here")
        bounds = _bounds(source, site.function(source), loop, loops[loop])
        if bounds is None:
            raise NotApplicable(f"{source.name}:{site.line}: no iteration of this loop is hidden")
        before, texts = list[cst.BaseStatement](), list[str]()
        for bound, name in zip(bounds, ("from", "to"), strict=True):
            if bound.is_plain:
                texts.append(bound.text)
            else:
                texts.append(fresh_in(source, site.kernel, f"seen_{name}"))
                before += map(cst.parse_statement, bound.statements(texts[-1]))
        return placed(source, loop, [*before, Header.of(source, loop).over(loop, *texts)])


def _bounds(
    source: Source, function: Function, loop: cst.For, tiles: Sequence[MaskedTile]
) -> tuple[LoopBound, LoopBound] | None:
    """Returns the start and the end of the iterations that see something; None if no mask limits them."""
    outside = read_outside(source, function, loop)
    kept = outside | carried(source, loop)
    starts, ends = list[MaskLimit](), list[Part]()
    for tile in (tile for tile in tiles if tile.hides != FIXED):
        changed = changed_names(source, function, loop, tile)
        if changed is None:
            return None
        low = {name for name, value in changed.items() if value in (LOW, UNKNOWN)}  # another iteration may read it
        for limit in tile.limits:
            if limit.is_end and not (changed.keys() & outside or low & kept):
                bounds = (each.bound(fully=False) for each in (limit, *tile.onsets))
                ends.append((limit.guards, reduce("max({}, {})".format, bounds)))
            elif not limit.is_end and not changed.keys() & kept and not tile.onsets:
                starts.append(limit)
    header = Header.of(source, loop)
    first = ((guards, header.after(text)) for guards, text in guarded(starts, fully=False))
    found = greatest(header.start, first), least(header.end, ends)
    return found if any(bound.is_new for bound in found) else None


ENTRY = CausalSkip()
