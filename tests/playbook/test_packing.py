"""A flat range that is divided into rows and columns is divided by groups, so that narrow accesses are combined."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import changed_lines, run_of, verdict
from tests.playbook.plain import HEAD, launch_facts

from tilewright.playbook.base import NotApplicable
from tilewright.playbook.entries.packing import ENTRY, narrow_accesses
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, facts_of, loaded

GATED = (
    HEAD
    + """
@ct.kernel
def gated(y, x, N: ct.Constant[int], STRIDE: ct.Constant[int], TILE: ct.Constant[int]):
    flat = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
    # where the element is
    row = flat // N
    column = flat % N
    left = row * STRIDE + column
    a = ct.gather(x, left)
    b = ct.gather(x, left + N)
    ct.scatter(y, flat, a * b)


task = tw.Task(
    name="gated",
    tensors={"x": tw.Tensor(("M * 2 * N",), "bfloat16"), "out": tw.Output(("M * N",), "bfloat16")},
    reference=lambda x, M, N: (x.reshape(M, 2, N)[:, 0] * x.reshape(M, 2, N)[:, 1]).reshape(-1),
    launch=lambda x, out, M, N: tw.Launch(gated, (-(-M * N // 1024),), (out, x, N, 2 * N, 1024)),
    flops=lambda M, N: M * N,
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 24, "N": 96}},
)
"""
)
ROWS = (
    HEAD
    + """
@ct.kernel
def turned(y, x, N: ct.Constant[int]):
    for part in range(2):
        flat = (2 * ct.bid(0) + part) * 512 + ct.arange(512, dtype=ct.int32)
        values = ct.gather(x, (flat // N, flat % N))
        ct.scatter(y, (flat // N, flat % N), -values)


task = tw.Task(
    name="turned",
    tensors={"x": tw.Tensor(("M", "N"), "DTYPE"), "out": tw.Output(("M", "N"), "DTYPE")},
    reference=lambda x: -x,
    launch=lambda x, out, M, N: tw.Launch(turned, (-(-M * N // 1024),), (out, x, N)),
    flops=lambda M, N: M * N,
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 40, "N": 80}},
)
"""
)
ROWS_OF = {dtype: ROWS.replace("DTYPE", dtype) for dtype in ("bfloat16", "float32")}
WIDE = GATED.replace("left = row * STRIDE + column", "left = flat")
DIVISIONS = ("    row = flat // N\n", "    column = flat % N\n")


class TestPacking(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"flat": GATED, **ROWS_OF}
    elsewhere: ClassVar = {
        "wide accesses": WIDE,
        "quotients alone": GATED.replace("flat % N", "flat - row * N"),
        "a length that is no constant": GATED.replace("N: ct.Constant[int], STR", "N, STR"),
    }


def packed(text: str, folder: Path) -> str:
    source = Source("task.py", text)
    [site] = ENTRY.sites(source, facts_of(loaded(text, folder)))
    return ENTRY.apply(source, site, 16)


@pytest.mark.parametrize("text", [GATED, *ROWS_OF.values()], ids=["flat", *ROWS_OF])
def test_fewer_and_wider_accesses(text: str, tmp_path: Path) -> None:
    """The machine code has a third of the accesses, or fewer, and fewer instructions."""
    codes = [next(iter(codes_of(loaded(each, tmp_path)).values())) for each in (text, packed(text, tmp_path))]
    before, after = (
        [sum(count for name, count in code.copies.items() if name.startswith(kind)) for kind in ("LDG.", "STG.")]
        for code in codes
    )
    assert 3 * after[0] <= before[0] and 3 * after[1] <= max(before[1], 3), (codes[0].copies, codes[1].copies)
    assert not narrow_accesses({"new": codes[1]}) and codes[1].instructions < codes[0].instructions


@pytest.mark.parametrize("length", [80, 96, 100, 77, 1, 16])
@pytest.mark.parametrize("text", [GATED, ROWS_OF["bfloat16"]], ids=["flat", "rows"])
def test_equal_to_the_bit_for_each_length(text: str, length: int, tmp_path: Path) -> None:
    """PACK follows the length: 16, 16, 4, 1, 1, 16."""
    other = re.sub(r'"N": \d+', f'"N": {length}', text)
    new = re.sub(r'"N": \d+', f'"N": {length}', packed(text, tmp_path))
    assert run_of(other, tmp_path) == run_of(new, tmp_path)
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_the_kernel_reads_aloud(tmp_path: Path) -> None:
    new = packed(GATED, tmp_path)
    assert changed_lines(GATED, new) == (
        ["row = flat // N", "column = flat % N"],
        [
            "# groups of elements in one row, which are accessed together",
            "PACK = min(min(N & -N, TILE), 16)",
            "group = ct.bid(0) * (TILE // PACK) + ct.arange(TILE // PACK, dtype=flat.dtype)",
            "row = ct.reshape(ct.broadcast_to((group // (N // PACK))[:, None], (TILE // PACK, PACK)), (TILE,))",
            "column = ct.reshape((group % (N // PACK) * PACK)[:, None] + "
            "ct.arange(PACK, dtype=flat.dtype)[None, :], (TILE,))",
        ],
    )
    assert new.index("# where the element is") < new.index("# groups")


def test_a_range_that_is_assigned_twice_has_groups_of_its_own(tmp_path: Path) -> None:
    again = "    flat = (ct.bid(0) + 0) * TILE + ct.arange(TILE, dtype=ct.int32)\n"
    text = GATED.replace(DIVISIONS[0], "    row = flat // N + 0 * (flat % N)\n")
    text = text.replace(DIVISIONS[1], again + DIVISIONS[1])
    new = packed(text, tmp_path)
    assert new.count("PACK_2 = ") == new.count("group_2 = ") == 1
    assert run_of(text, tmp_path) == run_of(new, tmp_path)


@pytest.mark.parametrize(
    "flat",
    [
        "ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32) + 4",
        "ct.bid(0) * STRIDE + ct.arange(TILE, dtype=ct.int32)",
        "ct.bid(0) * TILE + 2 * ct.arange(TILE, dtype=ct.int32)",
        "ct.gather(x, ct.bid(0)).astype(ct.int32) * 2 + ct.arange(TILE, dtype=ct.int32)",
        "ct.bid(0) * TILE - ct.arange(TILE, dtype=ct.int32)",
        "(ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)).astype(ct.int16)",
        "ct.astype(ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32), ct.int16)",
        "ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int16)",
        "ct.bid(0) * TILE + ct.cumsum(ct.full((TILE,), 1, ct.int32), 0)",
    ],
)
def test_a_range_that_may_not_consist_of_groups_is_refused(flat: str, tmp_path: Path) -> None:
    text = GATED.replace("ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)", flat)
    source, facts = Source("task.py", text), facts_of(loaded(text, tmp_path))
    assert not ENTRY.sites(source, facts)
    assert "divides no range that begins at a multiple" in ENTRY.why_not(source, facts)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    row =", "    N = N + STRIDE - STRIDE\n    row ="),
        ("    row =", "    for N in range(3, 4):\n        pass\n    row ="),
        ("flat // N\n", "flat // (N + 0)\n"),
        ("flat // N\n", "flat // -96\n"),
    ],
    ids=["assigned", "a loop's variable", "an expression", "negative"],
)
def test_a_length_that_may_change_is_refused(old: str, new: str) -> None:
    text = GATED.replace(old, new).replace(DIVISIONS[1], "    column = row\n")
    source = Source("task.py", text)
    with pytest.raises(NotApplicable, match="divides no range"):
        list(ENTRY.places(source, source.functions["gated"]))


def test_a_base_that_changes_is_refused(tmp_path: Path) -> None:
    text = GATED.replace("flat = ct.bid(0) * TILE", "at = ct.bid(0)\n    flat = at * TILE")
    text = text.replace("    # where", "    at = at + 1\n    # where")
    source = Source("task.py", text)
    with pytest.raises(NotApplicable, match="divides no range"):
        list(ENTRY.places(source, source.functions["gated"]))


def test_a_range_of_floats_is_refused() -> None:
    """A float16 holds whole numbers only up to 2048, so that a group may be exact where its range is not."""
    text = GATED.replace("    # where", "    flat = flat.astype(ct.float16)\n    # where")
    source = Source("task.py", text)
    with pytest.raises(NotApplicable, match="divides no range"):
        list(ENTRY.places(source, source.functions["gated"]))


def test_a_negative_length_is_refused(tmp_path: Path) -> None:
    """The quotient of a group would be rounded down from another number."""
    text = GATED.replace("N, 2 * N, 1024", "-N, 2 * N, 1024").replace("a = ct.gather(x, left)", "a = row")
    text = text.replace("b = ct.gather(x, left + N)", "b = column").replace(
        "flat, a * b", "flat, (a * b).astype(y.dtype)"
    )
    facts = replace(facts_of(loaded(GATED, tmp_path)), task=loaded(text, tmp_path))
    assert not ENTRY.sites(Source("task.py", text), facts)


def test_parameters_that_are_positional_only(tmp_path: Path) -> None:
    assert "PACK = " in packed(GATED.replace("(y, x, N:", "(y, x, /, N:"), tmp_path)


def test_nothing_is_offered_without_machine_code(tmp_path: Path) -> None:
    source, facts = Source("task.py", GATED), launch_facts(GATED, tmp_path)
    assert not ENTRY.sites(source, facts)
    assert ENTRY.why_not(source, facts) == "its machine code has no narrow accesses"


def test_the_reason_counts_the_narrow_accesses(tmp_path: Path) -> None:
    source = Source("task.py", GATED)
    [site] = ENTRY.sites(source, facts_of(loaded(GATED, tmp_path)))
    assert re.fullmatch(r"\d+ LDG\.16", site.why), site.why
