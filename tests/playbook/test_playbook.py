"""The playbook as a whole: complete, listed, documented."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from tilewright.hardware.diagnosis import Resource
from tilewright.languages import languages
from tilewright.ledger.records import EntryHistory
from tilewright.playbook import catalogue
from tilewright.playbook.base import ANY_LANGUAGE, FORMER_NAMES, LAST, by_present_name

ROOT = Path(__file__).parent.parent.parent
ENTRIES = catalogue()


def test_ids_are_distinct() -> None:
    ids = [entry.about.id for entry in ENTRIES]
    assert len(ids) == len(set(ids))


def test_every_entry_of_the_package_is_listed() -> None:
    """By the name of its module."""
    folder = ROOT / "src" / "tilewright" / "playbook" / "entries"
    defining = {path.stem for path in folder.glob("*.py") if re.search(r"^ENTRY\b", path.read_text(), re.M)}
    listed = {entry.about.id for entry in ENTRIES}
    assert defining == listed and len(defining) == 56


def test_entries_say_what_they_ease() -> None:
    """Each limit that a change of the kernel can ease has an entry for it in cuTile; only a repair eases nothing."""
    assert [entry.about.id for entry in ENTRIES if not entry.about.eases] == ["wide_offsets"]
    eased = {resource for entry in ENTRIES if entry.about.is_for("cutile") for resource in entry.about.eases}
    assert set(get_args(Resource)) - eased == {"memory bandwidth", "tensor rate", "launch", "unknown"}
    assert eased <= set(get_args(Resource))


def test_the_order_of_the_catalogue() -> None:
    names = [entry.about.id for entry in ENTRIES]
    assert names[:4] == ["tile_load", "gather_load", "persistent", "persistent_grid"]
    assert names.index("persistent_prefetch") < names.index("prefetch")
    assert names[-3:] == ["triton_exp2", "block_pointers", "wide_offsets"]
    assert len({entry.about.order for entry in ENTRIES}) == len(ENTRIES)


def test_the_catalogue_is_covered() -> None:
    """K1: A to K are entries; L is the seam `handed_in`."""
    letters = {former: name for former, name in FORMER_NAMES.items() if len(former) == 1}
    assert set(letters) == set("ABCDEFGHIJKL") - {"H"}  # H has three parts
    assert set(FORMER_NAMES.values()) <= {entry.about.id for entry in ENTRIES} | {"proposed"}


def test_rows_of_old_ledgers_count_for_the_present_name() -> None:
    history = {
        "A": EntryHistory("A", 4, 2, 2.0),
        "tile_load": EntryHistory("tile_load", 3, 1, 1.0),
        "exp2": EntryHistory("exp2", 1, 0, None),
    }
    merged = by_present_name(history)
    assert set(merged) == {"tile_load", "exp2"} and merged["exp2"] == history["exp2"]
    both = merged["tile_load"]
    assert (both.entry, both.tries, both.keeps) == ("tile_load", 7, 3)
    assert both.gain == pytest.approx(4 ** (1 / 3))


def test_the_order_of_k2() -> None:
    """K2: by place, for memory-bound and compute-bound kernels."""

    def order(kind: str, wanted: str) -> list[str]:
        places = {entry.about.id: entry.about.place(kind) for entry in ENTRIES if entry.about.place(kind) != LAST}
        return sorted((name for name in wanted.split() if name in places), key=lambda name: places[name])

    assert order("memory", "tile_sizes tile_load latency tune_space persistent allow_tma") == [
        "tile_load", "persistent", "tune_space", "allow_tma", "tile_sizes", "latency",
    ]  # fmt: skip
    assert order("compute", "persistent tile_sizes latency tf32 tune_space swizzle") == [
        "tf32", "tile_sizes", "tune_space", "swizzle", "persistent", "latency",
    ]  # fmt: skip


def test_what_rounds_differently_is_marked_lossy() -> None:
    lossy = {entry.about.id for entry in ENTRIES if entry.about.risk == "lossy"}
    assert lossy == {
        "tf32_lossy",
        "exp2",
        "flush_to_zero",
        "approximate",
        "triton_exp2",
        "split_reduction",
        "bounded_maximum",
    }


def test_the_document_lists_every_entry() -> None:
    text = (ROOT / "docs" / "optimizing.md").read_text()
    for entry in ENTRIES:
        about = entry.about
        assert f"| `{about.id}` {about.name} | {about.what} | {about.risk} | {about.language} |" in text, about.id


def test_what_reads_no_kernel_is_for_any_language() -> None:
    free = {entry.about.id for entry in ENTRIES if entry.about.language == ANY_LANGUAGE}
    assert free == {"tune_space", "tile_sizes", "occupancy", "worker_warps", "clusters"}
    assert {entry.about.language for entry in ENTRIES} <= {language.name for language in languages()} | {ANY_LANGUAGE}


def test_every_effect_has_a_source_and_a_date() -> None:
    for entry in ENTRIES:
        effect = entry.about.effect
        assert 0.5 <= effect.low <= effect.high
        assert effect.source
        assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", effect.date), entry.about.id
