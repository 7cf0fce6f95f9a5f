"""Combinations: changes that are made together, because none of them gains alone."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.playbook.gathers import BLOCK, BLOCK_GRID, ROW, copy
from tests.playbook.plain import SCALE_ROWS

from tilewright.playbook.entries import persistent, persistent_prefetch, tile_clusters, tile_streams
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, facts_of, loaded

ROWS = copy(ROW).replace("{'M': 128", "{'M': 8192")
FEW_ROWS = copy(ROW)
BLOCKS = copy(BLOCK, grid=BLOCK_GRID)


class TestTileStreams(EntryContract):
    entry = tile_streams.ENTRY
    examples: ClassVar = {"rows": ROWS}
    elsewhere: ClassVar = {"no gathers": SCALE_ROWS, "too few rows for a persistent grid": FEW_ROWS}


class TestPersistentPrefetch(EntryContract):
    entry = persistent_prefetch.ENTRY
    examples: ClassVar = {"rows": ROWS}
    elsewhere: ClassVar = {"too few rows for a persistent grid": FEW_ROWS}


class TestTileClusters(EntryContract):
    entry = tile_clusters.ENTRY
    examples: ClassVar = {"blocks": BLOCKS}
    elsewhere: ClassVar = {"no gathers": SCALE_ROWS}


def test_the_other_changes_must_follow(tmp_path: Path) -> None:
    """`apply` makes the first change. The next entry still applies to its result."""
    entry = tile_streams.ENTRY
    assert entry.rest == ("persistent",)
    facts, source = facts_of(loaded(ROWS, tmp_path)), Source("task.py", ROWS)
    [site] = entry.sites(source, facts)
    changed = Source("task.py", entry.apply(source, site, site.values[0]))
    assert "ct.load(x, (row, n)" in changed.text and "num_blocks" not in changed.text
    [following] = persistent.ENTRY.sites(changed, facts)
    assert "num_blocks" in persistent.ENTRY.apply(changed, following, 4)
