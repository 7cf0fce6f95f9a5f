"""Entry G: one tile size or two, halved or doubled (K1 G)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.playbook.configured import MATMUL, SCALE
from tests.playbook.kit import only, verdict

from tilewright.playbook.entries.tile_sizes import ENTRY
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, facts_of, loaded


class TestTileSizes(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"matmul": MATMUL}
    elsewhere: ClassVar = {"no tile to choose": SCALE}


def test_the_sites_of_a_product(tmp_path: Path) -> None:
    """No fewer than 64 rows and 32 of the others: wgmma would be lost (K9, cutile-facts 8.1)."""
    sites = ENTRY.sites(Source("file.py", MATMUL), facts_of(loaded(MATMUL, tmp_path)))
    assert {site.what: site.values for site in sites} == {
        "TILE_M and TILE_N of product": ("TILE_M=128,TILE_N=128", "TILE_M=128,TILE_N=32"),
        "TILE_M of product": ("TILE_M=128",),
        "TILE_N of product": ("TILE_N=128", "TILE_N=32"),
        "TILE_K of product": ("TILE_K=64",),
    }


def test_the_space_s_own_rules_hold(tmp_path: Path) -> None:
    text = MATMUL.replace("        shipped={", "        where=[lambda TILE_N: TILE_N <= 64],\n        shipped={")
    sites = ENTRY.sites(Source("file.py", text), facts_of(loaded(text, tmp_path)))
    assert [site.values for site in sites if site.what == "TILE_N of product"] == [("TILE_N=32",)]


def test_larger_tiles_are_correct_and_other_code(tmp_path: Path) -> None:
    source, task = Source("file.py", MATMUL), loaded(MATMUL, tmp_path)
    site = only(ENTRY.sites(source, facts_of(task)), "TILE_M and TILE_N")
    larger = loaded(ENTRY.apply(source, site, "TILE_M=128,TILE_N=128"), tmp_path)
    assert codes_of(larger)["square"].code_hash != codes_of(task)["square"].code_hash
    checked = verdict(larger)
    assert checked.verdict.startswith("correct"), checked.reason
