"""A row that is read in chunks, and more than once, becomes one tile that is read once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import changed_lines, run_of, verdict
from tests.playbook.plain import SCALE_ROWS, applied, launch_facts
from tests.playbook.row_loops import FLAGGED, LATENT, LEAVES, LONG, ONCE, RELOADED, SOFTMAX, TWICE

from tilewright.inspect.work import count
from tilewright.playbook.analyses.chunk_loops import chunked
from tilewright.playbook.analyses.loaded_elements import one_array
from tilewright.playbook.analyses.repeated import without_repeated
from tilewright.playbook.base import NotApplicable
from tilewright.playbook.entries.one_pass import ENTRY, LOADED_ONCE, WHOLE_ROW
from tilewright.source.syntax import Source
from tilewright.testing.entries import H200, EntryContract, loaded

IF_ONE = f"{LOADED_ONCE} if V is K"


class TestOnePass(EntryContract):
    entry = ENTRY
    examples: ClassVar = {
        "two loops": TWICE,
        "in a persistent kernel": SOFTMAX,
        "no loop": RELOADED,
        "one array": LATENT,
        "in a branch of constants": FLAGGED,
    }
    elsewhere: ClassVar = {
        "each row once": SCALE_ROWS,
        "rows that do not fit": LONG,
        "each element once": ONCE,
        "a loop that ends early": LEAVES,
    }


IN_BRANCH = f"{WHOLE_ROW} with FORWARD=1"


def test_constants_and_short_rows_get_a_branch_of_their_own(tmp_path: Path) -> None:
    new = applied(ENTRY, FLAGGED, tmp_path, IN_BRANCH)
    kernel = new[new.index("    if TILE_N") : new.index("def reference")]
    one_pass, _, as_before = kernel.partition("    else:\n")
    assert one_pass.startswith("    if TILE_N >= COLUMNS > 0 and (FORWARD == 1):\n        row = ct.bid(0)\n")
    assert one_pass.count("ct.load(x") == 1 and "for " not in one_pass and "FORWARD" not in one_pass.partition("\n")[2]
    before = FLAGGED[FLAGGED.index("    row = ct.bid(0)") : FLAGGED.index("def reference")]
    assert as_before.split() == before.split()
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


@pytest.mark.parametrize("launched", ["config.TILE_N, N, 1", "config.TILE_N, N, 0", "512, N, 0", "512, 0, 1"])
def test_launches_that_the_branch_is_not_for_compute_what_they_did(launched: str, tmp_path: Path) -> None:
    new = applied(ENTRY, FLAGGED, tmp_path, IN_BRANCH)
    other, before = new.replace("max(config.TILE_N, 1 << (N - 1).bit_length()), N, 1", launched), FLAGGED
    assert other != new
    before = FLAGGED.replace("config.TILE_N, N, 1", launched)
    assert run_of(other, tmp_path, "y")[0] == run_of(before, tmp_path, "y")[0]


def test_a_length_that_is_no_constant_gets_no_branch(tmp_path: Path) -> None:
    [site] = ENTRY.sites(Source("task.py", FLAGGED), launch_facts(FLAGGED, tmp_path))
    text = FLAGGED.replace("COLUMNS: ct.Constant[int]", "COLUMNS: int")
    with pytest.raises(NotApplicable, match="COLUMNS of centred is no constant"):
        ENTRY.apply(Source("task.py", text), site, IN_BRANCH)


def test_the_row_is_loaded_once_and_the_result_is_right(tmp_path: Path) -> None:
    new = applied(ENTRY, TWICE, tmp_path, WHOLE_ROW)
    kernel = new[new.index("    row = ct.bid(0)") : new.index("def reference")].rstrip()
    assert kernel == '''
    row = ct.bid(0)
    total = ct.zeros((1, TILE_N), ct.float32)
    # the mean
    # in chunks
    step = 0
    values = ct.load(x, (row, step), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
    total = total + values
    mean = ct.sum(total) / COLUMNS
    n = 0
    again = values
    scale = ct.load(weight, (n,), (TILE_N,), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (row, n), (again - mean) * scale)
'''.strip("\n").rstrip()  # fmt: skip
    assert "(x, weight, y, max(config.TILE_N, 1 << (N - 1).bit_length()), N)" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_less_is_read(tmp_path: Path) -> None:
    before, after = loaded(TWICE, tmp_path), loaded(applied(ENTRY, TWICE, tmp_path, WHOLE_ROW), tmp_path)
    moved = [count(task, task.workload("rows"), H200).moved for task in (before, after)]
    read = 4 * 2048 * 500
    assert moved == [pytest.approx(4 * read, rel=0.05), pytest.approx(3 * read, rel=0.05)]


@pytest.mark.parametrize(
    ("text", "value", "passes"), [(SOFTMAX, WHOLE_ROW, (4, 2)), (RELOADED, LOADED_ONCE, (3, 2))], ids=["loops", "none"]
)
def test_a_row_of_a_library_is_loaded_once(text: str, value: str, passes: tuple[int, int], tmp_path: Path) -> None:
    """In a persistent loop, with chunks counted by hand; and where two branches load the row again."""
    new = loaded(applied(ENTRY, text, tmp_path, value), tmp_path)
    moved = [count(task, task.workload("rows"), H200).moved for task in (loaded(text, tmp_path), new)]
    assert moved[1] / moved[0] == pytest.approx(passes[1] / passes[0], rel=0.03)
    assert verdict(new).verdict.startswith("correct")


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("range(ct.cdiv(COLUMNS, TILE_N))", True),
        ("range(0, (COLUMNS + TILE_N - 1) // TILE_N)", True),
        ("range(0, COLUMNS, TILE_N)", True),
        ("range(COLUMNS // TILE_N)", False),
        ("range(0, COLUMNS, 2 * TILE_N)", False),
        ("range((COLUMNS + TILE_N) // TILE_N)", False),
    ],
)
def test_the_chunks_of_a_row_are_counted_in_three_forms(header: str, found: bool) -> None:
    source = Source("task.py", TWICE.replace("range(ct.cdiv(COLUMNS, TILE_N))", header))
    assert len(chunked(source, "centred").loops) == 1 + found


def test_branches_that_load_again_are_one_assignment(tmp_path: Path) -> None:
    new = applied(ENTRY, RELOADED, tmp_path, LOADED_ONCE)
    assert changed_lines(RELOADED, new)[1] == ["again = tile"]
    assert "    # to save registers\n    again = tile\n" in new


def test_a_launch_that_uses_the_chunk_elsewhere_is_refused(tmp_path: Path) -> None:
    text = TWICE.replace("(M,), (x", "(M + 0 * config.TILE_N,), (x")
    site = ENTRY.sites(Source("task.py", TWICE), TestOnePass._facts(TWICE))[0]
    with pytest.raises(NotApplicable, match="uses config.TILE_N for more than the size of a chunk"):
        ENTRY.apply(Source("task.py", text), replace(site), WHOLE_ROW)


@pytest.mark.long
def test_an_array_that_is_two_parameters_is_loaded_once(tmp_path: Path) -> None:
    new = applied(ENTRY, LATENT, tmp_path, IF_ONE, "if each launch passes one array as K and V")
    added = ["# Right only if each launch passes one array as K and V.", "v = ct.reshape(k, (TILE, 1, DEPTH))"]
    assert changed_lines(LATENT, new)[1] == added
    before, after = loaded(LATENT, tmp_path), loaded(new, tmp_path)
    moved = [count(task, task.workload("batches"), H200).moved for task in (before, after)]
    assert moved[1] / moved[0] == pytest.approx(1 / 2, rel=0.03)
    assert verdict(after).verdict.startswith("correct")
    outputs = [run_of(text.replace('"B": 264', '"B": 3'), tmp_path, "y")[0] for text in (LATENT, new)]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(x, x, y, M", "(x, y, y, M"),
        ("(x, x, y, M", "(x, x, x, M"),
        ("        step += 1", "        ct.store(V, (batch, step, 0), total)\n        step += 1"),
        ("        step += 1", "        ct.scatter(K, (batch, 0, 0), 1.0)\n        step += 1"),
        ("(step, batch, 0)", "(batch, step, 0)"),
        ("        # the values", "        step += 1"),
        ("(step, batch, 0),\n            (TILE, 1, DEPTH),\n            order=(1, 0, 2)",
         "(0, batch, step),\n            (DEPTH, 1, TILE),\n            order=(2, 0, 1)"),
        ("(TILE, 1, DEPTH)", "(TILE, 1, 32)"),
        ("            padding_mode=ct.PaddingMode.ZERO,\n", ""),
        ("            allow_tma=True", "            check_bounds=False"),
        ("order=(1, 0, 2)", "order=ORDER"),
        ("        # the values", "        k = k + 1"),
        ("    step = 0", "    step = 0\n    V = y"),
    ],
    ids=["two arrays", "in place", "a store", "a scatter", "another index", "the index changes", "transposed",
         "another tile", "another padding", "another bound", "an unknown order", "the tile is gone", "another name"],
)  # fmt: skip
def test_other_elements_are_loaded(old: str, new: str) -> None:
    text = LATENT.replace(old, new)
    assert text != LATENT
    source = Source("task.py", text)
    assert without_repeated(source, "latent", one_array(source, "latent"))[1] == 0


def test_statements_after_a_shorter_load_are_removed() -> None:
    text = LATENT.replace(
        "        total = total", "        again = ct.reshape(k, (TILE, DEPTH))\n        total = total"
    )
    text = text.replace("        weight =", "        one = step + 1\n        weight =").replace(
        "step += 1", "one = step + 1"
    )
    new, _ = without_repeated(Source("task.py", text), "latent", {"V": "K"})
    assert new.text.count("one = step + 1") == 1 and "total = total + weight * v" in new.text


REPEATED = """
import cuda.tile as ct


