"""Blocks with long loops start first."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.playbook.kit import changed_lines, verdict
from tests.playbook.plain import NORM, applied
from tests.playbook.row_loops import CAUSAL, EQUAL, NO_WINDOW, SHRINKING, WINDOW

from tilewright.playbook.entries.longest_first import ENTRY, REVERSED
from tilewright.testing.entries import EntryContract, loaded


class TestLongestFirst(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"a loop up to the block's id": CAUSAL, "the start depends on it, too": NO_WINDOW}
    elsewhere: ClassVar = {
        "equal loops": EQUAL,
        "the longest are first": SHRINKING,
        "a window": WINDOW,
        "rows of a block": NORM,
    }


def test_the_ids_count_from_the_end(tmp_path: Path) -> None:
    new = applied(ENTRY, CAUSAL, tmp_path, REVERSED)
    assert changed_lines(CAUSAL, new) == (
        ["row, column = ct.bid(0), ct.bid(1)"], ["row, column = ct.num_blocks(0) - 1 - ct.bid(0), ct.bid(1)"],
    )  # fmt: skip
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_all_reads_of_the_id_count_from_the_end(tmp_path: Path) -> None:
    text = CAUSAL.replace("ct.store(y, (row, column)", "ct.store(y, (ct.bid(0), column)")
    new = applied(ENTRY, text, tmp_path, REVERSED)
    assert "ct.store(y, (ct.num_blocks(0) - 1 - ct.bid(0), column)" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")
