"""The grid of a persistent kernel: another number of blocks for each SM."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import libcst as cst
import pytest
from tests.playbook.kit import only, run_of, verdict
from tests.playbook.plain import HEAD, SCALE_ROWS, applied, launch_facts
from tests.playbook.row_loops import SOFTMAX

from tilewright.playbook.analyses.dataflow import range_of
from tilewright.playbook.analyses.launch_expressions import in_launch
from tilewright.playbook.base import NotApplicable
from tilewright.playbook.entries.persistent_grid import EACH_ITEM, ENTRY, RESIDENT
from tilewright.source.syntax import Source
from tilewright.testing.entries import H200, EntryContract, facts_of, loaded

LOOP = "for row in range(ct.bid(0), ROWS, ct.num_blocks(0)):"
NAMED = SOFTMAX.replace(
    LOOP, "bid = ct.bid(0)\n    num_blocks = ct.num_blocks(0)\n    for row in range(bid, ROWS, num_blocks):"
)
AXES = SOFTMAX.replace("tw.Launch(softmax, (min(M, 264),)", "tw.Launch(softmax, (264, 1, 1)")
COUNTS = SOFTMAX.replace(LOOP, f"done = 0\n    {LOOP}\n        done = done + 1")
AFTERWARDS = SOFTMAX.replace(LOOP, f"{LOOP}\n        last = row")
OWN_ID = SOFTMAX.replace(LOOP, f"{LOOP}\n        mine = ct.bid(0)")
STEP = SOFTMAX.replace("ct.num_blocks(0)", "264")
OTHER_AXIS = SOFTMAX.replace("ct.num_blocks(0)", "ct.num_blocks(1)")
BY_TILES = SOFTMAX.replace("ROWS: ct", "ROWS_: ct").replace(
    LOOP, "count = x.shape[0]\n    for row in range(ct.bid(0), (count + 2 - 1) // 2 * 2, ct.num_blocks(0)):"
)
TILES = SOFTMAX.replace(LOOP, "for row in range(ct.bid(0), ct.num_tiles(x, 0, (1, TILE)), ct.num_blocks(0)):")
TWICE = SOFTMAX.replace(LOOP, f"ROWS = ROWS + ct.bid(0) * 0\n    {LOOP}")
LOCAL = SOFTMAX.replace(
    "    return tw.Launch(softmax, (min(M, 264),), (y, x, M,",
    "    rows = M\n    return tw.Launch(softmax, (min(M, 264),), (y, x, rows,",
)
BY_ROWS = (
    HEAD
    + """
@ct.kernel
def scale(y, x, TILE: ct.Constant[int], COLUMNS: ct.Constant[int]):
    for item in range(ct.bid(0), ct.cdiv(x.shape[0], TILE), ct.num_blocks(0)):
        tile = ct.load(x, (item, 0), (TILE, COLUMNS))
        ct.store(y, (item, 0), tile * 2)


def launch(y, x, M, N, config):
    return tw.Launch(scale, (132,), (y, x, config.TILE, N))


