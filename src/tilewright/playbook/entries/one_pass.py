"""Loads a row once, where a block reads it more than once.

If the block reads the row in chunks, the loops over the chunks disappear: the tile becomes as wide as the row, so that
each loop would run once. A load that an earlier statement has made is not made again. The row stays in registers, so
the entry is for rows that fit.
"""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.chunk_loops import Chunked, chunked, longest_row, once, with_own_names
from tilewright.playbook.analyses.repeated import without_repeated
from tilewright.playbook.analyses.tile_shapes import FIT_IN_REGISTERS
from tilewright.playbook.base import (
    HINTS_OF_TILES,
    Effect,
    Entry,
    EntryDescription,
    KernelFacts,
    NotApplicable,
    Site,
    refusal,
    unless_refused,
)
from tilewright.records import Value
from tilewright.source.syntax import Changes, Source, number

WHOLE_ROW, LOADED_ONCE = "whole row", "loaded once"


class OnePass(Entry):
    about = EntryDescription(
        id="one_pass",
        name="one pass over a row",
        what="one tile for the whole row in place of loops over its chunks; each element is loaded once",
        when="a block reads its row more than once, and the row fits into registers (32768 elements)",
        when_not="longer rows; rows that are read only once; rows that are loaded again to save registers",
        priority={"memory": 1, "balanced": 2},
        eases=("traffic", "issue slots", "bytes in flight"),
        together=HINTS_OF_TILES,
        order=192,
        effect=Effect.assumed(1.0, 1.6),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        if not (kernel := task_code.own_kernel(facts, source)):
            return []
        found, at = unless_refused(chunked, source, kernel, 2), source.kernels[kernel]
        if found is None:
            _, loads = without_repeated(source, kernel)
            return [Site.at(source, at, f"loads that are made {loads + 1} times", (LOADED_ONCE,))] if loads else []
        longest = longest_row(found, source, kernel, facts)
        what = f"{len(found.loops)} loops over {found.length} in chunks of {found.tile}"
        site = Site.at(source, at, what, (WHOLE_ROW,), why=f"rows of up to {longest:,} elements")
        return [site] if 0 < longest <= FIT_IN_REGISTERS and self.applies(source, site) else []

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        if (kernel := facts.kernel) not in source.kernels:
            return ""
        found = unless_refused(chunked, source, kernel, 2)
        longest = 0 if found is None else longest_row(found, source, kernel, facts)
        if longest > FIT_IN_REGISTERS:
            return f"rows of {longest:,} elements do not fit into registers"
        return refusal(_with_whole_row, source, kernel)

    def apply(self, source: Source, site: Site, value: Value) -> str:
        kernel = site.function_here(source).name.value
        if value == WHOLE_ROW:
            source = _with_whole_row(source, kernel)
        elif value != LOADED_ONCE:
            raise NotApplicable(f"'{value}' is no value of this entry; known: {WHOLE_ROW}, {LOADED_ONCE}")
        changed, removed = without_repeated(source, kernel)
        if not removed:
            raise NotApplicable(f"{kernel} loads no element of its row twice")
        return changed.text


def _with_whole_row(source: Source, kernel: str) -> Source:
    """Returns the source with a tile for the whole row, and the statements of each loop once."""
    source = with_own_names(source, kernel, chunked(source, kernel, 2).loops)
    found = chunked(source, kernel, 2)
    given = task_code.argument_of(source, kernel, found.tile)
    if given is None:
        raise NotApplicable(f"{source.name}: the launch does not list what it passes for {found.tile}")
    changes: Changes = {loop: cst.FlattenSentinel(once(loop)) for loop in found.loops}
    tile, whole = source.code(given), _in_launch(source, kernel, found)
    if tile != whole:  # else a chunk is the whole row already
        others = source.every(type(given), task_code.launch_of(source).function)
        if [source.code(each) for each in others].count(tile) > 1 and number(given) is None:
            raise NotApplicable(f"{source.name}: the launch uses {tile} for more than the size of a chunk")
        changes = {**changes, given: cst.parse_expression(f"max({tile}, 1 << ({whole} - 1).bit_length())")}
    return source.changed(changes)


def _in_launch(source: Source, kernel: str, found: Chunked) -> str:
    """Returns the length of the row as an expression of the launch. Raises `NotApplicable` if it is not known there."""
    if found.length.isdigit():
        return found.length
    name, dot, rest = found.length.partition(".")
    passed = task_code.argument_of(source, kernel, name)
    if passed is None:
        raise NotApplicable(f"{source.name}: the launch does not know {found.length}")
    return f"{source.code(passed)}{dot}{rest}"


ENTRY = OnePass()
