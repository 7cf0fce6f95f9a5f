"""Masked loops in helpers: a parameter means what all calls pass for it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import libcst as cst
import pytest
from tests.playbook.kit import product_loops, run_of, verdict
from tests.playbook.masked_helpers import CALL, HELPED
from tests.playbook.plain import applied, launch_facts

from tilewright.playbook.analyses.edited_files import edited_files
from tilewright.playbook.analyses.masked_tiles import loops_with_masks
from tilewright.playbook.base import Site, refusal
from tilewright.playbook.entries.mask_split import ENTRY as SPLIT
from tilewright.playbook.entries.mask_split import MEASURED, THREE_LOOPS
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, loaded

EXACT = HELPED.replace("block * M // N * N", "block * M")
"""For tiles of keys that divide those of rows: constants say where some limits lie beside the loop's bounds."""
FIRST, SECOND = CALL.replace("STAGE", "first"), CALL.replace("STAGE", "2")


class TestMaskSplitInHelpers(EntryContract):
    entry = SPLIT
    examples: ClassVar = {"a helper": HELPED}
    elsewhere: ClassVar = {"no window": HELPED.replace("out, 64,", "out, 0,")}


def changed(text: str) -> str:
    source = Source("task.py", text)
    return SPLIT.apply(source, Site.at(source, source.every(cst.For)[0], "a loop", (THREE_LOOPS,)), THREE_LOOPS)


def at(text: str, window: int, cap: int, causal: int, rows: int, tile: int, length: int) -> str:
    text = text.replace("out, 64, 0, 1, D,", f"out, {window}, {cap}, {causal}, D,")
    text = text.replace('"ROWS": (16,), "TILE": (16,)', f'"ROWS": ({rows},), "TILE": ({tile},)')
    text = text.replace('"ROWS": 16, "TILE": 16', f'"ROWS": {rows}, "TILE": {tile}')
    return text.replace('"S": 150', f'"S": {length}')


@pytest.mark.parametrize(
    ("window", "rows", "tile"),
    [(0, 16, 16), (1, 16, 32), (5, 32, 16), (33, 16, 16), (33, 16, 32), (64, 64, 16), (100, 32, 16), (10_000, 16, 32)],
)
def test_the_result_is_equal_to_the_bit(window: int, rows: int, tile: int, tmp_path: Path) -> None:
    """With and without a diagonal and, in turn, a cap, and for lengths that no tile divides."""
    new, capped = changed(HELPED), 5 * (window % 2)
    for cap, causal, length in ((capped, 1, 128 if window == 5 else 150), (5 - capped, 0, 150)):
        given = window, cap, causal, rows, tile, length
        assert run_of(at(new, *given), tmp_path) == run_of(at(HELPED, *given), tmp_path), given


def test_the_new_kernel_agrees_with_the_reference(tmp_path: Path) -> None:
    assert verdict(loaded(applied(SPLIT, HELPED, tmp_path, THREE_LOOPS), tmp_path)).verdict.startswith("correct")


def limits_of(text: str, helper: str = "_inner") -> list[str]:
    """The bounds of the masks, in the helper's names; empty if the masks are not understood."""
    source = Source("task.py", text)
    tiles = [tile for _, found in loops_with_masks(source, source.functions[helper]) for tile in found]
    return list(dict.fromkeys(limit.bound(fully=True) for tile in tiles for limit in tile.limits))


KNOWN = ["M * block - N + 2", "M * block + M - WINDOW - 1", "M * block + WINDOW - N + 2"]


def test_bounds_are_written_in_the_names_of_the_helper() -> None:
    assert limits_of(HELPED) == KNOWN


