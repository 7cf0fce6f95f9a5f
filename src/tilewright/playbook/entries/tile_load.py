"""Turns gathers and scatters of consecutive elements into loads and stores of tiles.

A tile load uses TMA if the GPU has it: one instruction instead of an address, a bound check and a register for each
element. The change applies to three kinds of index: ranges that begin at a multiple of their length, ragged segments,
and pages with one id. A segment is loaded from a view that begins with the segment. A kernel that uses each element
once can become slower, because TMA goes through shared memory. On TileGym's kernels and an H200 the change was kept in
1 of 11 tries (bench/recorded/h200-tilegym-2026-11-21.json).
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.playbook.analyses.tile_access import Converted, accessed, converted, convertible, with_accesses
from tilewright.playbook.analyses.tile_shapes import tile_call
from tilewright.playbook.base import HINTS_OF_TILES, Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

EVERY = "every access"
VIEWS = "every access, views too"
LOADS = "loads only"
STORES = "stores only"
SINGLE = "tile access"
KINDS = {EVERY: ("gather", "scatter"), VIEWS: ("gather", "scatter"), LOADS: ("gather",), STORES: ("scatter",)}
SINGLE_SITES = 5
TMA = 90  # the first compute capability with TMA


class TileLoad(Entry):
    about = EntryDescription(
        id="tile_load",
        name="tile load and store",
        what="a gather or scatter of consecutive elements as a load or store of a tile, through TMA",
        when="the indices are a range that begins at a multiple of its length, a ragged segment, or a page",
        when_not="real gathers; kernels that stream each element once may become slower: both versions are raced",
        priority={"memory": 1, "balanced": 1, "compute": 2},
        eases=("access path", "bytes in flight"),
        order=10,
        effect=Effect.assumed(1.0, 2.5, kept=1, of=20),
        together=HINTS_OF_TILES,
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        promise = 1.0 if facts.sm >= TMA else 0.5
        return [site for name in source.tile_code for site in _sites(source, name, promise)]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        if value == SINGLE:
            calls = source.calls("gather", "scatter", inside=site.function(source))
            access = converted(source, site.node(source, calls, "no gather or scatter begins here"))
            return with_accesses(source, site.kernel, lambda now: iter([access] if now is source else []))
        site.function_here(source)
        if value not in KINDS:
            raise NotApplicable(f"'{value}' is no value of this entry; known: {', '.join(KINDS)}")
        return with_accesses(source, site.kernel, lambda now: _possible(now, site.kernel, str(value)))


def _sites(source: Source, name: str, promise: float) -> Iterator[Site]:
    """Yields a site for all convertible accesses of a function together, and sites for single accesses, up to 5."""
    why = "" if promise == 1 else f"no TMA before sm_{TMA}"
    possible = list(_possible(source, name, VIEWS))
    if not possible:
        return
    direct = [access for access in possible if not access.sliced]
    kinds = {tile_call(source, access.call) for access in direct}
    values: tuple[str, ...] = (EVERY, LOADS, STORES) if len(kinds) > 1 else (EVERY,) if kinds else ()
    values += (VIEWS,) if len(direct) < len(possible) else ()
    what = f"{len(possible)} gathers and scatters of ranges"
    yield Site.at(source, source.tile_code[name], what, values, promise, why)
    for access in possible[:SINGLE_SITES] if len(possible) > 1 else ():
        what = f"{tile_call(source, access.call)} of {source.code(access.call.args[0].value)}"
        yield Site.at(source, access.call, what, (SINGLE,), promise / 2, why)


def viewed(source: Source, kernel: str) -> tuple[Source, tuple[str, ...]]:
    """Returns the source with all accesses of a kernel converted, through views too, and the conditions under which it
    computes the same."""
    return accessed(source, kernel, lambda now: _possible(now, kernel, VIEWS))


def _possible(source: Source, function: str, value: str) -> Iterator[Converted]:
    """Yields the convertible accesses of the kinds in ``value``. Only `VIEWS` includes accesses through a view."""
    possible = convertible(source, function, KINDS[value], converted)
    return (access for access in possible if value == VIEWS or not access.sliced)


ENTRY = TileLoad()
