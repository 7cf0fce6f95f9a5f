"""Loads of the next iteration at the start of this one."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.playbook.kit import verdict
from tests.playbook.plain import NORM, SCALE_ROWS, applied, launch_facts
from tests.playbook.row_loops import TWICE

from tilewright.hardware.executions import parts
from tilewright.playbook.entries.persistent import ENTRY as PERSISTENT
from tilewright.playbook.entries.prefetch import AHEAD, ENTRY
from tilewright.records import CodeLoop
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, facts_of, loaded

PADDED = "(row, 0), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO"
UNCHECKED = NORM.replace(PADDED, "(row, 0), (1, TILE_N), check_bounds=False")
WRITTEN = NORM.replace("ct.load(x, (row", "ct.load(y, (row")
OTHER = f"        other = ct.load(x, {PADDED.replace('0', '1', 1)})\n        root ="
TWO = NORM.replace("        root =", OTHER).replace("values / root", "values / root + 0 * other")
CHAIN = NORM.replace("ct.load(x, (row,", "ct.load(x, (ct.load(x, (row, 0), (1, 1)).astype(ct.int32).item(),")


class TestPrefetch(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"rows of a block": NORM, "chunks of a row": TWICE}
    elsewhere: ClassVar = {"no loop": SCALE_ROWS, "an output": WRITTEN}


def test_a_load_without_checks_stays(tmp_path: Path) -> None:
    """It might read beyond the array."""
    assert not ENTRY.sites(Source("task.py", UNCHECKED), launch_facts(UNCHECKED, tmp_path))


def test_the_next_row_is_loaded_before_this_one_is_used(tmp_path: Path) -> None:
    new = applied(ENTRY, NORM, tmp_path, AHEAD)
    assert '''
    next_x = ct.load(x, (ct.bid(0) * ROWS + 0, 0), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
    for i in range(ROWS):  # a few rows a block
        this_x = next_x
        next_x = ct.load(x, (ct.bid(0) * ROWS + (i + 1), 0), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        row = ct.bid(0) * ROWS + i
        values = this_x
''' in new  # fmt: skip
    task, before = loaded(new, tmp_path), loaded(NORM, tmp_path)
    assert verdict(task).verdict.startswith("correct")
    assert codes_of(task)["rows"].code_hash != codes_of(before)["rows"].code_hash


def test_two_loads_of_one_array_get_two_names(tmp_path: Path) -> None:
    new = applied(ENTRY, TWO, tmp_path, AHEAD)
    assert "        this_x = next_x\n" in new and "        this_x_ = next_x_\n" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_a_loop_that_loads_ahead_is_left_alone(tmp_path: Path) -> None:
    new = applied(ENTRY, NORM, tmp_path, AHEAD)
    assert not ENTRY.sites(Source("task.py", new), facts_of(loaded(new, tmp_path)))


def test_only_a_load_whose_address_is_known_ahead_moves(tmp_path: Path) -> None:
    new = applied(ENTRY, CHAIN, tmp_path, AHEAD)
    assert "next_x = ct.load(x, (ct.bid(0) * ROWS + (i + 1), 0), (1, 1))" in new
    assert "this_x.astype(ct.int32).item(), 0), (1, TILE_N)" in new


def test_a_persistent_loop_over_rows_loads_the_next_row(tmp_path: Path) -> None:
    """Several rows a block, with a loop that loads ahead: the two changes one after the other."""
    rows = SCALE_ROWS.replace('"N": 100', '"N": 1000')
    looped = applied(PERSISTENT, rows, tmp_path, 2)
    new = applied(ENTRY, looped, tmp_path, AHEAD)
    assert "    next_x = ct.load(x, (ct.bid(0), 0), (1, TILE_N)" in new
    assert "        next_x = ct.load(x, (row + ct.num_blocks(0), 0), (1, TILE_N)" in new
    task = loaded(new, tmp_path)
    assert verdict(task).verdict.startswith("correct")
    before, after = (parts(codes_of(one)["rows"])[0] for one in (loaded(looped, tmp_path), task))
    assert loads(after) > loads(before), "the first row is loaded before the loop"


def loads(region: CodeLoop) -> int:
    return sum(count for kind, count in region.copies.items() if kind.startswith(("LDG", "UTMALDG", "UBLKCP")))
