"""Entry A: K1 A in its three forms, and what is none of them."""

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.gathers import BLOCK, BLOCK_GRID, ROW, copy
from tests.playbook.kit import changed_lines, verdict

from tilewright.playbook.analyses.tile_access import converted, with_accesses
from tilewright.playbook.base import NotApplicable
from tilewright.playbook.entries import tile_load
from tilewright.playbook.entries.tile_load import ENTRY, EVERY, VIEWS
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, loaded

NAIVE = Path(__file__).parents[2] / "examples" / "naive"
PERMUTED = copy(
    """
ids = ct.gather(x, (ct.bid(0), ct.arange(TILE, dtype=ct.int32))).astype(ct.int32)
ct.scatter(y, (ct.bid(0), ids), ct.gather(x, (ct.bid(0), ids)))
"""
)
LOADED = copy("ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (1, TILE)))")


class TestTileLoad(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"row": copy(ROW), "block": copy(BLOCK, grid=BLOCK_GRID)}
    elsewhere: ClassVar = {"loaded": LOADED}


def every(text: str, value: str = EVERY) -> str:
    source = Source("task.py", text)
    [kernel] = source.kernels
    return with_accesses(source, kernel, lambda now: tile_load._possible(now, kernel, value))


def one(body: str, **options: str) -> str:
    """What the first access of a kernel becomes."""
    source = Source("task.py", copy(body, **options))  # type: ignore[arg-type]
    return converted(source, source.calls("gather", "scatter", inside=source.functions["copy"])[0]).text()


def test_a_row_in_chunks_is_loaded_and_its_index_arithmetic_goes() -> None:
    old, new = changed_lines(copy(ROW), every(copy(ROW)))
    assert new == [
        "# of this chunk",
        "values = ct.load(x, (row, n), (1, TILE), padding_mode=ct.PaddingMode.ZERO).reshape((TILE,))",
        "ct.store(y, (row, n), values.reshape((1, TILE)))",
    ]
    assert "columns = n * TILE + ct.arange(TILE, dtype=ct.int32)  # of this chunk" in old


def test_a_block_of_two_axes_needs_no_reshape() -> None:
    _, new = changed_lines(copy(BLOCK), every(copy(BLOCK)))
    assert "".join(new) == (
        "ct.store(y, (ct.bid(0), ct.bid(1)), ct.load(x, (ct.bid(0), ct.bid(1)), (TILE, TILE), "
        "padding_mode=ct.PaddingMode.ZERO))"
    )


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("ct.arange(TILE, dtype=ct.int32)", "0"),
        ("TILE * (r + 1) + ct.arange(TILE, dtype=ct.int32)", "r + 1"),
        ("ct.arange(TILE, dtype=ct.int32) + TILE", "1"),
        ("ct.arange(TILE, start=r * TILE, dtype=ct.int32)", "r"),
        ("(r * 2 * TILE + ct.arange(TILE, dtype=ct.int32)).astype(ct.int64)", "2 * r"),
        ("r % 3 * TILE + ct.arange(TILE, dtype=ct.int32)", "(r % 3)"),
    ],
)
def test_ranges_that_begin_at_a_multiple_of_their_length(index: str, expected: str) -> None:
    text = one(f"r = ct.bid(0)\nct.scatter(y, (r, 0), ct.gather(x, (r, {index})))".replace("(r, 0)", f"(r, {index})"))
    assert f"(r, {expected})" in text


def test_a_start_that_is_computed_lines_above_is_followed() -> None:
    body = """
start = ct.bid(0) * TILE
i = start + ct.arange(TILE, dtype=ct.int32)
ct.scatter(y, i, ct.gather(x, i))
"""
    assert one(body, shape='("M",)').startswith("ct.store(y, (ct.bid(0),)")


