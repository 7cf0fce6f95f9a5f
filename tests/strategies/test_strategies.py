"""Strategies: each passes the kit that users inherit; what is peculiar to one is tested below."""

from __future__ import annotations

import sys

import pytest

from tilewright.errors import MachineError, UnknownChoice
from tilewright.plugins import plugins
from tilewright.space.space import Space
from tilewright.strategies import strategy_of
from tilewright.strategies.base import POOL, Search, SearchSpace, Strategy
from tilewright.strategies.bayesian import Bayesian
from tilewright.strategies.exhaustive import Exhaustive
from tilewright.strategies.halving import Halving
from tilewright.strategies.local import LocalSearch
from tilewright.testing.strategies import StrategyContract, made_space, searched, smooth_space, smooth_us


class Toy(Strategy):
    """Half of those left, then half of the rest, while something is correct."""

    name = "toy"
    share = 1.0

    def search(self, space: SearchSpace) -> Search:
        left = (space.shipped, *(config for config in space.pool if config != space.shipped))
        while left:
            half = max(1, len(left) // 2)
            outcomes = yield left[:half]
            left = left[half:] if any(outcome.status == "raced" for outcome in outcomes) else ()


class TestExhaustive(StrategyContract):
    strategy = Exhaustive()


class TestHalving(StrategyContract):
    strategy = Halving()


class TestLocal(StrategyContract):
    strategy = LocalSearch()


class TestToy(StrategyContract):
    strategy = Toy()


class TestBayesian(StrategyContract):
    strategy = Bayesian()

    @pytest.fixture(autouse=True)
    def _needs_optuna(self) -> None:
        pytest.importorskip("optuna")


class TestTwice(StrategyContract):
    """The kit fails a strategy that breaks a rule."""

    class Twice(Strategy):
        name = "twice"

        def search(self, space: SearchSpace) -> Search:
            while True:
                yield (space.shipped, space.shipped.replace(**dict.fromkeys(space.space.knobs, 7)))

    strategy = Twice()

    @pytest.mark.xfail(raises=AssertionError, strict=True)
    def test_nothing_is_asked_for_twice(self) -> None:
        super().test_nothing_is_asked_for_twice()

    @pytest.mark.xfail(raises=AssertionError, strict=True)
    def test_only_allowed_configurations_are_asked_for(self) -> None:
        super().test_only_allowed_configurations_are_asked_for()

    @pytest.mark.xfail(raises=AssertionError, strict=True)
    def test_it_finds_the_best_of_a_smooth_space(self) -> None:
        super().test_it_finds_the_best_of_a_smooth_space()

    @pytest.mark.xfail(raises=AssertionError, strict=True)
    def test_it_ends(self) -> None:
        super().test_it_ends()


def test_exhaustive_is_one_batch_in_the_order_of_the_space() -> None:
    space = made_space(10, 10)
    assert searched(Exhaustive(), space, lambda _: "raced") == [space.space.configurations(90, {})]
    assert searched(Exhaustive(), made_space(10, 4), lambda _: "raced") == [space.space.configurations(90, {})[:4]]


def test_halving_halves_its_batches() -> None:
    asked = searched(Halving(), smooth_space(32), lambda _: "raced", smooth_us)
    assert list(map(len, asked)) == [16, 8, 4, 2, 1, 1]


def test_local_goes_to_neighbours_of_the_fastest() -> None:
    first, second, *_ = searched(LocalSearch(), smooth_space(40), lambda _: "raced", smooth_us)
    fastest = min(first, key=smooth_us)
    assert {sum(fastest[knob] != config[knob] for knob in config) for config in second} == {1}


def test_failures_are_avoided() -> None:
    """All tiles of M above 32 fail. The other half of the space then has most of the later batches."""
    space = smooth_space(40)
    _, *later = searched(
        Halving(), space, lambda config: "failed" if config.TILE_M > 32 else "raced", lambda config: 10.0
    )
    failed = [config.TILE_M > 32 for batch in later for config in batch]
    assert sum(failed) < 0.3 * len(failed)


def test_a_large_space_is_not_listed() -> None:
    """10⁸ points, of which a constraint allows one in ten. Each test of the constraint is counted."""
    tested = []

    def allowed(A: int, B: int) -> bool:
        tested.append(A)
        return (A + B) % 10 == 0

    numbers = range(100)
    space = Space(constants=dict.fromkeys("ABCD", numbers), shipped=dict.fromkeys("ABCD", 0), where=[allowed])
    for strategy in (Halving(), LocalSearch()):
        asked = searched(strategy, SearchSpace(space, 90, {}, 50), lambda _: "predicted", lambda config: 1.0 + config.C)
        assert sum(map(len, asked)) == 50
        assert all((config.A + config.B) % 10 == 0 for batch in asked for config in batch)
    assert len(tested) < 40 * POOL


def test_bayesian_asks_for_no_proposal_when_all_configurations_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asked for twenty for each that the limit still allowed."""
    pytest.importorskip("optuna")
    monkeypatch.setattr("tilewright.strategies.bayesian._Sampler._suggested", lambda *_: pytest.fail("asked"))
    assert sum(map(len, searched(Bayesian(), made_space(3, 1000), lambda _: "raced"))) == 3


def test_without_optuna_bayesian_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MachineError, match=r"strategy 'bayesian' needs optuna; pip install 'tilewright\[search\]'"):
        searched(Bayesian(), made_space(3, 3), lambda _: "raced")


def test_an_unknown_name_is_answered_with_the_choices() -> None:
    with pytest.raises(UnknownChoice, match="unknown strategy 'genetic'; known: bayesian, exhaustive, halving, local"):
        strategy_of("genetic")


def test_one_from_outside_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Toy()
    monkeypatch.setattr("tilewright.plugins.plugins", lambda *where: iter((*plugins(*where), toy)))
    assert strategy_of("toy") is toy and isinstance(strategy_of("halving"), Halving)
