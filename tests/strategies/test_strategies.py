"""Strategies: the predicted order that `tune` runs on, and a toy that one file makes."""

from __future__ import annotations

import pytest

from tilewright.errors import UnknownChoice
from tilewright.plugins import plugins
from tilewright.records import Configuration
from tilewright.strategies import strategy_of
from tilewright.strategies.base import Search, SearchSpace, Strategy
from tilewright.strategies.predicted import Predicted
from tilewright.testing.strategies import StrategyContract, made_space, searched


class Halving(Strategy):
    """Half of those left, then half of the rest, while something is correct."""

    name = "halving"

    def search(self, space: SearchSpace) -> Search:
        left = space.ranked
        while left:
            half = max(1, len(left) // 2)
            outcomes = yield left[:half]
            left = left[half:] if any(outcome.status == "raced" for outcome in outcomes) else ()


class TestPredicted(StrategyContract):
    strategy = Predicted()


class TestToy(StrategyContract):
    strategy = Halving()


def test_where_times_are_measured_one_batch_has_the_best_predicted_and_the_baseline() -> None:
    space = made_space(10, top=3)
    assert searched(Predicted(), space, lambda _: "raced") == [(*space.ranked[:3], space.ranked[9])]
    space = made_space(3, top=3)
    assert searched(Predicted(), space, lambda _: "wrong") == [space.ranked]


def test_without_a_gpu_it_goes_on_until_one_is_not_incorrect() -> None:
    space = made_space(10, top=3, measured=False)
    assert searched(Predicted(), space, lambda _: "predicted") == [space.ranked[:3]]

    def wrong_until(configuration: Configuration) -> str:
        return "wrong" if configuration in space.ranked[:5] else "predicted"

    asked = searched(Predicted(), space, wrong_until)  # type: ignore[arg-type]
    assert asked == [space.ranked[:3], (space.ranked[3],), (space.ranked[4],), (space.ranked[5],)]


def test_an_unknown_name_is_answered_with_the_choices() -> None:
    with pytest.raises(UnknownChoice, match="unknown strategy 'genetic'; known: predicted"):
        strategy_of("genetic")


def test_one_from_outside_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Halving()
    monkeypatch.setattr("tilewright.plugins.plugins", lambda *where: iter((*plugins(*where), toy)))
    assert strategy_of("halving") is toy and isinstance(strategy_of("predicted"), Predicted)
