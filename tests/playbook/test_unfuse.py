"""A kernel that spills is divided into stages: by output, or by loading tiles again after a reduction."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import changed_lines, run_of, verdict
from tests.playbook.spilling import LARGE_PRODUCTS, LONG_NORM, SHORT_NORM, SMALL_PRODUCTS

from tilewright.playbook.base import NotApplicable, Site
from tilewright.playbook.entries import unfuse
from tilewright.playbook.entries.unfuse import AGAIN, APART, ENTRY, spills
from tilewright.records import MachineCode
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, facts_of, loaded

APART_P = f"{APART}p"


class TestUnfuse(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"products": LARGE_PRODUCTS, "norm": LONG_NORM}
    elsewhere: ClassVar = {"small products": SMALL_PRODUCTS, "short rows": SHORT_NORM}


def changed(text: str, value: str) -> str:
    """The text with a value, whatever the machine code says."""
    source = Source("task.py", text)
    [kernel] = source.kernels
    return ENTRY.apply(source, Site.at(source, source.kernels[kernel], "stages", (value,)), value)


def code_of(text: str, folder: Path) -> MachineCode:
    return next(iter(codes_of(loaded(text, folder)).values()))


@pytest.mark.long
def test_the_products_spill_nothing_after_it(tmp_path: Path) -> None:
    before, after = code_of(LARGE_PRODUCTS, tmp_path), code_of(changed(LARGE_PRODUCTS, APART_P), tmp_path)
    assert before.local_stores > 100 and before.stack_bytes > 500
    assert (after.local_stores, after.local_loads, after.stack_bytes) == (0, 0, 0)


@pytest.mark.long
def test_the_norm_spills_a_fifth_after_it(tmp_path: Path) -> None:
    before, after = code_of(LONG_NORM, tmp_path), code_of(changed(LONG_NORM, AGAIN), tmp_path)
    assert before.local_stores > 200 and before.stack_bytes > 1000
    assert 5 * after.local_stores < before.local_stores and 5 * after.stack_bytes < before.stack_bytes


@pytest.mark.parametrize(
    ("text", "value", "outputs"),
    [(SMALL_PRODUCTS, APART_P, "pq"), (SHORT_NORM, AGAIN, ("y", "dx"))],
    ids=["products", "norm"],
)
def test_equal_to_the_bit(text: str, value: str, outputs: str, tmp_path: Path) -> None:
    new = changed(text, value)
    for output in outputs:
        before, after = run_of(text, tmp_path, output), run_of(new, tmp_path, output)
        assert before[0] == after[0] and any(before[0])
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_the_site_names_what_is_spilled(tmp_path: Path) -> None:
    for text, values in ((LARGE_PRODUCTS, (APART_P,)), (LONG_NORM, (AGAIN,))):
        facts = facts_of(loaded(text, tmp_path))
        [site] = ENTRY.sites(Source("task.py", text), facts)
        [code] = facts.codes.values()
        assert site.values == values and site.promise == 1
        assert site.why == f"{code.stack_bytes} B spilled by each thread, {code.local_stores} spill stores"


def test_the_products_read_aloud(tmp_path: Path) -> None:
    new = changed(SMALL_PRODUCTS, APART_P)
    assert (
        new[new.index("    i, j = ") : new.index("def launch")].rstrip()
        == """
    i, j = ct.bid(0), ct.bid(1)
    # the stages run in different blocks: neither holds what only the other needs
    if ct.bid(2) == 0:
        # the sums
        first = ct.zeros((TM, TN), ct.float32)
        for k in range(ct.num_tiles(x, 1, (TM, TK))):
            # the common operand
            left = ct.load(x, (i, k), (TM, TK), padding_mode=ZERO)
            first = ct.mma(left, ct.load(a, (k, j), (TK, TN), padding_mode=ZERO), first)
        ct.store(p, (i, j), first.astype(p.dtype))
    else:
        second = ct.zeros((TM, TN), ct.float32)
        for k in range(ct.num_tiles(x, 1, (TM, TK))):
            # the common operand
            left = ct.load(x, (i, k), (TM, TK), padding_mode=ZERO)
            right = ct.load(b, (k, j), (TK, TN), padding_mode=ZERO)
            second = ct.mma(left, right, second)  # of b
        ct.store(q, (i, j), ct.maximum(second, 0).astype(q.dtype))
