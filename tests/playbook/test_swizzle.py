"""Entry I: block swizzle with the last group clamped (K1 I, X-19)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st
from tests.playbook.kit import verdict
from tests.playbook.plain import BATCHED_PRODUCT, HALF_PRODUCT, LINEAR_PRODUCT, SCALE_ROWS, applied

from tilewright.playbook.base import Site
from tilewright.playbook.entries import persistent
from tilewright.playbook.entries.swizzle import ENTRY
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, facts_of, loaded


class TestSwizzle(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"two ids": HALF_PRODUCT, "one number": LINEAR_PRODUCT}
    elsewhere: ClassVar = {
        "no product": SCALE_ROWS,
        "few tiles": HALF_PRODUCT.replace('"M": 2000, "N": 1999', '"M": 64, "N": 64'),
    }


def test_two_block_ids_become_one_and_the_grid_one_axis(tmp_path: Path) -> None:
    new = applied(ENTRY, HALF_PRODUCT, tmp_path, 4)
    assert """\
    tile = ct.bid(0)
    in_band = GROUP_SIZE_M * columns
    top = tile // in_band * GROUP_SIZE_M
    band = min(rows - top, GROUP_SIZE_M)  # the last band may be lower
    row = top + tile % in_band % band
    column = tile % in_band // band
""" in new  # fmt: skip
    assert "def product(a, b, c, T: ct.Constant[int], rows, columns, GROUP_SIZE_M: ct.Constant[int]):" in new
    assert "(items,), (a, b, c, config.T, grid[0], grid[1], config.GROUP_SIZE_M)" in new
    assert 'constants={"T": (32,), "GROUP_SIZE_M": (4, 8, 16)}, shipped={"T": 32, "GROUP_SIZE_M": 4}' in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_bands_that_a_kernel_has_get_another_height(tmp_path: Path) -> None:
    banded = applied(ENTRY, HALF_PRODUCT, tmp_path, 4)
    [site] = ENTRY.sites(Source("task.py", banded), facts_of(loaded(banded, tmp_path)))
    assert site.values == ("GROUP_SIZE_M=8", "GROUP_SIZE_M=16")
    higher = applied(ENTRY, HALF_PRODUCT, tmp_path, 16)
    assert ENTRY.apply(Source("task.py", banded), site, "GROUP_SIZE_M=16") == higher
    low = banded.replace("tw.Space(", "tw.Space(where=[lambda GROUP_SIZE_M: GROUP_SIZE_M < 16], ")
    [site] = ENTRY.sites(Source("task.py", low), facts_of(loaded(low, tmp_path)))
    assert site.values == ("GROUP_SIZE_M=8",), "the space allows no other"


def test_a_height_that_the_kernel_has_as_a_literal(tmp_path: Path) -> None:
    """As TileGym's products have it."""
    knob = applied(ENTRY, HALF_PRODUCT, tmp_path, 4)
    own = knob.replace(", GROUP_SIZE_M: ct.Constant[int]):", "):\n    GROUP_SIZE_M = 4")
    own = own.replace(", config.GROUP_SIZE_M)", ")").replace(', "GROUP_SIZE_M": (4, 8, 16)', "")
    own = own.replace(', "GROUP_SIZE_M": 4', "")
    [site] = ENTRY.sites(Source("task.py", own), facts_of(loaded(own, tmp_path)))
    assert (site.what, site.values) == ("GROUP_SIZE_M of product", (8, 16))
    new = ENTRY.apply(Source("task.py", own), site, 16)
    assert new == own.replace("GROUP_SIZE_M = 4", "GROUP_SIZE_M = 16") != own
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")
    twice = own.replace("    GROUP_SIZE_M = 4", "    GROUP_SIZE_M = 4\n    GROUP_SIZE_M = GROUP_SIZE_M * 2")
    assert not ENTRY.sites(Source("task.py", twice), facts_of(loaded(twice, tmp_path)))