@ct.kernel
def kernel(x, y, i):
    a = ct.load(x, (i,), (8,))
    b = ct.load(x, (i,), (8,))
    i = i + 1
    c = ct.load(x, (i,), (8,))
    d = ct.load(y, (i,), (8,))
    e = ct.load(y, (i,), (8,))
    a = a + 1
    f = ct.load(x, (i,), (8,))
    ct.store(y, (i,), a + b + c + d + e + f)
"""


def test_a_load_is_repeated_only_if_nothing_changed_in_between() -> None:
    new, removed = without_repeated(Source("task.py", REPEATED), "kernel")
    assert removed == 2 and "    b = a\n" in new.text and "    f = c\n" in new.text
    assert "c = ct.load(x" in new.text and "e = ct.load(y" in new.text


def test_the_ledger_gets_the_reason(tmp_path: Path) -> None:
    for text, reason in ((LONG, "rows of 70,000 elements do not fit into registers"), (TWICE, "")):
        assert ENTRY.why_not(Source("task.py", text), launch_facts(text, tmp_path)) == reason
    once = TWICE.replace("for n in range(0, ct.cdiv(COLUMNS, TILE_N))", "for n in range(0, COLUMNS // TILE_N)")
    assert "has no 2 loops" in ENTRY.why_not(Source("task.py", once), launch_facts(once, tmp_path))