NAMED = FIRST.replace("m, rows, columns", "i=rows, block=m, j=columns").replace("first, SEEN, CAP, HEAD, ROWS, TILE", (
    "STAGE=first, WINDOW=SEEN, CAP=CAP, D=HEAD, M=ROWS, N=TILE"
))  # fmt: skip
FEWER = (
    "block, i, j, STAGE: Int, WINDOW: Int, CAP: Int, D: Int, M: Int, N: Int",
    ("i, j, STAGE: Int, WINDOW: Int, CAP: Int, D: Int, M: Int, N: Int"),
)
ALIKE = {
    "keywords": HELPED.replace(FIRST, NAMED),
    "keywords only": HELPED.replace("D: Int, M: Int, N: Int):", "*, D: Int, M: Int, N: Int):").replace(
        "HEAD, ROWS, TILE)\n", "D=HEAD, M=ROWS, N=TILE)\n"
    ),
    "a default that is passed": HELPED.replace("N: Int):", "N: Int = 16):"),
    "rows under another name": HELPED.replace("    first = 1", "    named = rows\n    first = 1").replace(
        "m, rows, columns", "m, named, columns"
    ),
    "rows in the argument": HELPED.replace(
        "m, rows, columns", "m, m * ROWS + ct.arange(ROWS, dtype=ct.int32), columns"
    ),
    "another unit of the row": HELPED.replace("m * ROWS + ct.arange", "ROWS * ct.bid(0) + ct.arange").replace(
        "query, m, rows", "query, ct.bid(0), rows"
    ),
    "a function of cuTile": HELPED.replace("def _inner", "@ct.function\ndef _inner"),
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, float]:
    """What `HELPED` gives: another spelling of it gives the same."""
    return run_of(HELPED, tmp_path_factory.mktemp("before"))


@pytest.mark.parametrize("text", ALIKE.values(), ids=ALIKE)
def test_calls_are_followed(text: str, before: tuple[bytes, float], tmp_path: Path) -> None:
    assert limits_of(text) == KNOWN
    assert run_of(changed(text), tmp_path) == before


ELSEWHERE = "M * block", "M * ct.bid(0)"
MOVED = {
    "a parameter that is assigned again": ("count = start", "i = i + 1", ("M - WINDOW - 1", "M - WINDOW")),
    "a block that is assigned again": ("count = start", "block = block + 1", ELSEWHERE),
    "a block that changes before the call": ("first = 1", "m = m + 1", ELSEWHERE),
}


@pytest.mark.parametrize(("before", "line", "bound"), MOVED.values(), ids=MOVED)
def test_a_name_that_is_assigned_again_has_the_value_of_its_place(
    before: str, line: str, bound: tuple[str, str], tmp_path: Path
) -> None:
    text = EXACT.replace(f"    {before}", f"    {line}\n    {before}")
    assert KNOWN[1].replace(*bound) in limits_of(text)
    assert run_of(changed(text), tmp_path) == run_of(text, tmp_path)


def test_a_helper_of_a_helper_is_followed(before: tuple[bytes, float], tmp_path: Path) -> None:
    names = CALL.removeprefix("_inner").replace("rows", "lines").replace("ROWS", "N").replace("TILE", "M")
    between = f"def _outer{names}:\n    return _inner{names}\n"
    text = HELPED.replace("\n\n@ct.kernel", f"\n\n{between}\n\n@ct.kernel")
    text = text.replace(FIRST, FIRST.replace("_inner", "_outer")).replace(SECOND, SECOND.replace("_inner", "_outer"))
    assert limits_of(text) == KNOWN
    assert run_of(changed(text), tmp_path) == before


def test_what_is_not_passed_is_written_anew(before: tuple[bytes, float], tmp_path: Path) -> None:
    """The block's number is the same everywhere."""
    text = HELPED.replace(*FEWER).replace("query, m, rows", "query, rows").replace("block * M", "ct.bid(0) * M")
    text = text.replace("(block + 1)", "(ct.bid(0) + 1)")
    assert limits_of(text) == [each.replace("M * block", "M * ct.bid(0)") for each in KNOWN]
    assert run_of(changed(text), tmp_path) == before


OTHER_ROWS = SECOND.replace("rows", "rows + 1")


