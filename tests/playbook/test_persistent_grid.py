"""The grid of a persistent kernel: another number of blocks for each SM."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import only, run_of, verdict
from tests.playbook.plain import SCALE_ROWS, applied
from tests.playbook.row_loops import SOFTMAX

from tilewright.playbook.base import NotApplicable
from tilewright.playbook.entries.persistent_grid import ENTRY
from tilewright.source.syntax import Source
from tilewright.testing.entries import H200, EntryContract, facts_of, loaded

LOOP = "for row in range(ct.bid(0), ROWS, ct.num_blocks(0)):"
NAMED = SOFTMAX.replace(
    LOOP, "block = ct.bid(0)\n    blocks = ct.num_blocks(0)\n    for row in range(block, ROWS, blocks):"
)
AXES = SOFTMAX.replace("tw.Launch(softmax, (min(M, 264),)", "tw.Launch(softmax, (264, 1, 1)")
COUNTS = SOFTMAX.replace(LOOP, f"done = 0\n    {LOOP}\n        done = done + 1")
AFTERWARDS = SOFTMAX.replace(LOOP, f"{LOOP}\n        last = row")
OWN_ID = SOFTMAX.replace(LOOP, f"{LOOP}\n        mine = ct.bid(0)")
STEP = SOFTMAX.replace("ct.num_blocks(0)", "264")
OTHER_AXIS = SOFTMAX.replace("ct.num_blocks(0)", "ct.num_blocks(1)")
BY_CONFIG = SOFTMAX.replace("tw.Launch(softmax, (min(M, 264),)", "tw.Launch(softmax, (264 * config.TILE // 256,)")


class TestPersistentGrid(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"softmax": SOFTMAX, "named": NAMED}
    elsewhere: ClassVar = {
        "one row a block": SCALE_ROWS,
        "a value that the next item reads": COUNTS,
        "the block's id within an item": OWN_ID,
        "a step of another size": STEP,
        "another axis": OTHER_AXIS,
        "the space varies the grid": BY_CONFIG,
    }


def test_the_grid_follows_the_sms_and_the_space_has_the_knob(tmp_path: Path) -> None:
    task = loaded(applied(ENTRY, SOFTMAX, tmp_path, "1"), tmp_path)
    dims = task.selected(None)[0].dims
    for blocks in (1, 16):
        config = task.space.shipped.replace(BLOCKS_PER_SM=blocks)
        assert task.launched(config, dims, task.arrays(dims), H200).grid == (blocks * H200.sms,)
    assert task.space.constants["BLOCKS_PER_SM"] == (1, 2, 4, 8, 16)


def test_fewer_blocks_are_tried_with_more_warps_too(tmp_path: Path) -> None:
    site = only(ENTRY.sites(Source("task.py", SOFTMAX), facts_of(loaded(SOFTMAX, tmp_path))))
    assert site.values == ("1", "4", "8", "16", "1,num_worker_warps=8")
    task = loaded(applied(ENTRY, SOFTMAX, tmp_path, "1,num_worker_warps=8"), tmp_path)
    assert (task.space.shipped["BLOCKS_PER_SM"], task.space.shipped["num_worker_warps"]) == (1, 8)


def test_axes_stay(tmp_path: Path) -> None:
    task = loaded(applied(ENTRY, AXES, tmp_path, "1"), tmp_path)
    dims = task.selected(None)[0].dims
    assert task.launched(task.space.shipped, dims, task.arrays(dims), H200).grid == (132, 1, 1)


@pytest.mark.parametrize("blocks", ["1,num_worker_warps=8", "16"])  # fewer blocks than rows, and more
def test_every_grid_gives_the_same_bits(blocks: str, tmp_path: Path) -> None:
    text = applied(ENTRY, SOFTMAX, tmp_path, blocks)
    assert run_of(text, tmp_path, "y")[0] == run_of(SOFTMAX, tmp_path, "y")[0]
    assert verdict(loaded(text, tmp_path)).verdict.startswith("correct")


def test_a_value_that_is_read_after_the_last_item_is_refused(tmp_path: Path) -> None:
    end = AFTERWARDS.replace(
        "\n\n\ndef reference", "\n    ct.store(y, (0, 0), ct.full((1, 1), last, ct.float32))\n\n\ndef reference"
    )
    assert end != AFTERWARDS
    source = Source("task.py", end)
    site = only(ENTRY.sites(Source("task.py", SOFTMAX), facts_of(loaded(SOFTMAX, tmp_path))))
    with pytest.raises(NotApplicable, match="last of softmax is kept"):
        ENTRY.apply(source, site, "1")


def test_the_reason_why_it_does_not_apply_is_known(tmp_path: Path) -> None:
    facts = facts_of(loaded(COUNTS, tmp_path))
    assert "done of softmax is kept from one item to the next" in ENTRY.why_not(Source("task.py", COUNTS), facts)