task = tw.Task(
    name="scale",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output(("M", "N"), "bfloat16")},
    reference=lambda x: x * 2,
    launch=launch,
    flops=lambda M, N: M * N,
    space=tw.Space(constants={"TILE": (1, 2, 4, 8, 16)}, shipped={'TILE': 8}),
    workloads={"rows": {"M": 4096, "N": 1024}},
)
"""
)
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
    each_item = [f"{EACH_ITEM},{hints}".rstrip(",") for hints in RESIDENT]
    assert site.values == (*each_item, "1", "4", "8", "16", "1,num_worker_warps=8")
    task = loaded(applied(ENTRY, SOFTMAX, tmp_path, "1,num_worker_warps=8"), tmp_path)
    assert (task.space.shipped["BLOCKS_PER_SM"], task.space.shipped["num_worker_warps"]) == (1, 8)


def test_a_block_for_each_item_is_tried_with_fewer_rows_and_their_own_hints(tmp_path: Path) -> None:
    """Hints that were chosen for a large tile spill, or cross CTAs, where the tile is small."""
    several = BY_ROWS.replace("'TILE': 8}", "'TILE': 8, 'num_ctas': 2}").replace(
        "space=tw.Space(", "space=tw.Space(hints={'num_ctas': (None, 2)}, "
    )
    each_item = [f"{EACH_ITEM},{hints}".rstrip(",") for hints in RESIDENT]
    for text, hints in ((BY_ROWS, ""), (several, ",num_ctas=1")):
        site = only(ENTRY.sites(Source("task.py", text), facts_of(loaded(text, tmp_path))))
        rows = (2, 4, 8) if hints else (1, 2, 4)
        fewer = [f"{EACH_ITEM},TILE={each},occupancy={held}{hints}" for each in rows for held in (4, 8)]
        assert site.values[: len(each_item) + 6] == (*each_item, *fewer)
    task = loaded(applied(ENTRY, several, tmp_path, fewer[0]), tmp_path)
    assert {name: task.space.shipped[name] for name in ("TILE", "occupancy", "num_ctas")} == {
        "TILE": 2, "occupancy": 4, "num_ctas": 1,
    }  # fmt: skip
    dims = task.selected(None)[0].dims
    assert task.launched(task.space.shipped, dims, task.arrays(dims), H200).grid == (dims["M"] // 2,)


def test_fewer_rows_are_those_that_the_space_allows(tmp_path: Path) -> None:
    text = BY_ROWS.replace("tw.Space(", "tw.Space(where=[lambda TILE: TILE > 2], ")
    site = only(ENTRY.sites(Source("task.py", text), facts_of(loaded(text, tmp_path))))
    assert {value.split(",")[1] for value in map(str, site.values) if "TILE" in value} == {"TILE=4"}


def test_axes_stay(tmp_path: Path) -> None:
    task = loaded(applied(ENTRY, AXES, tmp_path, "1"), tmp_path)
    dims = task.selected(None)[0].dims
    assert task.launched(task.space.shipped, dims, task.arrays(dims), H200).grid == (132, 1, 1)


@pytest.mark.parametrize(
    ("text", "grid"),
    [(SOFTMAX, "(M,)"), (AXES, "(M, 1, 1)"), (BY_TILES, "(max(1, ((((M + 2) - 1) // 2) * 2)),)"),
     (TILES, "(max(1, -(-M // 1)),)"), (LOCAL, "(max(1, rows),)")],
)  # fmt: skip
def test_a_block_for_each_item(text: str, grid: str, tmp_path: Path) -> None:
    changed = applied(ENTRY, text, tmp_path, EACH_ITEM)
    assert f"tw.Launch(softmax, {grid}, " in changed
    task = loaded(changed, tmp_path)
    dims = task.selected(None)[0].dims
    launched = task.launched(task.space.shipped, dims, task.arrays(dims), H200)
    assert launched.grid[0] == 512 and launched.args[-1] is True, "the kernel knows that its loop runs once"


@pytest.mark.long
def test_a_block_for_each_item_has_no_loop_over_items(tmp_path: Path) -> None:
    """Without the constant, the machine code has one loop more."""
    changed = applied(ENTRY, SOFTMAX, tmp_path, EACH_ITEM)
    loops = []
    for text in (changed, changed.replace("M < 1 << 30", "False")):
        [code] = facts_of(loaded(text, tmp_path)).codes.values()
        loops.append(len(code.loops))
    assert loops[1] == loops[0] + 1, loops


@pytest.mark.parametrize(
    ("items", "blocks"), [("ROWS // 4", 1), ("ROWS - 16", 1), ("ct.cdiv(ROWS, 4)", 1), ("ROWS", 3)]
)
def test_a_launch_without_items_has_a_block(items: str, blocks: int, tmp_path: Path) -> None:
    text = SOFTMAX.replace("ct.bid(0), ROWS,", f"ct.bid(0), {items},").replace("(min(M, 264),)", "(264,)")
    task = loaded(applied(ENTRY, text, tmp_path, EACH_ITEM), tmp_path)
    dims = {"M": 3, "N": 100}
    assert task.launched(task.space.shipped, dims, task.arrays(dims), H200).grid == (blocks,)


ARGS = SOFTMAX.replace(
    "    return tw.Launch(softmax, (min(M, 264),), (y, x, M, N, config.TILE))",
    "    args = (y, x, M, N, config.TILE)\n    M = M // 4\n    return tw.Launch(softmax, (264,), args)",
)


def test_a_variable_that_changed_after_the_arguments_is_no_number_of_items(tmp_path: Path) -> None:
    """Items would be left out."""
    assert ARGS != SOFTMAX
    assert EACH_ITEM not in only(ENTRY.sites(Source("task.py", ARGS), launch_facts(ARGS, tmp_path))).values


@pytest.mark.parametrize("end", ["count.shape[0]", "ct.num_tiles(count, 0, (1,))"])
def test_another_array_under_the_name_of_a_shorter_one_is_no_number_of_items(end: str, tmp_path: Path) -> None:
    text = rows("count = x.slice(1, 0, 1)").replace("ct.bid(0), M, ct", f"ct.bid(0), {end}, ct")
    source = Source("task.py", text)
    with pytest.raises(NotApplicable, match="the launch does not know"):
        in_launch(source, "rows", range_of(next(iter(source.every(cst.For))))[1])


def test_a_number_of_items_that_the_launch_does_not_know_is_no_grid(tmp_path: Path) -> None:
    source = Source("task.py", TWICE)
    with pytest.raises(NotApplicable, match="the launch does not know"):
        in_launch(source, "softmax", range_of(next(iter(source.every(cst.For))))[1])


@pytest.mark.parametrize(  # fewer blocks than rows, and more
    "blocks", ["1,num_worker_warps=8", "16", EACH_ITEM, f"{EACH_ITEM},occupancy=8"]
)
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


# Items that depend on each other ------------------------------------------------------------------------

ROWS = (
    HEAD
    + """
