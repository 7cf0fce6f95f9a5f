"""Work is ordered by impact over effort, then impact, risk, dependencies, interactions (C-11, C-14): a total order."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinate.test_analysis import SEED

from tilewright.coordinate.analysis import LEVELS, read_analysis
from tilewright.coordinate.priority import WorkItem, item_of, ranked
from tilewright.errors import RequestError


@st.composite
def works(draw: st.DrawFn) -> list[WorkItem]:
    """Items whose requirements make no circle: each requires only items with smaller numbers."""
    size = draw(st.integers(0, 9))
    items: list[WorkItem] = []
    for number in range(size):
        before = (
            st.lists(st.sampled_from([item.id for item in items]), unique=True, max_size=3) if items else st.just([])
        )
        items.append(WorkItem(
            f"R{number}", "change", draw(st.sampled_from(LEVELS)), draw(st.sampled_from(LEVELS)),
            draw(st.sampled_from(["lossless", "lossy", "irreversible"])), tuple(draw(before)), tuple(draw(before)),
        ))  # fmt: skip
    return items


@given(works(), st.randoms(use_true_random=False))
def test_the_order_depends_on_the_items_alone(items: list[WorkItem], chance: random.Random) -> None:
    shuffled = list(items)
    chance.shuffle(shuffled)
    assert ranked(shuffled) == ranked(items)
    assert sorted(item.id for item in ranked(items)) == sorted(item.id for item in items)


@given(works())
def test_prerequisites_precede(items: list[WorkItem]) -> None:
    order = [item.id for item in ranked(items)]
    for item in items:
        assert all(order.index(required) < order.index(item.id) for required in item.requires)


@given(works())
def test_without_requirements_the_first_difference_decides(items: list[WorkItem]) -> None:
    amount = {"Low": 1, "Medium": 2, "High": 3}
    order = ranked([replace(item, requires=(), conflicts=()) for item in items])
    for one, other in pairwise(order):
        a, b = amount[one.impact] * amount[other.effort], amount[other.impact] * amount[one.effort]
        assert a >= b
        if a == b:
            assert amount[one.impact] >= amount[other.impact]
            if one.impact == other.impact:
                risks = ["lossless", "lossy", "irreversible"]
                assert risks.index(one.risk) <= risks.index(other.risk)


@given(works())
def test_one_more_impact_never_moves_an_item_back(items: list[WorkItem]) -> None:
    free = [replace(item, requires=()) for item in items]
    for item in free:
        if item.impact == "Low":
            raised = [replace(each, impact="High") if each is item else each for each in free]
            before, after = ([one.id for one in ranked(each)].index(item.id) for each in (free, raised))
            assert after <= before


def test_among_equals_prerequisites_of_many_and_those_that_touch_few_come_first() -> None:
    wanted = WorkItem("z", "a layout that others need", "High")
    needs = WorkItem("b", "needs it", "Low", requires=("z",))
    touching = WorkItem("a", "changes the effect of c", "High", conflicts=("c",))
    alone = WorkItem("d", "alone", "High")
    assert [item.id for item in ranked([needs, touching, alone, wanted])][:3] == ["z", "d", "a"]


def test_requirements_that_cannot_be_met_are_one_line() -> None:
    circle = [WorkItem("a", "x", "High", requires=("b",)), WorkItem("b", "x", "High", requires=("a",))]
    with pytest.raises(RequestError, match="a, b require each other in a circle"):
        ranked(circle)
    with pytest.raises(RequestError, match="a requires b, which is not among a"):
        ranked(circle[:1])
    with pytest.raises(RequestError, match="two items have the same id"):
        ranked([circle[0], circle[0]])


def test_recommendations_become_items_with_their_specialists() -> None:
    items = [item_of(one) for one in read_analysis(SEED).recommendations]
    assert [item.id for item in ranked(items)] == ["R1", "R2", "R3"]
    assert {item.specialists for item in items} == {("profiling",)}
    lossy = item_of(replace(read_analysis(SEED).recommendations[0], text="Run the matmuls in FP8"))
    assert lossy.risk == "lossy"
    kernel = item_of(replace(read_analysis(SEED).recommendations[0], text="Write a TileIR kernel for rope"))
    assert (kernel.specialists, kernel.effort) == (("triton", "tileir"), "High")
