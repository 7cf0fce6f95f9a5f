"""Entry B: persistent scheduling (K1 B, K2)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import verdict
from tests.playbook.plain import BATCHED_PRODUCT, HALF_PRODUCT, NORM, SCALE_ROWS, applied, launch_facts

from tilewright.playbook.base import NotApplicable, Site
from tilewright.playbook.entries.persistent import ENTRY
from tilewright.source.syntax import Source
from tilewright.testing.entries import H200, EntryContract, loaded

FEW = SCALE_ROWS.replace('"M": 8192', '"M": 200')
EARLY = SCALE_ROWS.replace("    factor =", "    if row % 3 == 7:\n        return\n    factor =")

WITH_HELPER = SCALE_ROWS.replace("    row = ct.bid(0)", "    row = _row(1)", 1).replace(
    "@ct.kernel",
    """\
def _twice(half):
    # of this block
    here = ct.bid(0)
    return half * (here + ct.bid(axis=0))


def _row(shift):
    return _twice(half=1) // 2 + shift - 1


@ct.kernel""",
    1,
)
OTHER = """
@ct.kernel
def other(x):
    ct.store(x, (_row(1), 0), ct.zeros((1, 1), x.dtype))


@ct.kernel
def scale_rows"""


class TestPersistent(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"rows": SCALE_ROWS, "product": HALF_PRODUCT, "an id in a helper": WITH_HELPER}
    elsewhere: ClassVar = {"fewer than two items an SM": FEW}


def kernel_of(text: str) -> str:
    return text[text.index("@ct.kernel") : text.index("def reference")].strip()


def test_a_row_a_block_becomes_a_loop_over_rows_and_the_weights_are_loaded_once(tmp_path: Path) -> None:
    new = applied(ENTRY, SCALE_ROWS, tmp_path, 2)
    assert kernel_of(new) == '''
@ct.kernel
def scale_rows(x, weight, y, TILE_N: ct.Constant[int], items):
    """One block a row."""
    factor = ct.load(weight, (0,), (TILE_N,), padding_mode=ct.PaddingMode.ZERO)
    # which row
    for row in range(ct.bid(0), items, ct.num_blocks(0)):  # of x
        values = ct.load(x, (row, 0), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        ct.store(y, (row, 0), values * factor)
'''.strip()  # fmt: skip
    assert "def launch(x, weight, y, M, N, config, hardware):" in new
    assert "tw.Launch(scale_rows, (min(M, hardware.sms * config.BLOCKS_PER_SM),)," in new
    assert 'constants={"BLOCKS_PER_SM": (1, 2, 4, 8)}, shipped={"BLOCKS_PER_SM": 2}' in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_two_and_three_block_ids_come_from_one_item_in_the_order_of_the_hardware(tmp_path: Path) -> None:
    two, three = applied(ENTRY, HALF_PRODUCT, tmp_path, 2), applied(ENTRY, BATCHED_PRODUCT, tmp_path, 2)
    assert "        row, column = item % grid_0, item // grid_0\n" in two
    assert "row, column, z = item % grid_0, item // grid_0 % grid_1, item // (grid_0 * grid_1)\n" in three
    assert "    items = grid[0] * grid[1] * grid[2]\n" in three
    for text in (two, three):
        assert verdict(loaded(text, tmp_path)).verdict.startswith("correct")


def test_a_grid_of_as_many_blocks_as_the_gpu_holds(tmp_path: Path) -> None:
    task = loaded(applied(ENTRY, SCALE_ROWS, tmp_path, 4), tmp_path)
    dims = task.workloads["rows"]
    grids = [
        task.launched(task.space.shipped, dims, task.arrays(dims), board).grid
        for board in (H200, replace(H200, sms=10_000))
    ]
    assert grids == [(4 * 132,), (8192,)]


@pytest.mark.long
def test_clusters_count_as_one_block_each(tmp_path: Path) -> None:
    """X-11: a block is a cluster of num_ctas CTAs."""
    hinted = HALF_PRODUCT.replace(
        'shipped={"T": 32}', 'hints={"num_ctas": (None, 2)}, shipped={"T": 32, "num_ctas": 2}'
    )
    task = loaded(applied(ENTRY, hinted, tmp_path, 2), tmp_path)
    dims = task.workloads["large"]
    assert task.launched(task.space.shipped, dims, task.arrays(dims), H200).grid == (132,)


def test_a_return_ends_the_item_and_not_the_block(tmp_path: Path) -> None:
    new = applied(ENTRY, EARLY, tmp_path, 2)
    assert "        if row % 3 == 7:\n            continue\n" in new
    assert "    for row in range" in new.split("factor = ct.load")[0], "nothing moves in front of the return"
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_an_inner_loop_and_a_block_id_within_an_expression(tmp_path: Path) -> None:
    new = applied(ENTRY, NORM, tmp_path, 2, on=replace(H200, sms=4))
    assert "            row = item * ROWS + i\n" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_helpers_that_read_the_blocks_id_get_it_from_the_kernel(tmp_path: Path) -> None:
    """Also through another helper."""
    new = applied(ENTRY, WITH_HELPER, tmp_path, 2)
    assert (
        """\
