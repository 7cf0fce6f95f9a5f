"""Several rows a tile: what depends on a row gains an axis of rows, and what is not understood is refused."""

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.gathers import copy
from tests.playbook.kit import changed_lines, verdict
from tests.playbook.plain import launch_facts

from tilewright.playbook.base import NotApplicable, Site
from tilewright.playbook.entries.rows_per_tile import ENTRY, row_numbers
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, loaded

NAIVE = Path(__file__).parents[2] / "examples" / "naive"
BLOCKS = copy("ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (TILE, TILE)))")
CHUNKS = """
row = ct.bid(0)
for n in range(ct.cdiv(x.shape[1], TILE)):
    values = ct.load(x, (row, n), (1, TILE)).reshape((TILE,))
    ct.store(y, (row, n), values.reshape((1, TILE)))
"""
STRIDES = """
for row in range(ct.bid(0), M, ct.num_blocks(0)):
    total = ct.zeros((TILE,), ct.float32)
    for n in range(ct.cdiv(x.shape[1], TILE)):
        total += ct.gather(x, (row, n * TILE + ct.arange(TILE, dtype=ct.int32)))
    for n in range(ct.cdiv(x.shape[1], TILE)):
        columns = n * TILE + ct.arange(TILE, dtype=ct.int32)
        ct.scatter(y, (row, columns), ct.gather(x, (row, columns)) + 0.0 * ct.sum(total))
"""


class TestRowsPerTile(EntryContract):
    entry = ENTRY
    examples: ClassVar = {
        "softmax": (NAIVE / "softmax.py").read_text(),
        "gathered": copy(STRIDES, parameters="M, TILE: ct.Constant[int]", given="M, config.TILE", grid="(min(M, 7),)"),
        "chunks": copy(CHUNKS),
    }
    elsewhere: ClassVar = {"blocks": BLOCKS}


def rows(text: str, value: int = 4, name: str = "row") -> str:
    source = Source("task.py", text)
    [kernel] = source.kernels
    found = row_numbers(source, source.kernels[kernel])
    line, column = source.place(next(one for one in found if one.name == name).node)
    return ENTRY.apply(source, Site(kernel, line, column, f"one row a tile, {name}", (value,)), value)


def added(text: str, value: int = 4) -> list[str]:
    return changed_lines(text, rows(text, value))[1]


def test_a_block_takes_a_group_of_rows_and_the_grid_shrinks() -> None:
    assert added(copy(CHUNKS)) == [
        "def copy(x, y, TILE: ct.Constant[int], TILE_ROWS: ct.Constant[int]):",
        "values = ct.load(x, (row, n), (TILE_ROWS, TILE))",
        "ct.store(y, (row, n), values)",
        "return tw.Launch(copy, (-(-M // config.TILE_ROWS),), (x, y, config.TILE, config.TILE_ROWS))",
        'space=tw.Space(constants={"TILE": (64,), "TILE_ROWS": (1, 4)}, shipped={"TILE": 64, "TILE_ROWS": 4}),'.replace(
            "'", '"'
        ),
    ]


def test_a_loop_over_all_rows_ends_earlier_and_the_grid_stays() -> None:
    new = added(TestRowsPerTile.examples["gathered"])
    assert "for row in range(ct.bid(0), ct.cdiv(M, TILE_ROWS), ct.num_blocks(0)):" in new
    assert "rows = row * TILE_ROWS + ct.arange(TILE_ROWS, dtype=ct.int32)[:, None]" in new
    assert "total = ct.zeros((TILE_ROWS, TILE), ct.float32)" in new
    assert any("tw.Launch(copy, (min(M, 7),), " in line for line in new)


def test_a_loop_over_the_rows_of_a_block_is_shorter_and_only_by_divisors() -> None:
    text = (NAIVE / "layer_norm.py").read_text()
    new = added(text, value=2)
    assert "for i in range(ROWS // TILE_ROWS):" in new
    assert "row = ct.bid(0) * (ROWS // TILE_ROWS) + i" in new
    with pytest.raises(NotApplicable, match="not always a multiple of 16"):
        rows(text, 16)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ct.sum(v)", "ct.sum(v, axis=1, keepdims=True)"),
        ("ct.max(v, axis=-1)", "ct.max(v, axis=1, keepdims=True)"),
        ("ct.min(v, -1)", "ct.min(v, 1, keepdims=True)"),
        ("ct.sum(v.reshape((TILE,)), axis=0)", "ct.sum(v, axis=1, keepdims=True)"),
        ("ct.sum(v.reshape((TILE,))[None, :])", "ct.sum(v, axis=1, keepdims=True)"),
        ("ct.sum(v).item()", "ct.sum(v, axis=1, keepdims=True)"),
    ],
)
def test_statistics_of_a_row_are_one_a_row(old: str, new: str) -> None:
    body = f"row = ct.bid(0)\nv = ct.load(x, (row, 0), (1, TILE))\nct.store(y, (row, 0), v - {old})"
    assert f"ct.store(y, (row, 0), v - {new})" in added(copy(body))


