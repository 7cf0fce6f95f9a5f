"""Bound checks that each launch asks for: only where its shape is ragged."""

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.gathers import BLOCK, BLOCK_GRID, ROW, copy
from tests.playbook.kit import changed_lines, verdict

from tilewright.playbook.base import NotApplicable, Site
from tilewright.playbook.entries.check_bounds import ENTRY, EVERY
from tilewright.source.syntax import Source
from tilewright.testing.entries import H200, EntryContract, codes_of, facts_of, loaded

PLAIN = BLOCK.replace(", check_bounds=True", "")
RAGGED = copy(ROW).replace("'N': 256", "'N': 250")
LOOPED = """
for i in range(TILE):
    row = ct.bid(0) * TILE + i
    ct.store(y, (row, 0), ct.load(x, (row, 0), (1, TILE)))
"""
LONGER = copy(ROW.replace("ct.cdiv(x.shape[1], TILE)", "ct.cdiv(x.shape[1], TILE) + 1"))

BRANCHED = copy(
    """
row = ct.bid(0)
for n in range(ct.cdiv(x.shape[1], TILE)):
    columns = n * TILE + ct.arange(TILE, dtype=ct.int32)
    if TILE > 1:
        values = ct.gather(x, (row, columns))
    else:
        values = ct.gather(x, (row, columns + 1000), padding_value=0)
    ct.scatter(y, (row, columns), values)
"""
)


class TestCheckBounds(EntryContract):
    entry = ENTRY
    examples: ClassVar = {
        "row": copy(ROW),
        "block": copy(PLAIN, grid=BLOCK_GRID),
        "in a branch of constants": BRANCHED,
        "looped": copy(LOOPED, shape='("M", 64)', dims=("M",), grid="(-(-M // config.TILE),)"),
        "tile": copy("ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (1, 256)))"),
    }
    elsewhere: ClassVar = {"ragged": RAGGED, "a tile too many": LONGER}


def applied(text: str) -> str:
    source = Source("task.py", text)
    line, column = source.place(source.kernels["copy"])
    return ENTRY.apply(source, Site("copy", line, column, "bound checks", (EVERY,)), EVERY)


def test_the_launch_says_whether_its_shape_is_ragged() -> None:
    _, new = changed_lines(copy(PLAIN, grid=BLOCK_GRID), applied(copy(PLAIN, grid=BLOCK_GRID)))
    assert "def copy(x, y, TILE: ct.Constant[int], RAGGED: ct.Constant[bool]):" in new
    assert "ragged = M % config.TILE != 0 or N % config.TILE != 0" in new
    assert any(line.endswith("(x, y, config.TILE, ragged))") for line in new)
    assert applied(copy(PLAIN, grid=BLOCK_GRID)).count("check_bounds=RAGGED") == 2


def test_accesses_that_constants_leave_out_are_left_alone(tmp_path: Path) -> None:
    source = Source("task.py", BRANCHED)
    [site] = ENTRY.sites(source, facts_of(loaded(BRANCHED, tmp_path)))
    tile = loaded(BRANCHED, tmp_path).space.shipped["TILE"]
    assert site.values == (f"{EVERY} with TILE={tile}",)
    _, new = changed_lines(BRANCHED, ENTRY.apply(source, site, site.values[0]))
    assert [line.strip() for line in new if "gather" in line] == [
        "values = ct.gather(x, (row, columns), check_bounds=RAGGED)"
    ]
    assert not any("1000" in line for line in new)


@pytest.mark.parametrize(
    ("end", "ragged"),
    [("x.shape[0]", "M % config.TILE != 0"),
     ("2 * TILE", "((2 * config.TILE - 1) // config.TILE) * config.TILE + (config.TILE - 1) >= M")],
)  # fmt: skip
def test_a_loop_over_the_starts_of_tiles_is_bounded(end: str, ragged: str) -> None:
    body = f"for start in range(0, {end}, TILE):\n    i = start + ct.arange(TILE, dtype=ct.int32)\n"
    assert f"ragged = {ragged}" in applied(copy(body + "    ct.scatter(y, i, ct.gather(x, i))", shape='("M",)'))


def test_a_number_that_is_no_extent_may_be_negative() -> None:
    shifted = "i = ct.bid(0) * TILE + {} + ct.arange(TILE, dtype=ct.int32)\nct.scatter(y, i, ct.gather(x, i))"
    for passed in ("N", "config.SHIFT"):
        parameters, given = "TILE: ct.Constant[int], SHIFT: int", f"config.TILE, {passed}"
        text = copy(shifted.format("SHIFT"), shape='("M",)', parameters=parameters, given=given)
        assert f"{passed} < 0 or " in applied(text)


STEPPED = """
if STEP > 0:
    for start in range(0, x.shape[0], STEP):
        i = start + ct.arange(STEP, dtype=ct.int32)
        ct.scatter(y, i, ct.gather(x, i))
else:
    ct.scatter(y, ct.arange(TILE, dtype=ct.int32), 0.0)
"""
DIVIDED = "if STEP > 0:\n    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0) // STEP,), (TILE,)))"
COUNTED = """
tile = min(ct.bid(0), 1)
if STEP > 0:
    ct.store(y, (tile,), ct.zeros((STEP,), ct.float32))
"""
LOADED = """
tile = ct.load(x, (0,), (1,)).item().astype(ct.int32)
ct.store(y, (tile,), ct.zeros((TILE,), ct.float32))
"""
HELPED = """
def first(x):
    return ct.load(x, (0,), (1,)).item().astype(ct.int32)

@ct.kernel"""