def _twice(block, block_2, half):
    # of this block
    here = block
    return half * (here + block_2)


def _row(block, block_2, shift):
    return _twice(block, block_2, half=1) // 2 + shift - 1
"""
        in new
    )
    assert "row = _row(item, item, 1)" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


NESTED = SCALE_ROWS.replace("    row = ct.bid(0)", "    row = _mean(_mean(ct.bid(0)))", 1).replace(
    "@ct.kernel",
    """\
def _shifted(by):
    return ct.bid(0) + by


def _mean(row):
    return (ct.bid(0) + _shifted(0) + row) // 3


@ct.kernel""",
    1,
)


def test_a_helper_that_reads_an_id_and_calls_another_gets_it_once_also_within_its_own_call(tmp_path: Path) -> None:
    new = applied(ENTRY, NESTED, tmp_path, 2)
    assert "def _mean(block, row):\n    return (block + _shifted(block, 0) + row) // 3\n" in new
    assert "row = _mean(item, _mean(item, item))" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_a_kernel_whose_helper_has_a_loop_over_items_is_persistent_already(tmp_path: Path) -> None:
    text = SCALE_ROWS.replace("    row = ct.bid(0)", "    row = _last(8192)").replace(
        "@ct.kernel",
        "def _last(rows):\n    row = 0\n    for row in range(ct.bid(0), rows, ct.num_blocks(0)):\n        pass\n"
        "    return row\n\n\n@ct.kernel",
        1,
    )
    assert not ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))


REFUSED = {
    "an id in a function": (
        WITH_HELPER.replace("@ct.kernel", "known = [_twice]\n\n\n@ct.kernel", 1),
        "_twice, which scale_rows calls, reads the block's id .* not all its calls are known",
    ),
    "an id in a function of two kernels": (
        WITH_HELPER.replace("\n@ct.kernel\ndef scale_rows", OTHER),
        "_twice, which scale_rows calls, reads the block's id .* other calls it, too",
    ),
    "a return in a loop": (
        SCALE_ROWS.replace("    factor =", "    for i in range(3):\n        if i == row: return\n    factor ="),
        "returns from within a loop",
    ),
    "a parameter that is changed": (
        SCALE_ROWS.replace("    factor =", "    TILE_N = TILE_N + row * 0\n    factor ="),
        "changes its parameter TILE_N",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_it_says_what_it_does_not_change(why: str) -> None:
    text, reason = REFUSED[why]
    source = Source("task.py", text)
    line, column = source.place(source.kernels["scale_rows"])
    with pytest.raises(NotApplicable, match=reason):
        ENTRY.apply(source, Site("scale_rows", line, column, "", (2,)), 2)


def test_a_load_of_an_array_that_the_kernel_writes_stays_in_the_loop(tmp_path: Path) -> None:
    own = SCALE_ROWS.replace("ct.load(weight, (0,), (TILE_N,)", "ct.load(y, (0, 0), (1, TILE_N)")
    source = Source("task.py", own)
    line, column = source.place(source.kernels["scale_rows"])
    new = ENTRY.apply(source, Site("scale_rows", line, column, "", (2,)), 2)
    assert "        factor = ct.load(y" in new


def test_it_works_after_a_from_import(tmp_path: Path) -> None:
    text = SCALE_ROWS.replace("import cuda.tile as ct\n", "import cuda.tile as ct\nfrom cuda.tile import bid\n")
    new = applied(ENTRY, text.replace("row = ct.bid(0)", "row = bid(axis=0)"), tmp_path, 2)
    assert "for row in range(ct.bid(0), items, ct.num_blocks(0)):" in new