def test_a_batch_keeps_its_axis(tmp_path: Path) -> None:
    split = BATCHED_PRODUCT.replace("row, column, z = ct.bid(0), ct.bid(1), ct.bid(2)",
                                    "row, column = ct.bid(0), ct.bid(1)\n    z = ct.bid(2)")  # fmt: skip
    new = applied(ENTRY, split, tmp_path, 4)
    assert "(grid[0] * grid[1], 1, grid[2])" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_one_number_in_row_major_order_needs_no_other_grid(tmp_path: Path) -> None:
    new = applied(ENTRY, LINEAR_PRODUCT, tmp_path, 16)
    assert "    band = min(ct.cdiv(ct.num_blocks(0), columns) - top, GROUP_SIZE_M)" in new
    assert "(-(-M // config.T) * -(-N // config.T),)" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_before_and_after_persistence(tmp_path: Path) -> None:
    for first, second in ((ENTRY, persistent.ENTRY), (persistent.ENTRY, ENTRY)):
        text = HALF_PRODUCT
        for entry in (first, second):
            text = applied(entry, text, tmp_path, 4)
        assert "for " in text and "in_band" in text
        assert verdict(loaded(text, tmp_path)).verdict.startswith("correct")


def test_a_batch_after_persistence(tmp_path: Path) -> None:
    """The index of the batch is split off the item first."""
    split = BATCHED_PRODUCT.replace("row, column, z = ct.bid(0), ct.bid(1), ct.bid(2)",
                                    "row, column = ct.bid(0), ct.bid(1)\n    z = ct.bid(2)")  # fmt: skip
    text = applied(persistent.ENTRY, split, tmp_path, 2)
    new = applied(ENTRY, text, tmp_path, 4)
    assert "tile = item % (grid_1 * grid_0)" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


MODULE = """
import cuda.tile as ct


@ct.kernel
def grouped(As, Bs, Cs, T: ct.Constant[int]):
    for g in range(len(As)):
        a, b, c = As[g], Bs[g], Cs[g]
        rows = ct.num_tiles(a, 0, (T, T))
        columns = ct.num_tiles(b, 1, (T, T))
        tiles = rows * columns
        for tile in range(tiles):
            row = tile // columns
            column = tile % columns
            left = ct.load(a, (row, 0), (T, T))
            right = ct.load(b, (0, column), (T, T))
            ct.store(c, (row, column), ct.mma(left, right, ct.zeros((T, T), ct.float32)))
"""


def test_a_module_without_a_launch_gets_a_number() -> None:
    """A kernel library: the launch is not in the file, so GROUP_SIZE_M is a constant of the kernel."""
    source = Source("library.py", MODULE)
    line = next(n for n, one in enumerate(MODULE.splitlines(), 1) if "row = tile //" in one)
    new = ENTRY.apply(source, Site("grouped", line, 12, "", (8,)), 8)
    assert "            GROUP_SIZE_M = 8\n            in_band = GROUP_SIZE_M * columns\n" in new
    assert "band = min(rows - top, GROUP_SIZE_M)" in new


def order(new: str, rows: int, columns: int, height: int) -> list[tuple[int, int]]:
    """The tiles in the order in which the statements that the entry writes walk over them."""
    lines = [line.strip() for line in new.splitlines()]
    first = lines.index("in_band = GROUP_SIZE_M * columns")
    code = compile("\n".join(lines[first : first + 5]), "swizzle", "exec")
    walked = []
    for tile in range(rows * columns):
        names = {"tile": tile, "rows": rows, "columns": columns, "GROUP_SIZE_M": height}
        exec(code, names)
        walked.append((names["row"], names["column"]))
    return walked


def changed_product() -> str:
    source = Source("task.py", HALF_PRODUCT)
    line = next(n for n, one in enumerate(HALF_PRODUCT.splitlines(), 1) if "row, column = ct.bid" in one)
    return ENTRY.apply(source, Site("product", line, 4, "", (8,)), 8)


NEW = changed_product()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 16))
def test_every_tile_is_walked_once(rows: int, columns: int, height: int) -> None:
    """X-19: also where the last band is lower than the others."""
    walked = order(NEW, rows, columns, height)
    assert sorted(walked) == [(row, column) for row in range(rows) for column in range(columns)]


def test_every_tile_is_walked_once_in_all_small_grids() -> None:
    for rows in range(1, 41):
        for height in range(1, 17):
            for columns in (1, 2, 3, 7, 40):
                assert len(set(order(NEW, rows, columns, height))) == rows * columns


def test_neighbours_share_a_band() -> None:
    """The first blocks stay in the first rows: that is what the L2 has of it."""
    assert {row for row, _ in order(NEW, 10, 4, 8)[: 8 * 4]} == set(range(8))
