"""Entry J: token chains, offered only where the interpreter has shown that no byte is shared (K1 J)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import verdict
from tests.playbook.plain import HALF_PRODUCT, HEAD, NORM, SCALE_ROWS, applied, launch_facts

from tilewright.playbook.analyses import independent_accesses
from tilewright.playbook.analyses.independent_accesses import waiting
from tilewright.playbook.entries import persistent
from tilewright.playbook.entries.tokens import ENTRY
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, loaded

HALVES = (
    HEAD
    + """
@ct.kernel
def halves(x, y, HALF: ct.Constant[int]):
    row = ct.bid(0)
    ct.store(y, (row, 1), ct.load(x, (row, 1), (1, HALF)))
    ct.store(y, (row, 0), ct.load(x, (row, 0), (1, HALF)))
    # what was just written
    second = ct.load(y, (row, PART), (1, HALF))
    ct.store(y, (row, 1), second * 2)


def reference(x):
    half = x.shape[1] // 2
    part = x[:, half:] if PART else x[:, :half]
    return np.concatenate((x[:, :half], part * 2), axis=1)


def launch(x, y, M, N):
    return tw.Launch(halves, (M,), (x, y, N // 2))


task = tw.Task(
    name="halves",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: M * N,
    independent=("M",),
    serves=lambda N: N >= 2 and N & (N - 1) == 0,
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 512, "N": 64}},
)
"""
)
OTHER_HALF, SAME_HALF = HALVES.replace("PART", "1"), HALVES.replace("PART", "0")
OVERLAPPING = NORM.replace("ct.bid(0) * ROWS + i", "ct.bid(0) * ROWS + i * 0")


class TestTokens(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"halves": OTHER_HALF, "rows in a loop": NORM}
    elsewhere: ClassVar = {"the same half": SAME_HALF, "no chain": SCALE_ROWS}


def test_a_load_goes_in_front_of_a_store_to_another_place(tmp_path: Path) -> None:
    """The half that was stored last is not the one that is loaded; the one before is, and stays in front."""
    new = applied(ENTRY, OTHER_HALF, tmp_path, "above line 11")
    lines = [line.strip() for line in new.splitlines()]
    first = lines.index("# what was just written")
    assert lines[first - 1].startswith("ct.store(y, (row, 1)")
    assert lines[first + 1 : first + 3] == [
        "second = ct.load(y, (row, 1), (1, HALF))",
        "ct.store(y, (row, 0), ct.load(x, (row, 0), (1, HALF)))",
    ]
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")
    before, after = (waits(text, tmp_path) for text in (OTHER_HALF, new))
    assert ("load", 13, "store", 11, True) in before
    assert not [one for one in after if one[0] == "load" and one[4]], "what it still waits for, it must"


def waits(text: str, folder: Path) -> list[tuple[str, int, str, int, bool]]:
    found = waiting(launch_facts(text, folder))
    assert not isinstance(found, str), found
    return [(one.what, one.place[0], one.awaited, one.awaited_place[0], one.independent) for one in found]


def test_a_wait_that_is_needed_is_known(tmp_path: Path) -> None:
    assert ("load", 13, "store", 11, False) in waits(SAME_HALF, tmp_path)


def test_a_loop_over_the_index_frees_the_store(tmp_path: Path) -> None:
    """cuTile stores in parallel where an index is the loop's own variable."""
    new = applied(ENTRY, NORM, tmp_path, "loop over the index")
    assert "    for row in range(ct.bid(0) * ROWS, ct.bid(0) * ROWS + ROWS):  # a few rows a block\n" in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")
    assert [one for one in waits(NORM, tmp_path) if one[0] == one[2] == "store"]
    assert not waits(new, tmp_path)


def test_a_store_that_hits_the_same_rows_again_is_no_site(tmp_path: Path) -> None:
    assert not ENTRY.sites(Source("task.py", OVERLAPPING), launch_facts(OVERLAPPING, tmp_path))
    assert [one for one in waits(OVERLAPPING, tmp_path) if not one[4]]


def test_findings_tell_of_chains_that_no_source_form_frees(tmp_path: Path) -> None:
    text = applied(persistent.ENTRY, HALF_PRODUCT, tmp_path, 2)
    facts, source = launch_facts(text, tmp_path), Source("task.py", text)
    assert not ENTRY.sites(source, facts)
    [told] = ENTRY.findings(source, facts)
    assert "waits for the store" in told and "of an earlier iteration; they touch no byte in common" in told
    assert "is not needed" in told


def test_findings_say_why_nothing_is_known(tmp_path: Path) -> None:
    broken = launch_facts(SCALE_ROWS.replace("values * factor", "values @ factor"), tmp_path)
    [told] = ENTRY.findings(Source("task.py", SCALE_ROWS), broken)
    assert told.startswith("token chains: not known, ")


def test_a_kernel_with_too_many_accesses_is_not_compared_for_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(independent_accesses, "MOST_COMPARISONS", 0)
    assert waiting(launch_facts(SAME_HALF, tmp_path)) == "the kernel has too many accesses to compare them"