@pytest.mark.parametrize(
    ("value", "mode"),
    [("0.0", "ZERO"), ("-0.0", "NEG_ZERO"), ('-float("inf")', "NEG_INF"), ("math.inf", "POS_INF"), ("math.nan", "NAN")],
)
def test_what_lies_outside_is_padded_with_the_same(value: str, mode: str) -> None:
    index = "ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)"
    text = one(f"v = ct.gather(x, {index}, padding_value={value})\nct.scatter(y, {index}, v)", shape='("M",)')
    assert f"padding_mode=ct.PaddingMode.{mode}" in text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("v = ct.gather(x, ct.arange(TILE, dtype=ct.int32), padding_value=1)", "padded with 1"),
        ("v = ct.gather(x, ct.arange(TILE, dtype=ct.int32) * 2)", "consecutive"),
        ("v = ct.gather(x, ct.arange(TILE, step=2, dtype=ct.int32))", "consecutive"),
        ("v = ct.gather(x, ct.bid(0))", "no index is a range"),
        ("v = ct.gather(x, ct.bid(0) + ct.arange(1, dtype=ct.int32))", "no index is a range"),
        ("i = ct.arange(TILE, dtype=ct.int32)\nv = ct.gather(x, i, mask=i % 2 == 0)", "does more than limit"),
        (
            "i = ct.arange(TILE, dtype=ct.int32)\nfor k in range(2):\n    v = ct.gather(x, i)\n    i += TILE",
            "may have several values",
        ),
        ("i = ct.arange(TILE, dtype=ct.int32)\nv = ct.gather(x, (i[None, :], i[:, None]))", "axes"),
        ("t = ct.load(x, (0,), (TILE,))\nv = ct.gather(x, t + ct.arange(TILE, dtype=ct.int32))", "another form"),
        ("v = ct.gather(x,  # ours\n    ct.arange(TILE, dtype=ct.int32))", "comment"),
    ],
)
def test_other_accesses_are_left_alone_with_the_reason(body: str, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        one(body)


def test_a_name_that_changed_since_the_index_was_computed_is_no_block_number() -> None:
    body = """
n = ct.bid(0)
i = n * TILE + ct.arange(TILE, dtype=ct.int32)
n = n + 1
v = ct.gather(x, i)
"""
    with pytest.raises(NotApplicable, match="n changes between"):
        one(body)


@pytest.mark.parametrize("limit", ["x.shape[0]", "N"])
def test_a_mask_that_says_what_the_bounds_say_is_dropped(limit: str) -> None:
    body = f"""
i = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
v = ct.gather(x, i, mask=i < {limit})
"""
    text = one(body, shape='("M",)', parameters="TILE: ct.Constant[int], N", given="config.TILE, M")
    assert text == "ct.load(x, (ct.bid(0),), (TILE,), padding_mode=ct.PaddingMode.ZERO)"


def test_a_mask_that_ends_earlier_makes_a_view() -> None:
    body = """
i = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
v = ct.gather(x, i, mask=i < end)
"""
    text = one(body, shape='("M",)', parameters="TILE: ct.Constant[int], end", given="config.TILE, 5")
    assert text.startswith("ct.load(x.slice(0, 0, end), (ct.bid(0),), (TILE,)")


def test_a_ragged_segment_is_loaded_from_a_view() -> None:
    """K1 A, second form."""
    body = """
i = start + n * TILE + ct.arange(TILE, dtype=ct.int32)
v = ct.gather(x, i, mask=i < start + length)
"""
    text = one(body, parameters="start, length, n, TILE: ct.Constant[int]")
    assert text.startswith("ct.load(x.slice(0, start, start + length), (n,), (TILE,)")


def test_a_page_is_looked_up_once() -> None:
    """K1 A, third form."""
    body = """
token = n * PAGE + ct.arange(PAGE, dtype=ct.int32)
page = ct.gather(table, (b, token // PAGE))
columns = ct.arange(HEAD, dtype=ct.int32)
v = ct.gather(x, (page[:, None], (token % PAGE)[:, None], columns[None, :]))
"""
    source = Source("task.py", copy(body, parameters="table, b, n, PAGE: ct.Constant[int], HEAD: ct.Constant[int]"))
    [_, access] = source.calls("gather", "scatter", inside=source.functions["copy"])
    assert converted(source, access).text() == (
        "ct.load(x, (ct.gather(table, (b, n)).item(), 0, 0), (1, PAGE, HEAD), padding_mode=ct.PaddingMode.ZERO)"
        ".reshape((PAGE, HEAD))"
    )


def test_what_others_read_of_the_index_stays() -> None:
    body = ROW.replace("values)", "values + columns)")
    assert "columns = n * TILE" in every(copy(body))


def test_names_imported_from_cuda_tile_are_not_guessed() -> None:
    text = copy(ROW).replace("import cuda.tile as ct\n", "from cuda.tile import arange, bid, cdiv, gather, kernel\n")
    text = text.replace("@ct.", "@").replace("ct.gather", "gather").replace("ct.bid", "bid").replace("ct.ar", "ar")
    source = Source("task.py", text)
    with pytest.raises(NotApplicable, match="does not import"):
        converted(source, source.calls("gather", "scatter", inside=source.functions["copy"])[0])


@pytest.mark.parametrize("text", [copy(ROW), copy(BLOCK, grid=BLOCK_GRID)], ids=["row", "block"])
def test_the_result_is_right_and_other_code(text: str, tmp_path: Path) -> None:
    task = loaded(every(text), tmp_path)
    assert verdict(task).verdict.startswith("correct"), verdict(task).reason
    before, after = codes_of(loaded(text, tmp_path)), codes_of(task)
    assert all(before[name] != after[name] for name in before)


@pytest.mark.parametrize("name", ["rms_norm", "rope"])
def test_the_naive_examples_stay_right(name: str, tmp_path: Path) -> None:
    new = every((NAIVE / f"{name}.py").read_text())
    assert "gather" not in new.split("def reference")[0].split("import tilewright")[1]
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_a_view_gives_what_the_gather_gave(tmp_path: Path) -> None:
    """Chunks that begin at 3, 67, …: no tile of the array begins there."""
    body = """
row = ct.bid(0)
for n in range(ct.cdiv(x.shape[1], TILE)):
    columns = n * TILE + ct.arange(TILE, dtype=ct.int32)
    ct.scatter(y, (row, columns), ct.gather(x, (row, columns)))
    ct.scatter(y, (row, columns + 3), ct.gather(x, (row, columns + 3)))
"""
    text = every(copy(body), VIEWS)
    assert "x.slice(1, 3, x.shape[1]), (row, n), (1, TILE), " in text
    said = verdict(loaded(text, tmp_path))
    assert said.verdict.startswith("correct"), said.reason


def test_a_gather_without_bound_checks_gets_no_padding(tmp_path: Path) -> None:
    """The compiler refuses a tile load with a padding but without a bounds check."""
    text = copy(ROW.replace("ct.gather(x, (row, columns))", "ct.gather(x, (row, columns), check_bounds=False)"))
    new = every(text)
    assert "ct.load(x, (row, n), (1, TILE), check_bounds=False)" in new
    assert codes_of(loaded(new, tmp_path))


def test_bound_checks_that_a_constant_turns_off_are_made_where_there_is_a_padding(tmp_path: Path) -> None:
    body = ROW.replace("ct.gather(x, (row, columns))", "ct.gather(x, (row, columns), check_bounds=checked)")
    text = copy(body.replace("row = ct.bid(0)", "row, checked = ct.bid(0), TILE < 0"))
    new = every(text)
    assert "check_bounds=checked" in text
    assert "ct.load(x, (row, n), (1, TILE), padding_mode=ct.PaddingMode.ZERO)" in " ".join(new.split())
    assert codes_of(loaded(new, tmp_path))


def test_a_bounds_check_replaces_a_mask(tmp_path: Path) -> None:
    body = """
i = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
v = ct.gather(x, i, mask=i < x.shape[0], check_bounds=False)
ct.scatter(y, i, v, mask=i < y.shape[0], check_bounds=False)
"""
    text = every(copy(body, shape='("M",)'))
    assert "ct.load(" in text and "ct.store(" in text and "check_bounds" not in text
    assert verdict(loaded(text, tmp_path)).verdict.startswith("correct")
