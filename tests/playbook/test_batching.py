"""Entry K: several small items a block (K1 K)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.playbook.kit import verdict
from tests.playbook.plain import HALF_PRODUCT, SCALE_ROWS, applied

from tilewright.playbook.entries.batching import ENTRY
from tilewright.testing.entries import H200, EntryContract, loaded


class TestBatching(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"rows": SCALE_ROWS}
    elsewhere: ClassVar = {
        "much work a byte": HALF_PRODUCT,
        "few blocks": SCALE_ROWS.replace('"M": 8192', '"M": 1000'),
        "large blocks": SCALE_ROWS.replace('"M": 8192, "N": 100', '"M": 8192, "N": 16384'),
    }


def test_a_short_loop_over_consecutive_rows(tmp_path: Path) -> None:
    new = applied(ENTRY, SCALE_ROWS, tmp_path, 4)
    assert "    for row in range(ct.bid(0) * SLOTS, min((ct.bid(0) + 1) * SLOTS, items)):  # of x\n" in new
    assert "(-(-M // config.SLOTS),), (x, weight, y, 1 << (N - 1).bit_length(), M, config.SLOTS)" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_unrolled_slots_with_a_guard_for_the_last_block(tmp_path: Path) -> None:
    """One row more than a multiple of the slots."""
    odd = SCALE_ROWS.replace('"M": 8192', '"M": 8193')
    new = applied(ENTRY, odd, tmp_path, "4 unrolled")
    assert """\
    for slot in ct.static_iter(range(SLOTS)):  # of x
        row = ct.bid(0) * SLOTS + slot
        if row < items:
""" in new  # fmt: skip
    task = loaded(new, tmp_path)
    dims = task.workloads["rows"]
    assert task.launched(task.space.shipped, dims, task.arrays(dims), H200).grid == (2049,)
    assert verdict(task).verdict.startswith("correct")


def test_slots_of_a_grid_of_two_axes(tmp_path: Path) -> None:
    small = HALF_PRODUCT.replace('"M": 2000, "N": 1999, "K": 64', '"M": 2000, "N": 1999, "K": 8')
    for value in (2, "2 unrolled"):
        new = applied(ENTRY, small, tmp_path, value)
        assert "row, column = item % grid_0, item // grid_0" in new
        assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")
