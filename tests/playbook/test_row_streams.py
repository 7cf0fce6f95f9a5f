"""Whole rows by tile access in a persistent kernel: the composed text, its results, and its place among the entries."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent, indent
from typing import ClassVar

import pytest
from tests.playbook.flat_rows import FLAT, conditions_on
from tests.playbook.kit import only, run_of, verdict
from tests.playbook.plain import SCALE_ROWS, launch_facts
from tests.playbook.row_loops import LEAVES, LONG, ONCE, SOFTMAX, TWICE

from tilewright.playbook.base import NotApplicable
from tilewright.playbook.entries import tile_load, tile_streams
from tilewright.playbook.entries.row_streams import BLOCKS, ENTRY, GATHERS, OCCUPANCY, ROWS, TILES
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, loaded

FEW = FLAT.replace('"M": 601', '"M": 37').replace('"M": 300', '"M": 32')
CONSTANTS = " with W=1"


class TestRowStreams(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"flat": FLAT, "two loops": TWICE, "in a persistent kernel": SOFTMAX}
    elsewhere: ClassVar = {
        "each row once": SCALE_ROWS,
        "rows that do not fit": LONG,
        "each element once": ONCE,
        "a loop that ends early": LEAVES,
        "too few rows for a persistent grid": FEW,
    }


def streamed(text: str, value: str, folder: Path) -> str:
    source = Source("task.py", text)
    return ENTRY.apply(source, only(ENTRY.sites(source, launch_facts(text, folder))), value)


def test_one_field_has_rows_blocks_and_the_gathers(tmp_path: Path) -> None:
    [site] = ENTRY.sites(Source("task.py", FLAT), launch_facts(FLAT, tmp_path))
    tiles = [f"{TILES}{CONSTANTS},{rows},{blocks}" for rows in ROWS for blocks in BLOCKS]
    gathers = [f"{GATHERS}{CONSTANTS}{hint and ','}{hint}" for hint in OCCUPANCY]
    assert list(site.values) == [*tiles, *gathers]


def test_two_rows_are_left_out_where_they_do_not_fit(tmp_path: Path) -> None:
    wide = TWICE.replace('"M": 2048, "N": 500', '"M": 2048, "N": 20000')
    [site] = ENTRY.sites(Source("task.py", wide), launch_facts(wide, tmp_path))
    assert [value for value in site.values if "TILE_ROWS=1" in str(value)]
    assert not [value for value in site.values if "TILE_ROWS=2" in str(value)]


def test_the_composed_kernel(tmp_path: Path) -> None:
    """The row is loaded once, the mask of zeros is gone, and the weights are loaded before the rows."""
    new = streamed(FLAT, f"{TILES}{CONSTANTS},{ROWS[0]},{BLOCKS[0]}", tmp_path)
    kernel = new[
        new.index(f"    if TILE >= C > 0 and (W == 1) and {conditions_on('STRIDE')}:") : new.index("    else:\n")
    ]
    before, _, rows = kernel.partition(
        "    for row in range(ct.bid(0), ct.cdiv(items, TILE_ROWS), ct.num_blocks(0)):\n"
    )
    assert "ct.load(w, (0,), (TILE,)" in before
    assert rows.count("ct.load(") == 1 and rows.count("ct.where(") == 1 and "gather" not in kernel
    view = (
        "ct.Array.from_foreign({0}.foreign_pointer, ({0}.shape[0] // STRIDE, min(C, STRIDE // STEP)), (STRIDE, STEP))"
    )
    assert all(view.format(array) in " ".join(rows.split()).replace("( ", "(").replace(" )", ")") for array in "xy")
    assert "allow_tma=False" in rows
    assert "(min(M, hardware.sms * config.BLOCKS_PER_SM)" in "".join(new.partition("tw.Launch(")[2].split("\n"))


@pytest.mark.parametrize(
    "form", [f"{TILES}{CONSTANTS},{rows},{BLOCKS[1]}" for rows in ROWS] + [f"{GATHERS}{CONSTANTS}"]
)
@pytest.mark.parametrize("sizes", ['"M": 601, "N": 48', '"M": 601, "N": 64'])
def test_the_result_is_right_for_odd_rows_and_padded_tiles(form: str, sizes: str, tmp_path: Path) -> None:
    text = FLAT.replace('"M": 601, "N": 48', sizes)
    assert verdict(loaded(streamed(text, form, tmp_path), tmp_path)).verdict.startswith("correct")


@pytest.mark.parametrize("other", ["N, 1, N, 2, 64", "N, 1, N, 1, 32", "N, 1, N - 5, 1, 64"])
def test_other_constants_of_the_launch_compute_what_they_did(other: str, tmp_path: Path) -> None:
    """Another width, chunks of a part of a row, and rows that are longer than what the kernel reads of them."""
    one = FLAT.replace(', "even": {"M": 300, "N": 64}', "")
    given = "N, 1, N, 1, 1 << (N - 1).bit_length()"
    new = streamed(one, f"{TILES}{CONSTANTS},{ROWS[0]},{BLOCKS[0]}", tmp_path)
    assert given in one and given in new
    before, after = one.replace(given, other), new.replace(given, other)
    for output in ("y", "mean"):
        assert run_of(after, tmp_path, output)[0] == run_of(before, tmp_path, output)[0]


def test_a_row_that_is_only_partly_in_the_array_is_computed_as_before(tmp_path: Path) -> None:
    one = FLAT.replace(', "even": {"M": 300, "N": 64}', "").replace(
        '"x": tw.Tensor(("M * N",)', '"x": tw.Tensor(("M * N - 5",)'
    )
    new = streamed(one, f"{TILES}{CONSTANTS},{ROWS[0]},{BLOCKS[0]}", tmp_path)
    assert run_of(new, tmp_path, "y")[0] == run_of(one, tmp_path, "y")[0]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("gaps", [{"x": 2}, {"y": 2}])
def test_arrays_with_gaps_compute_what_they_did(rows: str, gaps: dict[str, int], tmp_path: Path) -> None:
    one = FLAT.replace(', "even": {"M": 300, "N": 64}', "")
    new = streamed(one, f"{TILES}{CONSTANTS},{rows},{BLOCKS[0]}", tmp_path)
    for output in ("y", "mean"):
        assert run_of(new, tmp_path, output, gaps=gaps)[0] == run_of(one, tmp_path, output, gaps=gaps)[0]


@pytest.mark.long
def test_the_test_of_the_strides_is_not_compiled(tmp_path: Path) -> None:
    """The machine code is that without it."""
    wide = FLAT.replace('"ragged": {"M": 601, "N": 48}, "even": {"M": 300, "N": 64}', '"wide": {"M": 16384, "N": 3072}')
    new = streamed(wide, f"{TILES}{CONSTANTS},{ROWS[1]},{BLOCKS[0]}", tmp_path)
    unguarded = new.replace(" and x.strides[0] == 1", "").replace(" and y.strides[0] == 1", "")
    assert unguarded != new
    [guarded], [alone] = (codes_of(loaded(text, tmp_path)).values() for text in (new, unguarded))
    assert guarded.code_hash == alone.code_hash
    assert "UTMALDG" in {name.partition(".")[0] for name in guarded.copies}


def test_a_kernel_without_deciding_constants_tests_the_strides_alone(tmp_path: Path) -> None:
    one = FLAT.replace(', "even": {"M": 300, "N": 64}', "").replace(
        "        else:\n            total = total + first\n", ""
    )
    plain = re.sub(r" +if W == 1:\n((?: {12}.*\n)+)", lambda found: indent(dedent(found[1]), " " * 8), one)
    new = streamed(plain, f"{TILES},{ROWS[0]},{BLOCKS[0]}", tmp_path)
    assert f"    if {conditions_on('STRIDE')}:\n" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")
    wide = streamed(plain, f"{GATHERS}", tmp_path)
    assert "strides" not in wide
    gaps = {"x": 2, "y": 2}
    assert run_of(new, tmp_path, "y", gaps=gaps)[0] == run_of(wide, tmp_path, "y", gaps=gaps)[0]


def test_a_form_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable, match="no form of this entry; known: tiles, gathers"):
        streamed(FLAT, "rows", tmp_path)


def test_it_is_tried_before_what_its_parts_would_try_alone() -> None:
    assert ENTRY.combined and not tile_load.ENTRY.combined
    assert ENTRY.about.effect.expected > tile_streams.ENTRY.about.effect.expected
    assert set(tile_streams.ENTRY.about.eases) <= set(ENTRY.about.eases)