""".strip("\n").rstrip()
    )
    assert changed_lines(*(text[text.index("def launch") :] for text in (SMALL_PRODUCTS, new)))[1] == [
        "return tw.Launch(products, (-(-M // 16), -(-N // 16), 2), (x, a, b, p, q, 16, 16, 16))"
    ]


def test_a_grid_with_a_name_keeps_it(tmp_path: Path) -> None:
    old = "    return tw.Launch(products, (-(-M // 16), -(-N // 16), 1)"
    text = SMALL_PRODUCTS.replace(old, "    grid = (-(-M // 16), -(-N // 16))\n    return tw.Launch(products, grid")
    new = changed(text, APART_P)
    assert "tw.Launch(products, (grid[0], grid[1], 2)" in new
    assert run_of(text, tmp_path, "q") == run_of(new, tmp_path, "q")


def test_the_norm_reads_aloud() -> None:
    """The gradient is an operand of a difference, so it is kept: another rounding would be possible."""
    new = changed(SHORT_NORM, AGAIN)
    load = "ct.load({}, ({}, 0), (1, TILE), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)"
    values, weight = "values = " + load.format("x", "row"), "weight = " + load.format("w", "0")
    gone, added = changed_lines(SHORT_NORM, new)
    assert not gone and sorted(added) == sorted([values, values, "normed = values * scale"])
    assert new.index("scale = ") < new.index(weight) < new.index("ct.store(y")


# What is refused ---------------------------------------------------------------------------------------

LOOP = "    for k in range(ct.num_tiles(x, 1, (TM, TK))):\n"
STORE_P = "    ct.store(p, (i, j), first.astype(p.dtype))\n"
UNKNOWN = {
    "an atomic operation": (STORE_P, STORE_P + "    ct.atomic_add(q, (i, j), 1)\n"),
    "a print": (STORE_P, STORE_P + "    ct.printf('%d', i)\n"),
    "an early return": (LOOP, "    if i > 3:\n        return\n" + LOOP),
    "an early end": ("        first =", "        if k > 3:\n            break\n        first ="),
    "a loop with while": (LOOP, LOOP + "        while i > 3:\n            i = i - 1\n"),
    "a load of what is stored": ("left = ct.load(x,", "left = ct.load(p,"),
    "a store to a view": ("ct.store(p,", "ct.store(p.slice(0, 0, 16),"),
    "a store to another name": ("    ct.store(p,", "    p = q\n    ct.store(p,"),
    "a name in an expression": ("first.astype(p.dtype)", "(sum_ := first.astype(p.dtype))"),
    "a block in one line": (STORE_P, f"    if i >= 0: {STORE_P.strip()}\n"),
    "a variable after its loop": ("first.astype(p.dtype)", "(first + k).astype(p.dtype)"),
    "an unknown function": ("first.astype(p.dtype)", "np.array(first)"),
    "an element": (STORE_P, "    left[0] = 1\n" + STORE_P),
    "a wait": (LOOP, "    ct.grid_dependency_control_wait()\n" + LOOP),
    "a branch on a store": (STORE_P, "    if ct.atomic_add(q, 0, 1) > 1:\n        j = 1\n" + STORE_P),
    "an elif on a store": (STORE_P, "    if i > 1:\n        j = 1\n    elif ct.atomic_add(q, 0, 1):\n        j = 1\n"),
}  # fmt: skip


@pytest.mark.parametrize("change", UNKNOWN, ids=list(UNKNOWN))
def test_a_statement_that_may_not_run_twice_is_refused(change: str) -> None:
    old, new = UNKNOWN[change]
    text = SMALL_PRODUCTS.replace(old, new, 1)
    assert text != SMALL_PRODUCTS
    for value in (APART_P, AGAIN):
        with pytest.raises(NotApplicable, match="products (has|reads|does|stores)"):
            changed(text, value)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("ct.store(q,", "ct.store(p,", "has no other output"),
        ("// 16), 1)", "// 16), 2)", "no axis of the grid left"),
        ("ct.bid(0), ct.bid(1)", "ct.bid(0), ct.bid(1) + ct.bid(2)", "no axis of the grid left"),
        ("ct.bid(0), ct.bid(1)", "ct.bid(0) * ct.num_blocks(2), ct.bid(1)", "no axis of the grid left"),
        ("ct.maximum(second, 0)", "ct.maximum(second, first)", "for its other outputs, too"),
    ],
)
def test_outputs_that_cannot_be_apart_are_refused(old: str, new: str, reason: str) -> None:
    text = SMALL_PRODUCTS.replace(old, new)
    assert text != SMALL_PRODUCTS
    with pytest.raises(NotApplicable, match=reason):
        changed(text, APART_P)


@pytest.mark.parametrize("keyword", ["in_place_of", "updates"])
def test_outputs_in_the_memory_of_an_input_are_refused(keyword: str, tmp_path: Path) -> None:
    """The second stage would load what the first one stored."""
    old = '"dx": tw.Output(("M", "N"), "float32")'
    text = LONG_NORM.replace(old, f'{old[:-1]}, {keyword}="g")')
    source, facts = Source("task.py", text), facts_of(loaded(text, tmp_path))
    assert spills(facts) and not ENTRY.sites(source, facts)
    assert ENTRY.why_not(source, facts).startswith("its output dx shares the memory of g")


def test_it_says_why_a_kernel_that_spills_is_not_divided(tmp_path: Path) -> None:
    whole = LARGE_PRODUCTS.replace("ct.maximum(second, 0)", "ct.maximum(second, first)")
    facts = facts_of(loaded(LARGE_PRODUCTS, tmp_path))
    for text, reason in (
        (whole, "holds no loaded tile over a reduction or a loop"),
        (LARGE_PRODUCTS.replace("// 128), 1)", "// 128), 2)"), "no axis of the grid left"),
        (
            LARGE_PRODUCTS.replace("    ct.store(p", "    ct.atomic_add(q, 0, 1)\n    ct.store(p"),
            "ct.atomic_add(q, 0, 1)",
        ),
        (LARGE_PRODUCTS.replace("return tw.Launch", "return 1, tw.Launch").replace("Launch(", "Other("), "0 Launch"),
    ):
        source = Source("task.py", text)
        assert not ENTRY.sites(source, facts), reason
        assert reason in ENTRY.why_not(source, facts)


def test_values_that_are_unknown_are_refused() -> None:
    for value in ("other", f"{APART}x", f"{APART}nothing"):
        with pytest.raises(NotApplicable):
            changed(SMALL_PRODUCTS, value)


# Products that a sum absorbs ----------------------------------------------------------------------------

SHARED = """
    scaled = values * weight
    other = ct.load(g, (row, 0), (1, TILE), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (row, 0), scaled + other)
    more = ct.load(g, (row, 0), (1, TILE), padding_mode=ct.PaddingMode.ZERO) + 1.0
    ct.store(dx, (row, 0), scaled * more)
