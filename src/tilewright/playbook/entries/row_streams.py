"""Reads each row once, as a tile, in a persistent kernel: three changes that gain only together.

A kernel that goes over its row in chunks reads the row several times, or leaves it to the compiler to keep it. With one
tile for the whole row, a persistent block can load its next row by TMA while it computes the present one. TMA tiles
alone are slow, because a block waits for each; a persistent grid alone holds its rows in gathers, with an address in a
register for each element. How many blocks an SM holds, and whether a tile has one row or two, decides as much as the
form: a layer norm of 16384 × 3072 takes 98 µs with one block on an SM, 66 with two, and 61 with tiles of two rows. So
all of them are one field. The field has the gathers in one pass, too: with more CTAs on an SM, they may be enough.

Stores are written from registers: the fastest of these forms takes 61 µs so, and 65 with stores by TMA.
"""

from __future__ import annotations

from functools import lru_cache

from tilewright.playbook.analyses.block_loop import is_persistent
from tilewright.playbook.analyses.chunk_loops import chunked, longest_row
from tilewright.playbook.analyses.configuration_sites import read_changes, written_in_space
from tilewright.playbook.analyses.constant_branches import WITH, read_constants
from tilewright.playbook.analyses.guarded import in_branch
from tilewright.playbook.analyses.task_code import fresh_name
from tilewright.playbook.analyses.tile_shapes import FIT_IN_REGISTERS
from tilewright.playbook.analyses.zero_masks import without_zero_masks
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site, unless_refused
from tilewright.playbook.entries import one_pass, persistent, persistent_grid, rows_per_tile, tile_load
from tilewright.records import Value
from tilewright.source.syntax import Source, argument, with_argument

TILES, GATHERS = "tiles", "gathers"
ROW_COUNT = 2
ROWS = (f"TILE_ROWS={ROW_COUNT}", "TILE_ROWS=1")
OCCUPANCY = ("", "occupancy=8", "occupancy=4")
BLOCKS = tuple(f"BLOCKS_PER_SM={count}" for count in (2, 3, 4))
"""One block on an SM is left out: in bench/recorded/h200-kernel-forms-2026-11-30-evening.json, it is never the best."""
ADDED = ("TILE_ROWS", "BLOCKS_PER_SM")


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
            1.1, 1.45, "TileGym's layer norms of 3072 and 4096 columns: 13 % less time, as gathers, H200", "2026-12-01"
        ),
        eases=("access path", "bytes in flight", "issue slots", "last wave", "residency", "tile size", "traffic"),
    )
    combined = True

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        kernel = facts.kernel
        once = next((each for each in facts.sites_of(one_pass.ENTRY, source) if each.kernel == kernel), None)
        if once is None or not str(once.values[0]).startswith(one_pass.WHOLE_ROW):
            return []
        grids = [site for entry in (persistent, persistent_grid) for site in facts.sites_of(entry.ENTRY, source)]
        if not grids or any(fresh_name(source, name) != name for name in ADDED):
            return []
        constants = str(once.values[0]).removeprefix(one_pass.WHOLE_ROW)
        tiles = unless_refused(_formed, source.name, source.text, kernel, TILES + constants)
        if tiles is None:
            return []
        width = 1 << (longest_row(chunked(source, kernel, 2), source, kernel, facts) - 1).bit_length()
        rows = ROWS[ROW_COUNT * width > FIT_IN_REGISTERS :] if "TILE_ROWS" in tiles else ("",)
        values = [_value(TILES + constants, each, blocks) for each in rows for blocks in BLOCKS]
        values += [_value(GATHERS + constants, hint) for hint in OCCUPANCY]
        return [Site.at(source, source.kernels[kernel], once.what, tuple(values), why=once.why)]

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        return one_pass.ENTRY.why_not(source, facts)

    def apply(self, source: Source, site: Site, value: Value) -> str:
        form, _, changes = str(value).partition(",")
        new = Source(source.name, _formed(source.name, source.text, site.function_here(source).name.value, form))
        return written_in_space(new, read_changes(changes)) if changes else new.text


def _value(form: str, *changes: str) -> str:
    return ",".join((form, *filter(None, changes)))


@lru_cache(maxsize=8)
def _formed(name: str, text: str, kernel: str, form: str) -> str:
    """Returns the text with a kernel of this form. All values of a form differ only in their configuration."""
    source, constants = Source(name, text), read_constants(form)
    if (kind := form.partition(WITH)[0]) not in (TILES, GATHERS):
        raise NotApplicable(f"'{form}' is no form of this entry; known: {TILES}, {GATHERS}")
    if constants:
        new, old = one_pass.compiled_once(source, kernel, constants), source
        conditions = one_pass.conditions_of(source, kernel, constants)
    else:
        new = old = _changed(one_pass.ENTRY, source, kernel, one_pass.WHOLE_ROW)
        conditions = []
    if kind == TILES:
        new, needed = _streamed(new, kernel)
        conditions += needed
        old = _persistent(old, kernel)
    return in_branch(new, old, kernel, conditions).text


def _streamed(source: Source, kernel: str) -> tuple[Source, tuple[str, ...]]:
    """Returns the source with tile accesses in a persistent kernel, of several rows if the kernel allows it, and the
    conditions of the accesses."""
    source, conditions = unless_refused(tile_load.viewed, source, kernel) or (source, ())
    if not source.calls("load", inside=source.kernels[kernel]):
        raise NotApplicable(f"no gather of {kernel} can become a load of a tile")
    source = without_zero_masks(source, kernel)
    stores = source.calls("store", inside=source.kernels[kernel])
    direct = (call for call in stores if argument(call, "allow_tma") is None)
    source = _persistent(source.changed({call: with_argument(call, "allow_tma", "False") for call in direct}), kernel)
    numbers = rows_per_tile.row_numbers(source, source.kernels[kernel])
    grouped = (unless_refused(each.rewrites[ROW_COUNT]) for each in numbers)
    return next((Source(source.name, text) for text in grouped if text is not None), source), conditions


def _persistent(source: Source, kernel: str) -> Source:
    """Returns the source with a kernel that is persistent, and a knob for the number of its blocks."""
    if is_persistent(source, kernel):
        return _changed(persistent_grid.ENTRY, source, kernel, str(persistent_grid.BLOCKS_PER_SM[0]))
    return _changed(persistent.ENTRY, source, kernel, persistent.BLOCKS_PER_SM[0])


def _changed(entry: Entry, source: Source, kernel: str, value: Value) -> Source:
    return Source(source.name, entry.apply(source, Site.at(source, source.kernels[kernel], "", ()), value))


ENTRY = RowStreams()