def stepped(y, row):
    ct.store(y, (row, 0), ct.load(y, (row - 8, 0), (1, 16)))


def loaded_row(x, row):
    return ct.load(x, (row, 0), (1, 16))


@ct.kernel
def rows(x, y, count, M: ct.Constant[int]):
    BEFORE
    for row in range(ct.bid(0), M, ct.num_blocks(0)):
        values = ct.load(x, (row, 0), (1, 16))
        INSIDE
        ct.store(y, (row, 0), values)
    AFTER


task = tw.Task(
    name="rows",
    tensors={"x": tw.Tensor(("M", 16), "float32"), "y": tw.Output(("M", 16), "float32"),
             "count": tw.Output((16,), "int32")},
    reference=lambda x, M: (x, np.zeros(16)),
    launch=lambda x, y, count, M: tw.Launch(rows, (8,), (x, y, count, M)),
    flops=lambda M: M,
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 64}},
)
"""
)


def rows(before: str = "pass", inside: str = "pass", after: str = "pass") -> str:
    return ROWS.replace("BEFORE", before).replace("INSIDE", inside).replace("AFTER", after)


def why_not(text: str, folder: Path) -> str:
    source, facts = Source("task.py", text), launch_facts(text, folder)
    assert not ENTRY.sites(source, facts)
    return ENTRY.why_not(source, facts)


COUNT = "ct.atomic_add(count, 0, 1)"


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("statement", [COUNT, "ct.store(y, (0, 0), ct.zeros((1, 16), ct.float32))"])
def test_what_each_block_does_once_is_refused(place: str, statement: str, tmp_path: Path) -> None:
    """The count would be that of another number of blocks."""
    assert "outside of its loop" in why_not(rows(**{place: statement}), tmp_path)


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        (f"values = values + {COUNT}", "reads the result of ct.atomic_add"),
        ("values = ct.load(y, (row - 8, 0), (1, 16))", "loads what another item may store"),
        ("ct.store(y, (row % 8, 0), ct.load(y, (row % 8, 0), (1, 16)))", "loads what another item may store"),
        ("values = ct.load(y.slice(0, 0, 8), (row, 0), (1, 16))", "loads what another item may store"),
        ("stepped(y, row)", "stepped, which rows calls, stores"),
        ("values = loaded_row(y, row - 8)", "loaded_row, which rows calls, stores, or loads what rows stores"),
        ("if row == 5:\n            break", "may end its block's loop"),
        ("if row == 5:\n            return", "may end its block's loop"),
        ("while ct.atomic_cas(count, 0, row, row + 1) != row:\n            pass", "wait for another item"),
    ],
)
def test_items_that_depend_on_each_other_are_refused(inside: str, reason: str, tmp_path: Path) -> None:
    """With another grid, other items run before, in the same block."""
    assert reason in why_not(rows(inside=inside), tmp_path)


@pytest.mark.parametrize(
    "inside",
    [
        COUNT,
        "ct.store(y, (row, 0), values)\n        values = 2 * ct.load(y, (row, 0), (1, 16))",
        "values = values + loaded_row(x, 0)",
        "for k in range(3):\n            if k == row:\n                break",
    ],
    ids=["an atomic sum", "its own row", "a function that loads", "an inner loop that ends"],
)
def test_items_that_do_not_are_changed(inside: str, tmp_path: Path) -> None:
    text = rows(inside=inside)
    new = applied(ENTRY, text, tmp_path, "1")
    for output in ("y", "count"):
        assert run_of(text, tmp_path, output) == run_of(new, tmp_path, output)