def inserted(before: str, line: str) -> str:
    """The text with a line before one of the kernel or the helper."""
    return HELPED.replace(f"    {before}", f"    {line}\n    {before}")


OTHER_KERNEL = f"""

@ct.kernel
def other(k, v, m, SEEN: Int, CAP: Int, HEAD: Int, ROWS: Int, TILE: Int):
    rows = ct.arange(ROWS, dtype=ct.int32)
    columns = ct.arange(TILE, dtype=ct.int32)
    {SECOND}
"""
REFUSED = {
    "two meanings": HELPED.replace(SECOND, OTHER_ROWS),
    "two blocks": HELPED.replace(SECOND, SECOND.replace("m, rows", "m + 1, rows")),
    "two extents": HELPED.replace(SECOND, SECOND.replace("ROWS, TILE", "HEAD, TILE")),
    "a loaded position": HELPED.replace("rows = m * ROWS", "rows = ct.load(q, (0, 0), (1, 1)).item() + m * ROWS"),
    "long integers": HELPED.replace("ct.arange(ROWS, dtype=ct.int32)", "ct.arange(ROWS, dtype=ct.int64)"),
    "rows that change in a branch": inserted("first = 1", "if CAUSAL:\n        rows = rows + 1"),
    "an extent that is assigned again": inserted("count = start", "M = M * 1"),
    "a helper that calls itself": inserted("count = start", f"if STAGE == 9:\n        {CALL}"),
    "a helper as a value": HELPED.replace("\n\n@ct.kernel", "\n\ncalled = _inner\n\n\n@ct.kernel"),
    "a helper in a list of names": HELPED.replace("\n\n@ct.kernel", '\n\n__all__ = ["_inner"]\n\n\n@ct.kernel'),
    "a helper that is passed on": inserted("first = 1", "used(_inner)"),
    "a helper with a decorator": HELPED.replace("def _inner", "@wrapped\ndef _inner"),
    "two functions of one name": HELPED.replace("\n\ndef ref", "\n\ndef _inner(i):\n    return i\n\n\ndef ref"),
    "a name of the kernel": inserted("first = 1", "_inner = chosen"),
    "a call that no kernel makes": HELPED.replace("\n\ndef ref", f"\n\ndef other(rows):\n    {CALL}\n\n\ndef ref"),
    "a call in a lambda": inserted("first = 1", f"later = lambda rows: {SECOND}"),
    "arguments in a tuple": HELPED.replace(SECOND, SECOND.replace("rows, columns", "*(rows, columns)")),
    "further arguments": HELPED.replace("N: Int):", "N: Int, *more):"),
    "further keywords": HELPED.replace("N: Int):", "N: Int, **more):"),
    "a default in place of rows": HELPED.replace("block, i, j,", "block, j,")
    .replace("N: Int):", "N: Int, i=LOW):")
    .replace("m, rows, columns", "m, columns"),
    "a default in one of the calls": HELPED.replace("N: Int):", "N: Int = 16):")
    .replace(SECOND, SECOND.replace(", TILE)", ")")),
    "another kernel": HELPED.replace("\n\ndef reference", f"{OTHER_KERNEL}\n\ndef reference"),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_a_helper_whose_calls_are_not_understood_stays(text: str) -> None:
    assert text != HELPED
    assert "M * block + M - WINDOW - 1" not in limits_of(text)
    source = Source("task.py", text)
    site = Site.at(source, source.every(cst.For)[0], "a loop", (THREE_LOOPS,))
    assert refusal(SPLIT.apply, source, site, THREE_LOOPS)


@pytest.mark.parametrize(("window", "rows", "loops"), [(64, 32, 3), (0, 32, 2), (20, 32, 4)])
def test_what_constants_decide_is_not_compiled(window: int, rows: int, loops: int, tmp_path: Path) -> None:
    """Two calls, in which each window edge may need a loop: the diagonal is masked, and a wide window does not end
    before it, nor begin on it. A window of 20 begins on the diagonal of 32 rows, where the helper also needs a loop."""
    given = window, 0, 1, rows, 16, 160
    old, new = at(EXACT, *given), at(changed(EXACT), *given)
    assert run_of(new, tmp_path) == run_of(old, tmp_path)
    assert product_loops(loaded(new, tmp_path)) == loops, "the front end drops the others"


def test_conditions_name_the_constants() -> None:
    new = changed(EXACT)
    assert "if WINDOW > 0 and (STAGE != 2 or WINDOW + 1 < M):\n        full_from = " in new
    assert "if WINDOW > 0 and (STAGE != 1 or WINDOW + 2 < N) and (STAGE != 2 or WINDOW + 2 < N + M):" in new.replace(
        "M + N", "N + M"
    )
    assert "if not (STAGE == 2 and 2 <= N):\n        for n in" in new
    assert "if STAGE == 2:\n        full_to = " in new, "the diagonal always has an edge"


@pytest.mark.parametrize(("name", "condition"), [("STAGE", "2 <= N"), ("WINDOW", "WINDOW + 1 < M")])
def test_what_is_assigned_again_decides_nothing(name: str, condition: str) -> None:
    new = changed(EXACT.replace("    if STAGE == 1:", f"    {name} = {name} + 0\n    if STAGE == 1:"))
    assert condition not in new and condition in changed(EXACT)


@pytest.mark.parametrize("line", ["min = ct.minimum", "max = 3"])
def test_bounds_need_the_built_in_functions(line: str) -> None:
    text = inserted("count = start", line)
    source = Source("task.py", text)
    site = Site.at(source, source.every(cst.For)[0], "a loop", (THREE_LOOPS,))
    assert "another function here" in refusal(SPLIT.apply, source, site, THREE_LOOPS)


LIBRARY, LAUNCH = HELPED.split("\n\ndef reference")


@pytest.mark.parametrize(("name", "found"), [("_inner", KNOWN), ("inner", [])])
def test_other_files_may_call_a_public_helper_of_a_library(name: str, found: list[str]) -> None:
    """In a task file, all calls are seen."""
    assert limits_of(HELPED.replace("_inner", name), name) == KNOWN
    launch = f"def reference{LAUNCH}".replace("tw.Launch(attention,", "tw.Launch(module.attention,")
    [files] = edited_files({Path("lib.py"): LIBRARY.replace("_inner", name), Path("task.py"): launch})
    assert limits_of(files.source.text, name) == found


@pytest.mark.parametrize(("window", "causal", "said"), [
    (64, 1, "24 of 40"), (64, 0, "58 of 100"), (10_000, 1, "45 of 55"), (0, 1, ""), (0, 0, ""),
])  # fmt: skip
def test_masks_are_counted_where_they_are_computed(window: int, causal: int, said: str, tmp_path: Path) -> None:
    """Ten blocks of rows. Without a window, only the diagonal computes masks, and needs them."""
    text = at(HELPED, window, 0, causal, 16, 16, 160)
    sites = SPLIT.sites(Source("task.py", text), launch_facts(text, tmp_path))
    assert [site.why for site in sites] == ([f"{said} iterations compute masks without need"] if said else [])


def test_one_workload_with_a_window_is_enough(tmp_path: Path) -> None:
    """The promise is that of all iterations: 24 of 40, and 0 of 55."""
    text = at(HELPED, 64, 0, 1, 16, 16, 160).replace("S, D, config)", "S, D, W, config)").replace("out, 64,", "out, W,")
    text = text.replace(
        '"keys": {"S": 160, "D": 16}', '"near": {"S": 160, "D": 16, "W": 64}, "all": {"S": 160, "D": 16, "W": 0}'
    )
    [site] = SPLIT.sites(Source("task.py", text), launch_facts(text, tmp_path))
    assert site.why == "24 of 95 iterations compute masks without need"
    assert site.promise == pytest.approx(24 / 95 / MEASURED)
