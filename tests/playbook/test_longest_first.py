"""Blocks with long loops start first."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import changed_lines, verdict
from tests.playbook.plain import NORM, applied, launch_facts
from tests.playbook.row_loops import CAUSAL, EQUAL, IN_HELPER, NO_WINDOW, SHRINKING, TWO_PARTS, WINDOW

from tilewright.playbook.entries.longest_first import ENTRY, OF_ALL, REVERSED
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, loaded


class TestLongestFirst(EntryContract):
    entry = ENTRY
    examples: ClassVar = {
        "a loop up to the block's id": CAUSAL,
        "the start depends on it, too": NO_WINDOW,
        "a loop in a helper": IN_HELPER,
        "a short part of the loop comes first": TWO_PARTS,
    }
    elsewhere: ClassVar = {
        "equal loops": EQUAL,
        "the helper gets a number": IN_HELPER.replace("added(x, total, row,", "added(x, total, 2,"),
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


def test_the_longest_of_all_start_first(tmp_path: Path) -> None:
    """Blocks of axis 0 start one after another: without the change, those of each column from the longest on."""
    new = applied(ENTRY, CAUSAL, tmp_path, OF_ALL)
    ((_, changed),) = [changed_lines(CAUSAL, new)]
    number = "(ct.bid(0) + ct.bid(1) * ct.num_blocks(0))"
    row, column = f"ct.num_blocks(0) - 1 - {number} // ct.num_blocks(1)", f"{number} % ct.num_blocks(1)"
    assert changed == [f"row, column = {row}, {column}"]
    code = changed[0].partition(" = ")[2].replace("ct.bid(0)", "x").replace("ct.bid(1)", "y")
    code = code.replace("ct.num_blocks(0)", "5").replace("ct.num_blocks(1)", "3")
    order = [eval(code, {"x": x, "y": y}) for y in range(3) for x in range(5)]
    assert order == [(row, column) for row in reversed(range(5)) for column in range(3)]
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


@pytest.mark.parametrize(("rows", "values"), [(1 << 20, {REVERSED}), ((1 << 20) - 1, {REVERSED, OF_ALL})])
def test_the_number_of_a_block_has_31_bits(rows: int, values: set[str], tmp_path: Path) -> None:
    text = CAUSAL.replace("(32, -(-N // 16))", f"({rows}, 1 << 11)")
    [site] = ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))
    assert set(site.values) == values


def test_all_reads_of_both_ids_are_exchanged(tmp_path: Path) -> None:
    text = CAUSAL.replace("ct.store(y, (row, column)", "ct.store(y, (ct.bid(0), ct.bid(1))")
    new = applied(ENTRY, text, tmp_path, OF_ALL)
    assert new.count("% ct.num_blocks(1)") == 2 and new.count("// ct.num_blocks(1)") == 2
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_one_axis_has_no_others_to_wait_for(tmp_path: Path) -> None:
    """The ids of axis 1 count slowest: the longest of all are first once they are reversed."""
    for text in (
        CAUSAL.replace("ct.bid(0), ct.bid(1)", "ct.bid(0), 0").replace("(32, -(-N // 16))", "(32,)"),
        CAUSAL.replace("ct.bid(0), ct.bid(1)", "ct.bid(1), ct.bid(0)").replace(
            "(32, -(-N // 16))", "(-(-N // 16), 32)"
        ),
    ):
        [site] = ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))
        assert site.values == (REVERSED,)


def test_a_part_that_constants_leave_out_does_not_count(tmp_path: Path) -> None:
    start = NO_WINDOW.index("    for n in range")
    part = NO_WINDOW[start : NO_WINDOW.index("    ct.store")]
    behind = "    if T < 0:\n" + "".join(f"    {line}\n" for line in part.splitlines())
    text = NO_WINDOW.replace(part, behind + part)
    assert len(ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))) == 1


BOTH = "row, column = ct.bid(0), ct.bid(1)"
MINE = CAUSAL.replace("y, (row, column)", "y, (mine(), column)")
NAMES = CAUSAL.replace(
    "import cuda.tile as ct", "from cuda.tile import Constant, PaddingMode, bid, float32, kernel, load, store, zeros"
).replace("ct.", "")
COUNT = "ct.atomic_add(y, (row, 1), 0.0)"
LOCK = f"    while {COUNT} < 1.0:\n        pass\n    total"
ATTEMPTS = f"    for _ in range(99):\n        if {COUNT} > 0.0:\n            break\n    total"
LEFT_ALONE = {
    "the id under another name": MINE.replace(BOTH, f"mine = ct.bid\n    {BOTH}").replace("mine()", "mine(0)"),
    "another name in the file": MINE.replace("mine()", "mine(0)").replace(
        "\n@ct.kernel", "mine = ct.bid\n\n\n@ct.kernel"),
    "a function of another file": MINE.replace("import numpy", "from other import mine\nimport numpy"),
    "a module": MINE.replace("mine()", "other.mine()").replace("import numpy", "import other\nimport numpy"),
    "the number of blocks is not imported": NAMES,
    "the number of blocks is a tile": NAMES.replace("bid,", "bid, num_blocks,").replace(
        "    total = zeros", "    num_blocks = 3\n    total = zeros"
    ),
    "a lock": CAUSAL.replace("    total", LOCK, 1),
    "a number of attempts": CAUSAL.replace("    total", ATTEMPTS, 1),
}  # fmt: skip


@pytest.mark.parametrize("text", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_kernels_whose_blocks_may_not_be_exchanged(text: str, tmp_path: Path) -> None:
    """Some ids would stay as they are, or a block would wait for one that starts later."""
    assert ENTRY.sites(Source("task.py", CAUSAL), launch_facts(CAUSAL, tmp_path))
    assert not ENTRY.sites(Source("task.py", text), launch_facts(CAUSAL, tmp_path))


def test_a_kernel_without_its_launch_in_the_file(tmp_path: Path) -> None:
    """A library's kernel: any launch of it computes the same in another order."""
    kernel = IN_HELPER[: IN_HELPER.index("def reference")]
    [site] = ENTRY.sites(Source("library.py", kernel), launch_facts(IN_HELPER, tmp_path))
    assert set(site.values) == {REVERSED, OF_ALL}