def test_one_element_a_row_is_loaded_and_stored_as_a_column() -> None:
    body = """
row = ct.bid(0)
scale = ct.load(mean, (row,), (1,))
v = ct.load(x, (row, 0), (1, TILE)) * scale
ct.store(y, (row, 0), v)
ct.store(mean, (row,), ct.sum(v))
"""
    new = added(copy(body, parameters="mean, TILE: ct.Constant[int]", given="x, config.TILE"))
    assert "scale = ct.load(mean, (row,), (TILE_ROWS,)).reshape((TILE_ROWS, 1))" in new
    assert "ct.store(mean, (row,), ct.sum(v, axis=1, keepdims=True).reshape((TILE_ROWS,)))" in new


def test_the_number_of_the_row_itself_becomes_a_tile() -> None:
    body = """
row = ct.bid(0)
columns = ct.arange(TILE, dtype=ct.int32)
ct.store(y, (row, 0), ct.where(columns[None, :] <= row, ct.load(x, (row, 0), (1, TILE)), 0.0))
"""
    new = added(copy(body))
    assert "rows = row * TILE_ROWS + ct.arange(TILE_ROWS, dtype=ct.int32)[:, None]" in new
    assert any("columns[None, :] <= rows, ct.load(x, (row, 0), (TILE_ROWS, TILE))" in line for line in new)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("if row < 3:\n    v = v * 2", "branch depends on the row"),
        ("for k in range(row):\n    v = v * 2", "loop's length depends"),
        ("v = ct.transpose(v)", "transpose"),
        ("v = ct.cumsum(v, axis=1)", "cumsum"),
        ("v = ct.sum(v, axis=0, keepdims=True)", "does not reduce along a row"),
        ("w = v.reshape((2, TILE // 2))", "another form"),
        ("w = v + ct.load(x, (0, 0), (TILE, TILE))", "more than one row"),
        ("v = v + ct.load(x, (row + 1, 0), (1, TILE))", "does not use row itself"),
        ("v = v + ct.load(x, (row, 0), (1, TILE), order=(1, 0))", "order"),
        ("v = v + ct.load(x, (row, 0), (1, TILE), check_bounds=False)", "checks no bounds"),
        ("s = 0.0\nfor k in range(3):\n    s += ct.sum(v)\nv = v * s", "s starts as 0.0"),
        ("ct.store(y, (0, 0), v)", "does not use row itself"),
        ("ct.store(y, (0, 0), ct.zeros((1, TILE), ct.float32))", "does not depend on the row"),
        ("while TILE < 0:\n    v = v", "While"),
        ("v = helper(v)", "helper"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_reason(line: str, reason: str) -> None:
    text = copy(f"row = ct.bid(0)\nv = ct.load(x, (row, 0), (1, TILE))\n{line}\nct.store(y, (row, 0), v)")
    with pytest.raises(NotApplicable, match=reason):
        rows(text)


def test_a_kernel_that_accumulates_over_rows_is_refused(tmp_path: Path) -> None:
    """A sum over rows that is stored once would lose the rows' own sums."""
    body = """
total = ct.zeros((1, TILE), ct.float32)
for row in range(ct.bid(0), M, ct.num_blocks(0)):
    total += ct.load(x, (row, 0), (1, TILE))
ct.store(y, (ct.bid(0), 0), total)
"""
    text = copy(body, parameters="M, TILE: ct.Constant[int]", given="M, config.TILE", grid="(min(M, 7),)")
    with pytest.raises(NotApplicable, match="does not use row itself"):
        rows(text)
    why_not = ENTRY.why_not(Source("task.py", text), launch_facts(text, tmp_path))
    assert "does not use row itself" in why_not, "the ledger gets the reason"


@pytest.mark.parametrize("name", list(TestRowsPerTile.examples))
def test_the_result_is_right_and_other_code(name: str, tmp_path: Path) -> None:
    text = TestRowsPerTile.examples[name]
    task = loaded(rows(text), tmp_path)
    said = verdict(task)
    assert said.verdict.startswith("correct"), said.reason
    before, after = codes_of(loaded(text, tmp_path)), codes_of(task)
    assert all(before[workload] != after[workload] for workload in before)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_the_naive_examples_stay_right(name: str, tmp_path: Path) -> None:
    assert verdict(loaded(rows((NAIVE / f"{name}.py").read_text(), 2), tmp_path)).verdict.startswith("correct")