"""


def with_body(body: str) -> str:
    start, end = SHORT_NORM.index("    scale = "), SHORT_NORM.index("\n\ndef reference")
    return SHORT_NORM[:start] + body.strip("\n") + "\n" + SHORT_NORM[end:]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("scaled + other", "other - scaled"),
        ("scaled + other", "ct.add(scaled, other)"),
        ("scaled + other", "scaled.astype(ct.float32) + other"),
        ("scaled + other", "ct.reshape(scaled, (1, TILE)) + other"),
        ("scaled + other", "+scaled + other"),
        ("values * weight", "+(values * weight)"),
        ("values * weight", "ct.bitcast(values * weight, ct.float32)"),
        ("values * weight", "TILE > 3 and values * weight"),
        ("    other =", "    scaled = scaled.reshape((1, TILE))\n    other ="),
        ("    other =", "    again = scaled\n    other ="),
        ("    scaled = values * weight", "    scaled = values\n    scaled *= weight"),
        ("    other =", "    both = scaled + 1.0\n    other ="),
        ("scaled = values * weight", "scaled, row = values * weight, row"),
        ("scaled = values * weight", "scaled = (values * weight) if TILE > 3 else values"),
    ],
)
def test_a_product_that_only_one_output_adds_up_is_refused(old: str, new: str, tmp_path: Path) -> None:
    text = with_body(SHARED).replace(old, new, 1)
    text = text.replace("scaled + other", "again + other") if "again" in new else text
    if "both" in new:  # both outputs need a sum of the product, and one of them another product of it
        text = text.replace("scaled + other", "scaled * both * other").replace("scaled * more", "both * more")
    assert loaded(text, tmp_path)
    with pytest.raises(NotApplicable, match="might round it differently"):
        changed(text, f"{APART}y")


@pytest.mark.parametrize("sum_", ["scaled * other", "(scaled * 2) + other", "other + 1 / scaled", "-scaled - other"])
def test_a_product_that_is_read_otherwise_is_not(sum_: str, tmp_path: Path) -> None:
    text = with_body(SHARED).replace("scaled + other", sum_)
    new = changed(text, f"{APART}y")
    for output in ("y", "dx"):
        assert run_of(text, tmp_path, output) == run_of(new, tmp_path, output)


INDEX = """
    at = {} * 4
    other = ct.gather(g, (row, at + ct.arange(TILE, dtype=ct.int32)))
    ct.scatter(y, (row, ct.arange(TILE, dtype=ct.int32)), values[0, :] - other)
    ct.store(dx, (row, at // 4), (-values) * 2.0)
"""


@pytest.mark.parametrize(
    "first", ["row", "(row + TILE)", "(N // 2)", "x.shape[1]", "ct.num_tiles(x, 0, (1, 1))", "(row % 3)"]
)
def test_a_product_of_integers_is_not(first: str) -> None:
    """Sums of integers are not rounded."""
    text = with_body(INDEX.format(first)).replace("values[0, :]", "values.reshape((TILE,))")
    assert "if ct.bid(1) == 0" in changed(text, f"{APART}y")


@pytest.mark.parametrize("first", ["g", "ct.gather(w, (0, 0))", "N / 2", "ct.rsqrt(row)", "np.pi", "factor"])
def test_a_product_that_may_be_a_float_is_refused(first: str) -> None:
    text = with_body(INDEX.format(first)).replace("values[0, :]", "values.reshape((TILE,))")
    text = text.replace("dx, N:", "dx, factor, N:")
    with pytest.raises(NotApplicable, match="might round it differently"):
        changed(text, f"{APART}y")


# Loops, and what is loaded again -------------------------------------------------------------------------


def persistent(text: str) -> str:
    """The norm with a loop over the rows, in two blocks."""
    start, end = text.index("    row = ct.bid(0)\n"), text.index("\n\ndef reference")
    body = text[start:end].removeprefix("    row = ct.bid(0)\n")
    loop = "    for row in range(ct.bid(0), x.shape[0], ct.num_blocks(0)):\n" + textwrap.indent(body, "    ")
    return (text[:start] + loop + text[end:]).replace("norm, (M,)", "norm, (2,)")


def test_rows_of_a_persistent_kernel(tmp_path: Path) -> None:
    text = persistent(SHORT_NORM)
    new = changed(text, AGAIN)
    assert new.count("        values = ct.load") == 3
    for output in ("y", "dx"):
        assert run_of(text, tmp_path, output) == run_of(new, tmp_path, output)


BRANCHES = """
    powers = ct.exp(values)
    total = ct.zeros((1, TILE), ct.float32)
    for step in range(3):
        if step > row:
            total = total + values
            powers = powers * 2.0
        elif step == 1:
            total = total - weight
        else:
            powers = powers / weight
    if row % 2 == 0:
        ct.store(y, (row, 0), powers)
    else:
        ct.store(dx, (row, 0), total)
        ct.store(y, (row, 0), powers * powers)
    if row % 2 == 0:
        ct.store(dx, (row, 0), -total)
"""


@pytest.mark.parametrize("rows", [with_body(BRANCHES), persistent(with_body(BRANCHES))], ids=["rows", "persistent"])
@pytest.mark.parametrize("output", ["y", "dx"])
def test_branches_and_loops_are_divided_too(rows: str, output: str, tmp_path: Path) -> None:
    new = changed(rows, f"{APART}{output}")
    assert new.count("total = total + values") == new.count("powers = powers * 2.0") == 1
    assert new.count("for step in range(3)") == 2 and new.count("elif step == 1") == 2 - ("elif" not in new)
    for each in ("y", "dx"):
        assert run_of(rows, tmp_path, each) == run_of(new, tmp_path, each)


def test_each_of_three_outputs_may_be_apart(tmp_path: Path) -> None:
    """First the one whose stages share least. p needs nothing that r does not need, too."""
    text = SMALL_PRODUCTS.replace("a, b, p, q,", "a, b, p, q, r,")
    text = text.replace(
        "    ct.store(p,", "    third = first.astype(p.dtype)\n    ct.store(r, (i, j), third)\n    ct.store(p,"
    )
    text = text.replace('"q": tw', '"r": tw.Output(("M", "N"), "bfloat16"), "q": tw')
    text = text.replace("(x @ a, np", "(x @ a, x @ a, np")
    assert unfuse.stages_in_text(Source("task.py", text), "products") == [f"{APART}q", f"{APART}r"]
    new = changed(text, f"{APART}q")
    for output in "pqr":
        assert run_of(text, tmp_path, output) == run_of(new, tmp_path, output)


def test_a_tile_over_a_loop_is_loaded_after_it(tmp_path: Path) -> None:
    text = SMALL_PRODUCTS.replace(
        "    # the sums", "    bias = ct.load(x, (i, 0), (TM, 1), padding_mode=ZERO)\n    # the sums"
    )
    text = text.replace("first.astype(p.dtype)", "(first / bias).astype(p.dtype)")
    new = changed(text, AGAIN)
    assert new.index("second = ct.mma") < new.index("bias = ct.load") and new.count("bias = ct.load") == 1
    assert run_of(text, tmp_path, "p") == run_of(new, tmp_path, "p")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    row = ct.bid(0)\n", "    row = ct.bid(0)\n    values = 0\n"),
        ("    scale =", "    row = row + 0\n    scale ="),
    ],
    ids=["assigned twice", "an index that changes"],
)
def test_what_would_be_another_value_is_kept(old: str, new: str) -> None:
    text = SHORT_NORM.replace(old, new)
    assert text != SHORT_NORM
    new = changed(text, AGAIN)
    assert new.count("values = ct.load") == 1 and new.index("weight = ct.load") > new.index("scale = ")
