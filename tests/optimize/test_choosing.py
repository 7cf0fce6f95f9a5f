"""Which change comes next: class priority × expected effect × the ledger, and what is never proposed (K2, P-22)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.optimize.kit import H200, SCALE, Lines, Tripping

from tilewright.inspect.work import bound_of, count
from tilewright.ledger.records import EntryHistory
from tilewright.optimize.choosing import Past, Proposal, Tries, proposals
from tilewright.playbook.base import Entry, KernelFacts
from tilewright.task.loading import load_task
from tilewright.testing.entries import codes_of

TWO_KERNELS = SCALE.replace(
    "def launch(",
    """\
def doubled(tile):
    return tile * 2


@ct.kernel
def other(x, y, TILE: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, (i,), doubled(ct.load(x, (i,), (TILE,))))


def launch(""",
)


@pytest.fixture
def facts(tmp_path: Path) -> KernelFacts:
    return facts_of(SCALE, tmp_path)


def facts_of(text: str, folder: Path) -> KernelFacts:
    file = folder / "ops.py"
    file.write_text(text)
    task = load_task(str(file))
    workloads = task.selected(None)
    bounds = {one.name: bound_of(task, one, H200) for one in workloads}
    return KernelFacts(task, H200, workloads, bounds, {}, lambda workload: count(task, workload, H200))


def chosen(facts: KernelFacts, *entries: Entry, **asked: Any) -> list[Proposal]:
    found, unable = looked(facts, *entries, **asked)
    assert not unable
    return found


def looked(
    facts: KernelFacts, *entries: Entry, texts: Mapping[Path, str] | None = None, **asked: Any
) -> tuple[list[Proposal], list[str]]:
    assert facts.task.file is not None
    texts = texts or {facts.task.file: facts.task.file.read_text()}
    usual: dict[str, Any] = {"history": {}, "tried": {}, "kept": 0, "lossy": False, "lowered": set(), "missed": {}}
    return proposals(texts, facts, entries, Past(**usual | asked))


def score(facts: KernelFacts, entry: Entry, **asked: Any) -> float:
    (one,) = chosen(facts, entry, **asked)
    return one.score


def test_the_larger_expected_gain_comes_first(facts: KernelFacts) -> None:
    small, large = Lines("S", expected=1.05), Lines("L", expected=1.5)
    assert [one.entry for one in chosen(facts, small, large)] == ["L", "S"]


def test_of_equal_gains_the_class_priority_decides(facts: KernelFacts) -> None:
    """K2: the order of the kernel's own class."""
    later, first = Lines("A", priority=5), Lines("B", priority=1)
    assert [one.entry for one in chosen(facts, later, first)] == ["B", "A"]
    unnamed = replace(Lines("C"), priority=99)
    assert score(facts, later) > score(facts, unnamed) > 0


def test_what_a_site_promises_scales_its_score(facts: KernelFacts) -> None:
    assert score(facts, Lines(promise=0.25)) == pytest.approx(0.25 * score(facts, Lines()))


@pytest.mark.parametrize(
    ("history", "better"),
    [
        (EntryHistory("T", 4, 4, 1.5), True),
        (EntryHistory("T", 4, 1, 1.01), False),
        (EntryHistory("T", 4, 0, None), False),
    ],
    ids=["gained more than expected", "gained little", "never kept"],
)
def test_what_earlier_runs_saw_moves_the_score(facts: KernelFacts, history: EntryHistory, better: bool) -> None:
    without, with_it = score(facts, Lines()), score(facts, Lines(), history={"T": history})
    assert (with_it > without) is better and with_it > 0
    (one,) = chosen(facts, Lines(), history={"T": history})
    assert f"kept {history.keeps} of 4 times in earlier runs" in one.why


def test_earlier_runs_that_saw_what_was_expected_change_nothing(facts: KernelFacts) -> None:
    as_expected = {"T": EntryHistory("T", 3, 3, 1.1)}
    assert score(facts, Lines(expected=1.1), history=as_expected) == pytest.approx(score(facts, Lines(expected=1.1)))


def test_much_history_outweighs_the_expectation(facts: KernelFacts) -> None:
    often = {"T": EntryHistory("T", 200, 200, 1.5)}
    assert score(facts, Lines(), history=often) == pytest.approx(
        score(facts, Lines()) * math.log(1.5) / math.log(1.1), rel=0.02
    )


def test_an_entry_whose_last_gain_was_small_comes_later(facts: KernelFacts) -> None:
    entries = Lines("A", expected=1.11), Lines("B", expected=1.1)
    assert [one.entry for one in chosen(facts, *entries)] == ["A", "B"]
    after = chosen(facts, *entries, lowered=frozenset("A"))
    assert [one.entry for one in after] == ["B", "A"] and "lower priority after a small gain" in after[1].why


def test_a_lossy_entry_is_proposed_only_where_it_is_allowed(facts: KernelFacts) -> None:
    entries = Lines("A", risk="lossy"), Lines("B")
    assert [one.entry for one in chosen(facts, *entries)] == ["B"]
    allowed = chosen(facts, *entries, lossy=True)
    assert {one.entry: one.risk for one in allowed} == {"A": "lossy", "B": "lossless"}


def test_sites_in_functions_that_no_launch_reaches_are_left_out(tmp_path: Path) -> None:
    facts = facts_of(TWO_KERNELS, tmp_path)
    for kernel, proposed in (("scale", True), ("launch", True), ("", True), ("other", False), ("doubled", False)):
        assert bool(chosen(facts, Lines(kernel=kernel))) is proposed, kernel


def test_a_helper_of_both_kernels_is_reached(tmp_path: Path) -> None:
    shared = TWO_KERNELS.replace("ct.load(x, (i,), (TILE,)) * 2)", "doubled(ct.load(x, (i,), (TILE,))))")
    assert chosen(facts_of(shared, tmp_path), Lines(kernel="doubled"))


def test_a_site_is_tried_again_after_a_keep_and_at_most_twice(facts: KernelFacts) -> None:
    key = ("T", "the end, ")
    assert not chosen(facts, Lines(), tried={key: Tries(1, 0)}, kept=0)
    (again,) = chosen(facts, Lines(), tried={key: Tries(1, 0)}, kept=1)
    assert (again.entry, again.place) == key and again.score < score(facts, Lines())
    assert "tried before another change was kept" in again.why
    assert not chosen(facts, Lines(), tried={key: Tries(1, 1)}, kept=1)
    assert not chosen(facts, Lines(), tried={key: Tries(2, 0)}, kept=9)


def test_a_site_that_was_tried_comes_after_the_others_that_ease_the_limit(tmp_path: Path) -> None:
    """Tuning the space again and again left no time for the other changes of a slow kernel."""
    few = of_few_blocks(tmp_path)
    entries = Lines("A", expected=1.5, eases=few.limits), Lines("B", eases=few.limits), Lines("C", expected=1.01)
    assert few.limits and [one.entry for one in chosen(few, *entries)] == ["A", "B", "C"]
    after = chosen(few, *entries, tried={("A", "the end, "): Tries(1, 0)}, kept=1)
    assert [one.entry for one in after] == ["B", "A", "C"]


def test_an_entry_may_allow_more_tries(facts: KernelFacts) -> None:
    patient = Lines(tries=4)
    assert chosen(facts, patient, tried={("T", "the end, "): Tries(3, 0)}, kept=9)
    assert not chosen(facts, patient, tried={("T", "the end, "): Tries(4, 0)}, kept=9)


def test_sites_of_the_same_words_are_told_apart(facts: KernelFacts) -> None:
    found = chosen(facts, Lines(places=("a load", "a load", "a store")))
    assert sorted(one.place for one in found) == ["a load, ", "a load,  #2", "a store, "]


def test_sites_of_two_files_are_told_apart(facts: KernelFacts, tmp_path: Path) -> None:
    texts = {tmp_path / "ops.py": SCALE, tmp_path / "more.py": SCALE}
    found = chosen(facts, Lines(), texts=texts)
    assert sorted(one.place for one in found) == ["the end,  in more.py", "the end,  in ops.py"]
    (of_more,) = [one for one in found if "more" in one.place]
    assert of_more.apply(1) == texts | {tmp_path / "more.py": SCALE + "# T the end 1\n"}


def test_an_entry_that_trips_is_named_and_the_others_are_asked(facts: KernelFacts) -> None:
    found, unable = looked(facts, Tripping("X"), Lines("B"))
    assert [one.entry for one in found] == ["B"]
    (said,) = unable
    assert said.startswith("X lines of X cannot read ops.py: KeyError")


def test_the_order_is_the_same_each_time_and_whatever_the_order_of_the_entries(facts: KernelFacts) -> None:
    entries = [Lines(name, places=("a", "b")) for name in "CAB"]
    orders = {
        tuple((one.entry, one.place) for one in chosen(facts, *some)) for some in (entries, entries[::-1], entries)
    }
    assert len(orders) == 1
    assert [key[0] for key in orders.pop()] == ["A", "A", "B", "B", "C", "C"]


def test_the_reason_is_shown(facts: KernelFacts) -> None:
    (one,) = chosen(facts, Lines(expected=1.1))
    assert "place 1 of memory-bound kernels; expected 1.10× (made up, 2026-11-21)" in one.why
    assert f"score {one.score:.3f}" in one.why


def of_few_blocks(folder: Path) -> KernelFacts:
    few = facts_of(SCALE.replace("(-(-N // config.TILE),)", "(16,)").replace('"N": 4096', '"N": 1 << 24'), folder)
    return replace(few, codes=codes_of(few.task))


def test_the_own_space_comes_first_on_untouched_code_that_is_measured(tmp_path: Path) -> None:
    """Sparsemax on an H200: a change of structure at the shipped hints was kept, and better hints were never tried."""
    facts = of_few_blocks(tmp_path)
    own, easing = Lines("A", first=True), Lines("B", expected=1.5, eases=("too few blocks",))
    (first, _) = chosen(facts, own, easing, measured=True)
    assert first.entry == "A" and "first on the untouched code" in first.why
    for others in ({"measured": False}, {"measured": True, "kept": 1}):
        assert [each.entry for each in chosen(facts, own, easing, **others)] == ["B", "A"]


def test_an_entry_that_eases_the_limit_comes_first(tmp_path: Path) -> None:
    """16 blocks on 132 SMs: the launch of 4096 elements is limited by its start, one of 2 GiB by its few blocks."""
    small = facts_of(SCALE, tmp_path)
    small = replace(small, codes=codes_of(small.task))
    assert small.limits == ("launch",)
    entries = Lines("A", eases=("too few blocks",)), Lines("B", expected=1.5)
    assert [one.entry for one in chosen(small, *entries)] == ["B", "A"]
    few = of_few_blocks(tmp_path)
    assert few.limits == ("too few blocks",)
    first, second = chosen(few, *entries)
    assert (first.entry, second.entry) == ("A", "B") and "eases the limit: too few blocks" in first.why


def test_the_base_policy_follows_the_priority_list(facts: KernelFacts) -> None:
    """Whatever the expected gains and the limits of the kernel are; an entry with a small gain comes last."""
    entries = [Lines("A", priority=3, expected=2.0, eases=("traffic",)), Lines("B", priority=1), Lines("C", priority=2)]
    assert [one.entry for one in chosen(facts, *entries, by_place=True)] == ["B", "C", "A"]
    assert [one.entry for one in chosen(facts, *entries, by_place=True, lowered={"B"})] == ["C", "A", "B"]
