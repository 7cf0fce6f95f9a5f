"""A flat array as rows: which accesses become tiles of a row, and which masks the padding makes needless."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

import pytest
from tests.playbook.flat_rows import conditions_on
from tests.playbook.gathers import copy
from tests.playbook.kit import run_of

from tilewright.playbook.analyses.dataflow import Effects
from tilewright.playbook.analyses.row_views import row_view
from tilewright.playbook.analyses.tile_shapes import Shapes
from tilewright.playbook.analyses.zero_masks import without_zero_masks
from tilewright.playbook.base import NotApplicable, Site
from tilewright.playbook.entries.tile_load import ENTRY, VIEWS
from tilewright.source.syntax import Source

PARAMETERS = "TILE: ct.Constant[int], COLUMNS: ct.Constant[int], STEP: ct.Constant[int], BEYOND: ct.Constant[int], n"
GIVEN = "256, N, 1, M * N, 2"
BODY = """
row = ct.bid(0)
columns = ct.arange(TILE, dtype=ct.int32)
values = ct.gather(x, {index})
{masked}
place = row * COLUMNS + columns
ct.scatter(y, ct.where(columns < COLUMNS, place, {beyond}), values)
"""


def flat(
    index: str = "row * COLUMNS + columns", beyond: str = "BEYOND", masked: str = "", shape: str = '("M * N",)'
) -> str:
    body = BODY.format(index=index, beyond=beyond, masked=masked or "kept = values")
    return copy(body, shape=shape, parameters=PARAMETERS, given=GIVEN)


def sized(text: str, rows: str, columns: str) -> str:
    """The task with one workload."""
    text = text.replace(", \"ragged\": {'M': 37, 'N': 200}", "")
    return text.replace("'M': 128, 'N': 256", f"'M': {rows}, 'N': {columns}")


def viewed(text: str) -> str:
    source = Source("task.py", text)
    return ENTRY.apply(source, Site.at(source, source.kernels["copy"], "", ()), VIEWS)


def view_of(index: str, **options: str) -> tuple[str, str, str]:
    source = Source("task.py", flat(index, **options))
    kernel = source.kernels["copy"]
    [call] = source.calls("gather", inside=kernel)
    found = row_view(source, call, Shapes(source, kernel))
    return found.array, found.row, found.block


@pytest.mark.parametrize(
    ("index", "width", "strides", "row", "block"),
    [
        ("row * COLUMNS + columns", "COLUMNS", "(COLUMNS, 1)", "row", "0"),
        ("columns * STEP + COLUMNS * row", "COLUMNS // STEP", "(COLUMNS, STEP)", "row", "0"),
        ("row * 512 + columns", "512", "(512, 1)", "row", "0"),
        ("row * COLUMNS + (n * TILE + columns)", "COLUMNS", "(COLUMNS, 1)", "row", "n"),
        ("(row * COLUMNS + n * TILE * STEP) + columns * STEP", "COLUMNS // STEP", "(COLUMNS, STEP)", "row", "n"),
    ],
)
def test_a_part_of_a_row_is_a_tile_of_the_view(index: str, width: str, strides: str, row: str, block: str) -> None:
    length = strides[1:].partition(",")[0]
    view = f"ct.Array.from_foreign(x.foreign_pointer, (x.shape[0] // {length}, {width}), {strides})"
    assert view_of(index) == (view, row, block)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("row * n + columns", "is not the first element of a row of constant length"),
        ("columns", "is not the first element of a row of constant length"),
        ("row * COLUMNS + columns * n", "is no part of a row"),
        ("row * COLUMNS + columns + 1", "is not the first element of a row of constant length"),
        ("row * COLUMNS * STEP + columns", "is not the first element of a row of constant length"),
    ],
)
def test_other_indices_are_no_part_of_a_row(index: str, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        view_of(index)


def test_the_rows_of_an_array_whose_extent_is_not_declared_are_not_known() -> None:
    with pytest.raises(NotApplicable, match="the extent of x is not known"):
        view_of("row * COLUMNS + columns", shape="sizes()")


def test_a_view_ends_where_the_kernel_puts_zeros() -> None:
    masked = "kept = ct.where(columns < STEP, values, 0)"
    array, _, _ = view_of("row * COLUMNS + columns", masked=masked)
    assert "(x.shape[0] // COLUMNS, min(STEP, COLUMNS))" in array
    other, _, _ = view_of("row * COLUMNS + columns", masked="kept = ct.where(columns < STEP, values, 1)")
    assert "min(" not in other


def test_an_index_beyond_the_array_is_a_mask() -> None:
    """Only the array's extent is beyond it. Otherwise the elements are stored, and no tile is."""
    whole = flat(beyond="ct.full((TILE,), BEYOND, dtype=ct.int32)")
    new, _, old = viewed(whole).partition("    else:\n")
    whole_tiles = " and COLUMNS % TILE == 0"
    assert (
        f"    if {conditions_on('COLUMNS', 'x')}{whole_tiles} and {conditions_on('COLUMNS', 'y')}:\n" in new
        and "ct.scatter(" in old
    )
    assert "ct.scatter" not in new and "ct.store(" in new and "where" not in new
    for kept in (
        flat(beyond="ct.full((TILE,), COLUMNS, dtype=ct.int32)"),
        whole.replace("256, N, 1, M * N, 2", "256, N, 1, M * N - 1, 2"),
    ):
        new = viewed(kept).partition("    else:\n")[0]
        assert f"    if {conditions_on('COLUMNS', 'x')}{whole_tiles}:\n" in new and "ct.scatter" in new


