"""Reads each row once, as a tile, in a persistent kernel: three changes that gain only together.

A kernel that goes over its row in chunks reads the row several times, or leaves it to the compiler to keep it. With one
tile for the whole row, a persistent block can load its next row by TMA while it computes the present one. TMA tiles
alone are slow, because a block waits for each; a persistent grid alone holds its rows in gathers, with an address in a
register for each element. How many blocks an SM holds, and whether a tile has one row or two, decides as much as the
form: a layer norm of 16384 × 3072 takes 98 µs with one block on an SM, 66 with two, and 61 with tiles of two rows. So
all of them are one field. The field has the gathers in one pass, too: with more CTAs on an SM, they may be enough.

Stores are written from registers: they were up to 1.14 times as fast as stores by TMA in these forms.
"""

from __future__ import annotations

from functools import lru_cache

from tilewright.playbook.analyses.chunk_loops import chunked, longest_row
from tilewright.playbook.analyses.configuration_sites import read_changes, written_in_space
from tilewright.playbook.analyses.constant_branches import read_constants
from tilewright.playbook.analyses.tile_shapes import FIT_IN_REGISTERS
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site, unless_refused
from tilewright.playbook.entries import one_pass, persistent, rows_per_tile, tile_load
from tilewright.records import Value
from tilewright.source.syntax import Source, argument, with_argument

GATHERS = "gathers"
TILES = {"tiles of 2 rows": 2, "tiles of 1 row": 1}
OCCUPANCY = ("", "occupancy=8", "occupancy=4")
BLOCKS = tuple(f"BLOCKS_PER_SM={count}" for count in (2, 3, 4))
"""One block on an SM is left out: in bench/recorded/h200-kernel-forms-2026-11-30-evening.json, it is never the best."""


class RowStreams(Entry):
    about = EntryDescription(
        id="row_streams",
        name="whole rows in a persistent kernel",
        what="one tile for one or two whole rows, loaded once by tile accesses, in a grid of SMs × BLOCKS_PER_SM "
        "blocks; or one pass of gathers with more CTAs on an SM",
        when="a block goes over its row in several passes, the row fits into registers, and there are many rows",
        when_not="longer rows; few rows; rows that are read only once",
        priority={"memory": 1, "balanced": 2, "compute": 5},
        order=34,
        effect=Effect(
            1.1, 1.45, "layer norms of 3072 and 4096 columns 86.7 → 61.2 and 97.2 → 76.1 µs, H200", "2026-11-30"
        ),
        eases=("access path", "bytes in flight", "issue slots", "last wave", "residency", "tile size", "traffic"),
    )
    combined = True

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        once = next((each for each in facts.sites_of(one_pass.ENTRY, source) if each.kernel == facts.kernel), None)
        if once is None or not str(once.values[0]).startswith(one_pass.WHOLE_ROW):
            return []
        if not facts.sites_of(persistent.ENTRY, source):
            return []
        constants = str(once.values[0]).removeprefix(one_pass.WHOLE_ROW)
        longest = longest_row(chunked(source, facts.kernel, 2), source, facts.kernel, facts)
        tiles = [form for form, rows in TILES.items() if rows * longest <= FIT_IN_REGISTERS]
        tiles = [f"{form}{constants}" for form in tiles if _is_possible(source, facts.kernel, f"{form}{constants}")]
        values = [f"{form},{blocks}" for form in tiles for blocks in BLOCKS]
        values += [",".join(filter(None, (f"{GATHERS}{constants}", hint))) for hint in OCCUPANCY]
        return [Site.at(source, source.kernels[facts.kernel], once.what, tuple(values), why=once.why)] if tiles else []

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        return one_pass.ENTRY.why_not(source, facts) or persistent.ENTRY.why_not(source, facts)

    def apply(self, source: Source, site: Site, value: Value) -> str:
        form, _, changes = str(value).partition(",")
        new = Source(source.name, _formed(source.name, source.text, site.function_here(source).name.value, form))
        return written_in_space(new, read_changes(changes)) if changes else new.text


def _is_possible(source: Source, kernel: str, form: str) -> bool:
    return unless_refused(_formed, source.name, source.text, kernel, form) is not None


@lru_cache(maxsize=8)
def _formed(name: str, text: str, kernel: str, form: str) -> str:
    """Returns the text with a kernel of this form. All values of a form differ only in their configuration."""
    source, constants = Source(name, text), read_constants(form)
    once = one_pass.compiled_once(source, kernel, constants) if constants else _whole(source, kernel)
    rows = next((rows for tiles, rows in TILES.items() if form.startswith(tiles)), 0)
    if not rows and not form.startswith(GATHERS):
        raise NotApplicable(f"'{form}' is no form of this entry; known: {', '.join((*TILES, GATHERS))}")
    new = _streamed(once, kernel, rows) if rows else once
    if not constants:
        return new.text
    old = _persistent(source, kernel) if rows else source
    return one_pass.in_branch(new, old, kernel, constants).text


def _whole(source: Source, kernel: str) -> Source:
    return Source(source.name, one_pass.ENTRY.apply(source, _site(source, kernel), one_pass.WHOLE_ROW))


def _persistent(source: Source, kernel: str) -> Source:
    [first, *_] = persistent.BLOCKS_PER_SM
    return Source(source.name, persistent.ENTRY.apply(source, _site(source, kernel), first))


def _streamed(source: Source, kernel: str, rows: int) -> Source:
    """Returns the source with tile accesses of ``rows`` rows in a persistent kernel."""
    source = Source(source.name, tile_load.ENTRY.apply(source, _site(source, kernel), tile_load.VIEWS))
    stores = source.calls("store", inside=source.kernels[kernel])
    direct = (call for call in stores if argument(call, "allow_tma") is None)
    source = _persistent(source.changed({call: with_argument(call, "allow_tma", "False") for call in direct}), kernel)
    if rows == 1:
        return source
    numbers = [each for each in rows_per_tile.row_numbers(source, source.kernels[kernel]) if rows in each.rewrites]
    grouped = (unless_refused(each.rewrites[rows]) for each in numbers)
    text = next(filter(None, grouped), None)
    if text is None:
        raise NotApplicable(f"a tile of {kernel} cannot hold {rows} rows")
    return Source(source.name, text)


def _site(source: Source, kernel: str) -> Site:
    return Site.at(source, source.kernels[kernel], "", ())


ENTRY = RowStreams()