@pytest.mark.parametrize("inside", [True, False], ids=["in a helper", "in the kernel"])
def test_a_tile_number_that_is_loaded_may_be_minus_1(inside: bool, tmp_path: Path) -> None:
    text = copy(LOADED, shape='("M",)')
    if inside:
        text = text.replace("ct.load(x, (0,), (1,)).item().astype(ct.int32)", "first(x)")
        text = text.replace("\n@ct.kernel", HELPED, 1)
    source = Source("task.py", text)
    changed = [ENTRY.apply(source, site, EVERY) for site in ENTRY.sites(source, facts_of(loaded(text, tmp_path)))]
    assert not any("ct.store(y, (tile,), ct.zeros((TILE,), ct.float32), " in each for each in changed)


@pytest.mark.parametrize("body", [STEPPED, DIVIDED, COUNTED], ids=["a step", "a divisor", "a tile"])
@pytest.mark.parametrize("small", [200, 0])
def test_a_constant_that_is_0_in_another_launch_divides_nothing(body: str, small: int, tmp_path: Path) -> None:
    """Neither when sites are sought, nor in a launch that is no workload. The branch for it is then left out."""
    text = copy(body, shape='("M",)', parameters="TILE: ct.Constant[int], STEP: ct.Constant[int]",
                given="config.TILE, N", grid="(2,)")  # fmt: skip
    text = text.replace("'N': 256", "'N': 64").replace("'N': 200", f"'N': {small}")
    ENTRY.sites(Source("task.py", text), facts_of(loaded(text, tmp_path)))
    task, dims = loaded(applied(text), tmp_path), {"M": 128, "N": 0}
    assert task.launched(task.space.shipped, dims, task.arrays(dims), H200).args[-1] is True


def test_an_extent_that_no_dimension_names_is_asked_of_the_array() -> None:
    text = copy(ROW).replace('tw.Tensor(("M", "N")', "tw.Tensor(shape")
    _, new = changed_lines(text, applied(text))
    assert "or x.shape[1] % config.TILE != 0" in new
    assert "or ((x.shape[1] + (config.TILE - 1)) // config.TILE - 1) * config.TILE + (config.TILE - 1) >= N" in new


def test_a_tile_with_a_fixed_number_must_be_there() -> None:
    body = "i = TILE + ct.arange(TILE, dtype=ct.int32)\nct.scatter(y, i, ct.gather(x, i))"
    text = applied(copy(body, shape='("M",)'))
    assert "ragged = config.TILE + (config.TILE - 1) >= M" in text


@pytest.mark.parametrize(
    ("index", "ragged"),
    [
        ("n * TILE + 3 + ct.arange(TILE, dtype=ct.int32)", "(M - 1) * config.TILE + 3 + (config.TILE - 1) >= M"),
        ("(n * 2 + 1) * TILE + ct.arange(TILE)", "((M - 1) * 2 + 1) * config.TILE + (config.TILE - 1) >= M"),
        ("2 * n", "2 * (M - 1) >= M"),
        ("n // 2 + ct.arange(TILE) % 8", "or (M - 1) // 2 + 7 >= M"),
        ("ct.where(ct.arange(TILE) < TILE, n + ct.arange(TILE), M)", "M - 1 + (config.TILE - 1) >= M"),
    ],
)  # fmt: skip
def test_counts_of_no_tiles_are_bounded_by_the_launch(index: str, ragged: str) -> None:
    """Those that go beyond the array in every shape are offered at no site."""
    text = copy(f"n = ct.bid(0)\nv = ct.gather(x, {index})", shape='("M",)')
    assert ragged in applied(text)


@pytest.mark.parametrize("index", ["n - 1", "ct.where(v < 1, n, 0)", "ct.gather(x, n - 1)", "n % TILE - n"])
def test_what_has_no_bound_is_left_alone(index: str) -> None:
    with pytest.raises(NotApplicable, match="no checked access"):
        applied(copy(f"n = ct.bid(0)\nv = n\nv += 1\nct.scatter(y, {index}, 0)", shape='("M",)'))


@pytest.mark.parametrize("name", list(TestCheckBounds.examples))
def test_the_result_is_right_and_other_code_where_the_shape_is_even(name: str, tmp_path: Path) -> None:
    """Also on the ragged workload, whose code stays as it was."""
    text = TestCheckBounds.examples[name]
    task = loaded(applied(text), tmp_path)
    said = verdict(task)
    assert said.verdict.startswith("correct"), said.reason
    before, after = codes_of(loaded(text, tmp_path)), codes_of(task)
    assert before["even"] != after["even"]


def test_the_gate_sees_a_count_that_goes_beyond_an_even_array(tmp_path: Path) -> None:
    """A loop that is not understood, and longer than the array: right with checks, and reported without them."""
    text = LONGER.replace(
        "range(ct.cdiv(x.shape[1], TILE) + 1)", "range(0, ct.cdiv(x.shape[1], TILE) + 1, ct.num_blocks(1))"
    )
    assert verdict(loaded(text, tmp_path)).verdict.startswith("correct")
    assert verdict(loaded(applied(text), tmp_path)).verdict == "incorrect"
