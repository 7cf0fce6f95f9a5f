"""Loops that mask tiles: hidden iterations are left out, and masks are computed only where they matter."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import libcst as cst
import pytest
from tests.playbook.kit import changed_lines, product_loops, run_of, verdict
from tests.playbook.masked import CAUSAL, COUNTED, GRADIENT, LOADED, MASK, STEPS, STORED, TIGHT, UNKNOWN, WIDE, WINDOW
from tests.playbook.plain import NORM, applied

from tilewright.playbook.analyses.masked_tiles import loops_with_masks
from tilewright.playbook.base import NotApplicable, Site, refusal
from tilewright.playbook.entries.causal_skip import ENTRY as SKIP
from tilewright.playbook.entries.causal_skip import LEFT_OUT
from tilewright.playbook.entries.mask_split import BRANCH, THREE_LOOPS, TWO_LOOPS
from tilewright.playbook.entries.mask_split import ENTRY as SPLIT
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, loaded


class TestCausalSkip(EntryContract):
    entry = SKIP
    examples: ClassVar = {"causal": CAUSAL, "a window": WINDOW, "a gradient": GRADIENT}
    elsewhere: ClassVar = {"bounds that are tight": TIGHT, "a loaded mask": LOADED, "no mask": NORM}


class TestMaskSplit(EntryContract):
    entry = SPLIT
    examples: ClassVar = {"causal": TIGHT, "a gradient": GRADIENT, "a window": WIDE}
    elsewhere: ClassVar = {"a loaded mask": LOADED, "every second key": UNKNOWN, "no mask": NORM}


FIXED = CAUSAL.replace("score, LOW)", "score, floor)").replace(
    "    # over all keys", "    floor = -9.0 if HEAD > 4 else LOW\n    # over all keys"
)
CASES = {
    "causal": (CAUSAL, LEFT_OUT, 72 / 128),
    "a window": (WINDOW, LEFT_OUT, 30 / 128),
    "a loop with steps": (STEPS, LEFT_OUT, 72 / 128),
    "a gradient": (GRADIENT, LEFT_OUT, 36 / 64),
    "the masked rest last": (CAUSAL, TWO_LOOPS, 1),
    "hidden scores that count": (FIXED, TWO_LOOPS, 1),
    "the masked rest first": (GRADIENT, TWO_LOOPS, 1),
    "two loops with steps": (STEPS, TWO_LOOPS, 1),
    "a branch at the end": (TIGHT, BRANCH, 1),
    "a branch for a window": (WIDE, BRANCH, 1),
    "three loops for a window": (WIDE, THREE_LOOPS, 1),
}


@pytest.mark.parametrize(("text", "value", "left"), CASES.values(), ids=CASES)
def test_the_result_is_equal_to_the_bit(text: str, value: str, left: float, tmp_path: Path) -> None:
    """``left``: the share of the products that is left."""
    new = applied(SKIP if value == LEFT_OUT else SPLIT, text, tmp_path, value)
    (before, all_flop), (after, flop) = run_of(text, tmp_path), run_of(new, tmp_path)
    assert after == before
    assert flop / all_flop == pytest.approx(left)


def run_at(text: str, window: int, length: int, folder: Path) -> tuple[bytes, float]:
    text = text.replace("SEEN: ct.Constant[int],", "SEEN,").replace("out, 480,", f"out, {window},")
    return run_of(text.replace('"S": 500', f'"S": {length}'), folder)


FROM = WIDE.replace("range(steps)", "range(max(0, m * TILE - SEEN + 1) // 32, min(steps, (m + 1) * TILE // 32))")
STRIDE = (
    WIDE.replace("range(steps)", "range(max(0, m * TILE - SEEN) // 8 * 8, k.shape[0], 32)")
    .replace("(n, 0)", "(n // 32, 0)")
    .replace("n * 32 + ct.arange", "n + ct.arange")
)
"""The loops begin at any multiple of 8, and the bounds of the masks are multiples of nothing."""
MOST = 2**31 - 1


@pytest.mark.parametrize("text", [WIDE, FROM, STRIDE], ids=["all keys", "from the window on", "with steps"])
@pytest.mark.parametrize(
    ("window", "length"),
    [(100, 200), (64, 200), (20, 200), (1, 200), (0, 200), (-70, 200), (250, 200), (10_000, 200), (MOST, 200),
     (-MOST + 255, 200), (20, 40)],
    ids=["a middle", "no middle", "crossed bounds", "one key", "no key", "negative", "longer than the sequence",
         "much longer", "the largest", "the least", "a sequence shorter than a tile"],
)  # fmt: skip
def test_three_loops_keep_each_bit(text: str, window: int, length: int, tmp_path: Path) -> None:
    """``-MOST + 255`` is the least window for which no position of the old kernel overflows."""
    source = Source("task.py", text)
    site = Site.at(source, source.every(cst.For)[0], "a loop", (THREE_LOOPS,))
    new = SPLIT.apply(source, site, THREE_LOOPS)
    assert run_at(new, window, length, tmp_path) == run_at(text, window, length, tmp_path)


GUARDED = WIDE.replace(
    "ct.where((columns <= rows) & (columns > rows - SEEN), score, LOW)",
    "ct.where(columns <= rows, score, LOW)\n        if SEEN > 0:\n"
    "            score = ct.where(columns > rows - SEEN, score, LOW)",
).replace('"S": 500', '"S": 200')


@pytest.mark.parametrize(("window", "loops"), [(0, 2), (100, 3)])
def test_an_edge_that_a_constant_leaves_out_leaves_no_loop(window: int, loops: int, tmp_path: Path) -> None:
    """``if SEEN > 0:`` is decided when the kernel is compiled: without a window, two loops are left."""
    old = GUARDED.replace("out, 480,", f"out, {window},")
    source = Source("task.py", old)
    site = Site.at(source, source.every(cst.For)[0], "a loop", (THREE_LOOPS,))
    new = SPLIT.apply(source, site, THREE_LOOPS)
    assert run_of(new, tmp_path) == run_of(old, tmp_path)
    assert product_loops(loaded(new, tmp_path)) == loops, "the front end drops the others"


def test_the_value_says_how_many_edges_need_masks() -> None:
    for text, value, why in ((WIDE, TWO_LOOPS, "both edges .* three"), (TIGHT, THREE_LOOPS, "one edge .* two")):
        source = Source("task.py", text)
        with pytest.raises(NotApplicable, match=why):
            SPLIT.apply(source, Site.at(source, source.every(cst.For)[0], "a loop", (value,)), value)


def test_the_new_kernel_agrees_with_the_reference(tmp_path: Path) -> None:
    new = applied(SPLIT, applied(SKIP, CAUSAL, tmp_path, LEFT_OUT), tmp_path, TWO_LOOPS)
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_fewer_instructions_are_in_the_loop_that_runs_most(tmp_path: Path) -> None:
    """The loop without masks compares no positions."""
    code = codes_of(loaded(applied(SPLIT, TIGHT, tmp_path, TWO_LOOPS), tmp_path))["keys"]
    sizes = sorted(sum(loop.mix.values()) for loop in code.loops)
    assert sizes[-2] < 0.9 * sizes[-1]


def test_the_change_is_short(tmp_path: Path) -> None:
    assert changed_lines(CAUSAL, applied(SKIP, CAUSAL, tmp_path, LEFT_OUT)) == (
        ["for n in range(steps):"], ["for n in range(min(steps, (TILE * m + TILE - 1) // 32 + 1)):"],
    )  # fmt: skip
    new = applied(SPLIT, CAUSAL, tmp_path, BRANCH)
    assert (
        """
        if n >= full_to:
            # which keys a query sees
            columns = n * 32 + ct.arange(32, dtype=ct.int32)[None, :]
            score = ct.where(columns <= rows, score, LOW)
        higher = ct.maximum"""
        in new
    )


@pytest.mark.parametrize(
    ("mask", "some", "full"),
    [
        ("columns <= rows", "n < (TILE * m + TILE - 1) // 32 + 1", "n < (TILE * m + 1) // 32"),
        ("rows >= columns", "n < (TILE * m + TILE - 1) // 32 + 1", "n < (TILE * m + 1) // 32"),
        ("columns < rows", "n < (TILE * m + TILE - 2) // 32 + 1", "n < (TILE * m) // 32"),
        ("columns < SEEN", "n < (SEEN - 1) // 32 + 1", "n < SEEN // 32"),
        ("SEEN > columns + 1", "n < (SEEN - 2) // 32 + 1", "n < (SEEN - 1) // 32"),
        ("columns > rows - SEEN", "n >= (TILE * m - SEEN + 1) // 32", "n >= (TILE * m + TILE - SEEN - 1) // 32 + 1"),
        ("~(columns > rows)", "n < (TILE * m + TILE - 1) // 32 + 1", "n < (TILE * m + 1) // 32"),
        ("columns < SEEN // 2", "n < ((SEEN // 2) - 1) // 32 + 1", "n < (SEEN // 2) // 32"),
        ("columns < 0.5", "", ""),
        ("columns == rows", "", ""),
        ("columns * columns <= rows", "", ""),
        ("rows < SEEN", "", ""),
        ("columns <= ct.load(q, (m, 0), (TILE, 1))", "", ""),
        ("(columns <= rows) | (columns < 5)", "", ""),
    ],
)
def test_bounds_follow_from_the_comparison(mask: str, some: str, full: str) -> None:
    source = Source("task.py", CAUSAL.replace(f"ct.where({MASK},", f"ct.where({mask},"))
    tiles = [tile for _, found in loops_with_masks(source, source.kernels["attention"]) for tile in found]
    limits = [limit for tile in tiles for limit in tile.limits]
    said = [
        f"n {'<' if limit.is_end else '>='} {limit.bound(fully=fully)}" for limit in limits for fully in (False, True)
    ]
    assert said == ([some, full] if some else [])


@pytest.mark.parametrize(
    ("text", "why"),
    [(STORED, "no iteration of this loop is hidden"), (COUNTED, "no iteration of this loop is hidden"),
     (NORM, "no loop with a mask begins here")],
    ids=["stores in the loop", "a sum that grows without keys", "no mask"],
)  # fmt: skip
def test_an_iteration_that_does_more_stays(text: str, why: str) -> None:
    source = Source("task.py", text)
    [loop, *_] = source.every(cst.For)
    with pytest.raises(NotApplicable, match=why):
        SKIP.apply(source, Site.at(source, loop, "a loop", (LEFT_OUT,)), LEFT_OUT)


@pytest.mark.parametrize("value", [TWO_LOOPS, BRANCH])
def test_a_mask_that_hides_nothing_is_no_edge(value: str) -> None:
    source = Source("task.py", CAUSAL.replace(MASK, "columns < SEEN").replace("range(steps)", "range(SEEN // 32)"))
    [loop, *_] = source.every(cst.For)
    with pytest.raises(NotApplicable, match="hide nothing"):
        SPLIT.apply(source, Site.at(source, loop, "a loop", (value,)), value)


@pytest.mark.parametrize(("factor", "hidden"), [("2.0", True), ("score", False)])
def test_the_product_of_two_hidden_tiles_is_not_hidden(factor: str, hidden: bool) -> None:
    """Minus infinity times minus infinity is infinity."""
    text = CAUSAL.replace("ct.max(score,", f"ct.max(score * {factor},")
    source = Source("task.py", text.replace("ct.exp(score - ", f"ct.exp(score * {factor} - "))
    [loop, *_] = source.every(cst.For)
    why = refusal(SKIP.apply, source, Site.at(source, loop, "a loop", (LEFT_OUT,)), LEFT_OUT)
    assert (why == "") == hidden, why


@pytest.mark.parametrize(
    ("row", "bound"), [("ct.bid(0)", "(TILE * ct.bid(0) + 1) // 32"), ("ct.load(q, (0, 0), (1, 1)).item()", None)]
)
def test_a_bound_has_the_value_that_the_mask_was_made_of(row: str, bound: str | None) -> None:
    """m changes between the rows and the loop. A load is not made again: its array may have changed."""
    text = CAUSAL.replace("m = ct.bid(0)", f"m = {row}").replace("    steps =", "    m = m + 1\n    steps =")
    source = Source("task.py", text)
    tiles = [tile for _, found in loops_with_masks(source, source.kernels["attention"]) for tile in found]
    assert [limit.bound(fully=True) for tile in tiles for limit in tile.limits] == ([bound] if bound else [])


@pytest.mark.parametrize(("header", "found"), [
    ("range(0, steps, 2)", 1), ("range(0, steps, TILE)", 1), ("range(steps - 1, -1, -1)", 0),
    ("range(0, steps, SEEN)", 0), ("range(0, steps, ct.num_blocks(0))", 0),
])  # fmt: skip
def test_the_steps_of_a_loop_are_positive(header: str, found: int) -> None:
    source = Source("task.py", CAUSAL.replace("range(steps)", header))
    assert len(list(loops_with_masks(source, source.kernels["attention"]))) == found


PART, RUNNING = "part = ct.exp(score - higher)", "        highest = higher\n"
FINITE = CAUSAL.replace('-float("inf")\n', "-1e9\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PART, "part = ct.exp(score - ct.min(score, axis=1, keepdims=True))"),
        (PART, "part = ct.exp(score + ct.abs(score))"),
        (PART, "part = ct.exp(score * 0.001 - higher)"),
        (PART, "part = ct.exp(score * -1.0)"),
        (PART, "part = ct.exp(score - higher)\n        part = part / ct.sum(part, axis=1, keepdims=True)"),
        (PART, "part = ct.exp(score - highest)\n        higher = ct.max(score, axis=1, keepdims=True)"),
        ("score, LOW)", "score, ct.float32(SEEN))"),
        ("arange(32, dtype=ct.int32)", "arange(32, dtype=ct.int64)"),
    ],
)
def test_a_hidden_tile_that_changes_a_result_stays(before: str, after: str) -> None:
    """The old and the new kernel would differ: a hidden score is lower than its minimum, minus infinity is negated …"""
    assert before in FINITE
    source = Source("task.py", FINITE.replace(before, after))
    loop = source.every(cst.For)[0]
    with pytest.raises(NotApplicable, match="no iteration of this loop is hidden|no loop with a mask"):
        SKIP.apply(source, Site.at(source, loop, "a loop", (LEFT_OUT,)), LEFT_OUT)


ROW = CAUSAL.replace("score, LOW)", "ct.full((1, 32), n * 1.0, ct.float32), floor)").replace(
    "    # over all keys", "    floor = loaded(q, m)\n    # over all keys"
)
"""The mask gives the row the rows of a tile that a helper loads."""
PLACE = "        score = ct.where"
DTYPES = {
    "float16 and a tile of float32": ("score.astype(ct.float16)", "score, ct.full((TILE, 32), LOW, ct.float32)", False),
    "float16 and what is loaded": ("score.astype(ct.float16)", "score, ct.load(q, (0, 0), (1, 1))", False),
    "float16 and a scalar": ("score.astype(ct.float16)", "score, m * 0.5", False),
    "float16 and a constant": ("score.astype(ct.float16)", "score, -9.0 if HEAD > 4 else LOW", True),
    "float32 and a tile": ("score * SEEN", "score, ct.full((TILE, 32), LOW, ct.float32)", True),
    "a maximum of float32 and a tile": ("max(score, SEEN)", "score, ct.full((TILE, 32), LOW, ct.float32)", True),
    "float32 and a scalar": ("ct.exp2(score)", "score, m * 0.5", True),
}


@pytest.mark.parametrize(("shown", "masked", "is_split"), DTYPES.values(), ids=DTYPES)
def test_a_mask_that_may_change_the_dtype_stays(shown: str, masked: str, is_split: bool) -> None:
    """``where`` of float16 and float32 is float32: without it, all that follows would be computed in float16."""
    text = CAUSAL.replace(PLACE, f"        score = {shown}\n{PLACE}").replace("score, LOW)", f"{masked})")
    source = Source("task.py", text)
    reason = refusal(SPLIT.apply, source, Site.at(source, source.every(cst.For)[0], "", (TWO_LOOPS,)), TWO_LOOPS)
    assert not reason if is_split else "may have another dtype" in reason


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CAUSAL.replace(RUNNING, RUNNING + "        steps = steps - 1\n"), "cannot be computed a second time"),
        (CAUSAL.replace(RUNNING, RUNNING + "        if n > 2:\n            break\n"), "may end early"),
        (GRADIENT.replace("0.0, part)", "0.0, ct.full((1, TILE), 2.0, ct.float32))"), "have another shape"),
        (ROW, "have another shape"),
    ],
    ids=["a changing end", "a loop that ends early", "a mask that gives a tile its shape", "a tile of any shape"],
)
def test_a_loop_that_cannot_be_parted_stays_whole(text: str, why: str) -> None:
    source = Source("task.py", text)
    loop = source.every(cst.For)[0]
    with pytest.raises(NotApplicable, match=why):
        SPLIT.apply(source, Site.at(source, loop, "a loop", (TWO_LOOPS,)), TWO_LOOPS)


def test_a_length_near_the_largest_int32_does_not_overflow(tmp_path: Path) -> None:
    """2³¹ - 1 means: no limit. Rounding it up would make it negative."""
    limits = "ct.where(columns < SEEN,", "SEEN,", "q, k, v, out, 2**31 - 1,"
    text = CAUSAL.replace(f"ct.where({MASK},", limits[0]).replace("SEEN: ct.Constant[int],", limits[1])
    text = text.replace("q, k, v, out, 64,", limits[2]).replace('"S": 500', '"S": 200')
    source = Source("task.py", text)
    site = Site.at(source, source.every(cst.For)[0], "a loop", (LEFT_OUT,))
    assert run_of(SKIP.apply(source, site, LEFT_OUT), tmp_path) == run_of(text, tmp_path)


def test_a_branch_that_loosens_a_mask_is_no_bound() -> None:
    """``mask = mask | …`` under an ``if`` shows more, not less."""
    looser = CAUSAL.replace(
        "        score = ct.where(columns <= rows, score, LOW)\n",
        "        mask = columns <= rows\n        if SEEN > 1:\n            mask = mask SIGN (columns < SEEN)\n"
        "        score = ct.where(mask, score, LOW)\n",
    )
    limits = []
    for sign in "&|":
        source = Source("task.py", looser.replace("SIGN", sign))
        tiles = [tile for _, found in loops_with_masks(source, source.kernels["attention"]) for tile in found]
        limits.append([limit.guards for tile in tiles for limit in tile.limits])
    assert limits == [[(), ("SEEN > 1",)], []]