@pytest.mark.parametrize("sizes", [("128", "256"), ("37", "200")])
@pytest.mark.parametrize("shape", ['("M * N",)', '("M * N - 3",)'])
def test_a_view_of_rows_gives_what_the_gathers_gave(sizes: tuple[str, str], shape: str, tmp_path: Path) -> None:
    """Also of rows that are only partly in the array, and of tiles that reach into the next row."""
    text = sized(flat(shape=shape), *sizes)
    assert run_of(viewed(text), tmp_path, "y")[0] == run_of(text, tmp_path, "y")[0]


@pytest.mark.parametrize("gaps", [{"x": 2}, {"y": 2}, {"x": 2, "y": 3}])
def test_an_array_with_gaps_takes_the_old_branch(gaps: dict[str, int], tmp_path: Path) -> None:
    text = sized(flat(beyond="ct.full((TILE,), BEYOND, dtype=ct.int32)"), "32", "256")
    new = viewed(text)
    assert run_of(new, tmp_path, "y", gaps=gaps)[0] == run_of(text, tmp_path, "y", gaps=gaps)[0]
    unguarded = re.sub(r"\w\.strides\[0\] == 1", "True", new)
    assert unguarded != new
    with pytest.raises(AssertionError, match="outside|out of bounds"):
        run_of(unguarded, tmp_path, "y", gaps=gaps)


def test_a_branch_that_tests_the_strides_needs_no_other() -> None:
    """In the new body, further accesses become tiles as they are. In the old body, no view of rows is made."""
    once = viewed(flat())
    assert all(viewed(once).count(part) == once.count(part) for part in ("strides[0]", "from_foreign"))
    kernel, _, launch = flat(beyond="COLUMNS").partition("def launch")
    body = kernel[kernel.index("    row = ") :]
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    tests = f"{conditions_on('COLUMNS', 'x')} and COLUMNS % TILE == 0"
    guarded = f"    if {tests}:\n{indented}    else:\n{indented}"
    new = viewed(f"{kernel.replace(body, guarded)}\n\ndef launch{launch}")
    assert new.count("strides[0]") == 1 and new.count("from_foreign") == 1


@pytest.mark.parametrize("line", ["x = x.slice(0, 1, n)", "if n == 0:\n    return"])
def test_strides_that_cannot_be_tested_at_first_are_no_reason_for_a_view(line: str) -> None:
    source = Source("task.py", flat().replace("row = ct.bid(0)\n", "row = ct.bid(0)\n" + indent(line, "    ") + "\n"))
    [call] = source.calls("gather", inside=source.kernels["copy"])
    with pytest.raises(NotApplicable, match="x cannot be tested at the beginning"):
        row_view(source, call, Shapes(source, source.kernels["copy"]))


def test_a_view_of_rows_is_a_view_of_its_array() -> None:
    """A load through the view is no load of something else: a store to the array changes what it loads."""
    source = Source("task.py", viewed(flat()))
    effects = Effects(source, source.kernels["copy"])
    [load] = source.calls("load", inside=source.kernels["copy"])
    assert effects.arrays_behind(load.args[0].value) == {"x"}
    assert effects.written == {"y"}


MASKED = """
row = ct.bid(0)
columns = ct.arange(TILE, dtype=ct.int32)
values = ct.load(x, (row, {block}), (1, TILE), padding_mode=ct.PaddingMode.{padding}).reshape((TILE,))
kept = ct.where({mask}, {tile}, {other})
ct.scatter(y, (row, columns), kept)
"""


@pytest.mark.parametrize(
    ("changed", "gone"),
    [
        ({}, True),
        ({"other": "ct.zeros((TILE,), dtype=x.dtype)"}, True),
        ({"tile": "ct.astype(values, ct.float32)"}, True),
        ({"padding": "NEG_INF"}, False),
        ({"other": "1"}, False),
        ({"mask": "columns < TILE - 1"}, False),
        ({"mask": "columns > x.shape[1]"}, False),
        ({"block": "1"}, False),
        ({"tile": "values + 1"}, False),
    ],
)
def test_a_mask_goes_only_if_the_padding_is_the_same(changed: dict[str, str], gone: bool) -> None:
    given = {"block": "0", "padding": "ZERO", "mask": "columns < x.shape[1]", "tile": "values", "other": "0.0"}
    source = Source("task.py", copy(MASKED.format(**{**given, **changed})))
    assert ("where" not in without_zero_masks(source, "copy").text) is gone
