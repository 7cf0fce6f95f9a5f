"""Loads of the next iteration at the start of this one."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from tests.playbook.kit import run_of, verdict
from tests.playbook.paged import (
    DEPENDS_ON_DATA,
    DEPENDS_ON_THE_LOOP,
    EITHER_LOOP,
    PAGE_OF_A_BRANCH,
    PAGE_OUTSIDE,
    PAGED,
    STEPS_CHANGE,
    TEST_OF_THE_LOOP,
    TWO_BRANCHES,
    TWO_PAGE_TABLES,
    UNCHECKED_PAGES,
    UNREACHED,
    WRITES_PAGES,
)
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


OTHER_BRANCH = UNREACHED.replace("32, True))", "32, False))")
UNLESS = NORM.replace(
    f"        values = ct.load(x, {PADDED})\n",
    "        if not COLUMNS > 5:\n            values = ct.zeros((1, TILE_N), ct.float32)\n        else:\n"
    f"            values = ct.load(x, {PADDED})\n",
)
PADDED_CHAIN = CHAIN.replace("(1, 1))", "(1, 1), padding_mode=ct.PaddingMode.ZERO)")


class TestPrefetch(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"rows of a block": NORM, "chunks of a row": TWICE, "pages of a sequence": PAGED}
    elsewhere: ClassVar = {
        "no loop": SCALE_ROWS, "an output": WRITTEN, "pages that are written": WRITES_PAGES,
        "pages without checks": UNCHECKED_PAGES, "a branch that depends on data": DEPENDS_ON_DATA,
        "a branch that depends on the loop": DEPENDS_ON_THE_LOOP, "a test that the loop assigns": TEST_OF_THE_LOOP,
        "a range that the loop changes": STEPS_CHANGE,
    }  # fmt: skip


def test_a_load_without_checks_stays(tmp_path: Path) -> None:
    """It might read beyond the array."""
    assert not ENTRY.sites(Source("task.py", UNCHECKED), launch_facts(UNCHECKED, tmp_path))


def test_the_next_row_is_loaded_before_this_one_is_used(tmp_path: Path) -> None:
    new = applied(ENTRY, NORM, tmp_path, AHEAD)
    assert '''
    next_x = ct.load(x, (ct.bid(0) * ROWS, 0), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
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


def test_an_address_that_is_loaded_is_loaded_two_iterations_ahead(tmp_path: Path) -> None:
    """The first element of a row is the number of the row that is meant."""
    new = applied(ENTRY, PADDED_CHAIN, tmp_path, AHEAD)
    assert (
        """
        this_x_ = next_x_
        next_x_ = ct.load(x, (next_x.astype(ct.int32).item(), 0), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        next_x = ct.load(x, (ct.bid(0) * ROWS + (i + 2), 0), (1, 1), padding_mode=ct.PaddingMode.ZERO)
"""
        in new
    )
    assert run_of(new, tmp_path, "y") == run_of(PADDED_CHAIN, tmp_path, "y")


def test_an_address_without_padding_is_not_taken_from_beyond_the_array(tmp_path: Path) -> None:
    new = applied(ENTRY, CHAIN, tmp_path, AHEAD)
    assert "next_x = ct.load(x, (ct.bid(0) * ROWS + (i + 1), 0), (1, 1))" in new
    assert "this_x.astype(ct.int32).item(), 0), (1, TILE_N)" in new


def test_a_page_is_loaded_ahead_and_its_number_before(tmp_path: Path) -> None:
    """The branches are of a constant, so their loads are made in each iteration, or in none."""
    new = applied(ENTRY, PAGED, tmp_path, AHEAD)
    assert (
        """
    # all pages of a sequence
    if IS_PAGED:
        next_pages = ct.gather(pages, (sequence, OFFSET // 2), padding_value=0)
        next_keys = ct.load(
            keys,
            index=(next_pages.item(), 0, 0),
            shape=(1, PAGE, TILE_N),
            latency=2,
        )
        next_values = ct.load(values, (next_pages.item(), 0, 0), (1, PAGE, TILE_N))
        next_pages = ct.gather(pages, (sequence, (OFFSET + 2) // 2), padding_value=0)
    for step in range(steps):
        if IS_PAGED:
            this_keys = next_keys
            next_keys = ct.load(
                keys,
                index=(next_pages.item(), 0, 0),
                shape=(1, PAGE, TILE_N),
                latency=2,
            )
            this_values = next_values
            next_values = ct.load(values, (next_pages.item(), 0, 0), (1, PAGE, TILE_N))
            next_pages = ct.gather(pages, (sequence, (OFFSET + (step + 2) * 2) // 2), padding_value=0)
            # the same page of both
            k = ct.reshape(
                this_keys,
                (PAGE, TILE_N),
            )
"""
        in new
    ), "nothing reads the number of the present page any more"
    assert "v = ct.reshape(this_values, (PAGE, TILE_N))" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_the_keys_alone_are_loaded_ahead(tmp_path: Path) -> None:
    """The values still need the number of the present page."""
    new = applied(ENTRY, PAGED, tmp_path, f"keys {AHEAD}")
    assert (
        """
            this_pages = next_pages
            next_pages = later_pages
            this_keys = next_keys
            next_keys = ct.load(
                keys,
                index=(next_pages.item(), 0, 0),
                shape=(1, PAGE, TILE_N),
                latency=2,
            )
            later_pages = ct.gather(pages, (sequence, (OFFSET + (step + 2) * 2) // 2), padding_value=0)
"""
        in new
    )
    assert "            page = this_pages.item()\n" in new and "ct.load(values, (page, 0, 0)" in new


def test_a_hint_may_come_with_the_loads(tmp_path: Path) -> None:
    new = applied(ENTRY, PAGED, tmp_path, f"{AHEAD}, latency=4")
    assert new.count(" latency=4,\n") == 2 and new.count("(1, PAGE, TILE_N), latency=4)") == 2
    assert "padding_value=0, latency" not in new, "the number of a page is no tile"


@pytest.mark.parametrize("value", [AHEAD, f"{AHEAD}, latency=4", f"keys {AHEAD}"])
@pytest.mark.parametrize("branch", ["True", "False"])
@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_the_bits_stay(tmp_path: Path, value: str, branch: str, length: int) -> None:
    """No sequence, one that ends before its pages are known ahead, and one as long as its table, whose loads ahead are
    beyond it. The numbers of pages that nobody reads may be any."""
    new = applied(ENTRY, PAGED, tmp_path, value)
    old, new = (each.replace("32, True))", f"32, {branch}))") for each in (PAGED, new))
    rng = np.random.default_rng(3)
    pages = rng.integers(0, 20, (6, 5))
    pages[:, length:] = rng.choice([-1, 20, -(1 << 31), (1 << 31) - 1], (6, 5 - length))
    given = {"pages": pages, "lengths": np.full(6, length)}
    assert run_of(new, tmp_path, given=given) == run_of(old, tmp_path, given=given)


def test_a_chain_of_three_loads_is_not_made_ahead_as_a_whole(tmp_path: Path) -> None:
    """The table of tables would have to be read three iterations ahead."""
    new = applied(ENTRY, TWO_PAGE_TABLES, tmp_path, AHEAD)
    assert "next_pages_ = ct.gather(pages, (sequence, next_pages.item() % 5), padding_value=0)" in new
    assert "this_keys" not in new and "page = this_pages_.item()" in new
    given = {"pages": np.random.default_rng(3).integers(0, 20, (6, 5)), "lengths": np.arange(6)}
    assert run_of(new, tmp_path, given=given) == run_of(TWO_PAGE_TABLES, tmp_path, given=given)


def test_a_page_that_is_read_after_the_loop_stays(tmp_path: Path) -> None:
    new = applied(ENTRY, PAGE_OUTSIDE, tmp_path, AHEAD)
    assert "            page = this_pages.item()\n" in new
    given = {"pages": np.random.default_rng(3).integers(0, 20, (6, 5)), "lengths": np.arange(6) % 5 + 1}
    assert run_of(new, tmp_path, given=given) == run_of(PAGE_OUTSIDE, tmp_path, given=given)


def test_a_page_that_only_the_other_loop_reads_goes(tmp_path: Path) -> None:
    """Only one of the two loops runs, and the launch decides which one."""
    new = applied(ENTRY, EITHER_LOOP, tmp_path, AHEAD)
    assert "this_keys" in new and "this_pages" not in new and new.count("            place = OFFSET") == 1


def test_a_page_of_another_branch_is_not_known(tmp_path: Path) -> None:
    new = applied(ENTRY, PAGE_OF_A_BRANCH, tmp_path, AHEAD)
    assert "this_keys" in new and "this_values" not in new


def test_both_branches_of_a_constant_load_ahead(tmp_path: Path) -> None:
    new = applied(ENTRY, TWO_BRANCHES, tmp_path, AHEAD)
    assert "    else:\n        next_values = ct.load(values, (0, 0, 0), (1, PAGE, TILE_N))\n" in new
    pages = np.random.default_rng(3).integers(0, 20, (6, 5))
    for branch in ("True", "False"):
        given = {"pages": pages, "lengths": np.arange(6)}
        old, changed = (each.replace("32, True))", f"32, {branch}))") for each in (TWO_BRANCHES, new))
        assert run_of(changed, tmp_path, given=given) == run_of(old, tmp_path, given=given)


def test_a_branch_without_not(tmp_path: Path) -> None:
    new = applied(ENTRY, UNLESS, tmp_path, AHEAD)
    assert "    if COLUMNS > 5:\n        next_x = ct.load(x, (ct.bid(0) * ROWS, 0)" in new


@pytest.mark.parametrize(
    ("written", "first", "following"),
    [
        ("i + ROWS", "ROWS", "(i + 1) + ROWS"),
        ("ROWS - i", "ROWS", "ROWS - (i + 1)"),
        ("i * ROWS", "0", "(i + 1) * ROWS"),
        ("ROWS * i", "0", "ROWS * (i + 1)"),
        ("ct.arange(4) * i", "ct.arange(4) * 0", "ct.arange(4) * (i + 1)"),  # 0 would have no shape
        ("i * ct.arange(4)", "0 * ct.arange(4)", "(i + 1) * ct.arange(4)"),
    ],
)
def test_an_index_of_the_first_iteration_is_short(written: str, first: str, following: str, tmp_path: Path) -> None:
    text = NORM.replace(f"ct.load(x, {PADDED})", f"ct.gather(x, (row, {written}))")
    new = applied(ENTRY, text, tmp_path, AHEAD)
    assert f"    next_x = ct.gather(x, (ct.bid(0) * ROWS, {first}))\n" in new
    assert f"        next_x = ct.gather(x, (ct.bid(0) * ROWS + (i + 1), {following}))\n" in new


def test_the_first_of_a_range_with_a_step(tmp_path: Path) -> None:
    """The second iteration is at 4, and the one after the next is 6 later."""
    new = applied(ENTRY, PAGED.replace("range(steps)", "range(1, steps, 3)"), tmp_path, AHEAD)
    assert "        next_pages = ct.gather(pages, (sequence, (OFFSET + 4 * 2) // 2), padding_value=0)\n" in new
    assert "(sequence, (OFFSET + (step + 6) * 2) // 2)" in new
    new = applied(ENTRY, PAGED.replace("step * 2", "2 * step"), tmp_path, AHEAD)
    assert "        next_pages = ct.gather(pages, (sequence, (OFFSET + 2) // 2), padding_value=0)\n" in new


def test_a_hint_that_is_a_variable_stays(tmp_path: Path) -> None:
    new = applied(ENTRY, PAGED.replace("latency=2", "latency=PAGE // 8"), tmp_path, f"{AHEAD}, latency=4")
    assert new.count("latency=4") == 4 and "latency=PAGE // 8" not in new, "an expression is no variable"
    new = applied(ENTRY, PAGED.replace("latency=2", "latency=PAGE"), tmp_path, f"{AHEAD}, latency=4")
    assert new.count("latency=PAGE") == new.count("latency=4") == 2


def test_loads_that_the_launch_does_not_make_are_left_alone(tmp_path: Path) -> None:
    [site] = ENTRY.sites(Source("task.py", UNREACHED), launch_facts(UNREACHED, tmp_path))
    assert site.what.endswith("in the loop over step")
    [site] = ENTRY.sites(Source("task.py", OTHER_BRANCH), launch_facts(OTHER_BRANCH, tmp_path))
    assert site.what == "loads of keys in the loop over other"


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
