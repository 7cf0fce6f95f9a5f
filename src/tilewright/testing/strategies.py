"""Defines the contract of search strategies. Inherit `StrategyContract` in a test file of your strategy.

    class TestHalving(StrategyContract):
        strategy = Halving()

No test needs a GPU or a compiler: outcomes are made up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.records import Candidate, Checked, Configuration, MeasuredTime, PredictedTime, Status
from tilewright.strategies.base import Batch, Outcomes, SearchSpace, Strategy, batches


def made_space(size: int, *, top: int = 4, measured: bool = True) -> SearchSpace:
    ranked = tuple(Configuration.of({"TILE": 1 << place}) for place in range(size))
    predicted = {config: PredictedTime(10.0 + place, "made up") for place, config in enumerate(ranked)}
    return SearchSpace(ranked, predicted, ranked[-1] if ranked else None, top, measured)


def outcome(configuration: Configuration, status: Status) -> Candidate:
    """Makes an outcome with this ``status``. The time of a raced configuration is 100 µs / tile size."""
    checked = Checked("incorrect" if status == "wrong" else "correct", "made up")
    if status != "raced":
        return Candidate(configuration, status, "made up", checked=checked)
    us = 100.0 / configuration.TILE
    return Candidate(configuration, status, "made up", measured=MeasuredTime(us, (us, us), (us,)), checked=checked)


def searched(strategy: Strategy, space: SearchSpace, status: Callable[[Configuration], Status]) -> list[Batch]:
    """Runs a strategy and returns its batches. ``status``: returns the status of a configuration's outcome."""

    def outcomes(batch: Sequence[Configuration]) -> Outcomes:
        return tuple(outcome(config, status(config)) for config in batch)

    return list(batches(strategy.search(space), outcomes))


class StrategyContract:
    """Tests one strategy on spaces of up to 40 configurations."""

    strategy: Strategy

    def runs(self) -> list[tuple[SearchSpace, list[Batch]]]:
        runs = []
        for size in (0, 1, 3, 40):
            for measured in (True, False):
                space = made_space(size, measured=measured)
                for status in ("raced" if measured else "predicted", "wrong", "failed"):
                    runs.append((space, searched(self.strategy, space, lambda _, status=status: status)))  # type: ignore[misc]
        return runs

    def test_it_has_a_name(self) -> None:
        assert self.strategy.name == self.strategy.name.strip().lower() != ""

    def test_only_what_the_screen_left_is_asked_for(self) -> None:
        for space, asked in self.runs():
            assert {config for batch in asked for config in batch} <= set(space.ranked)

    def test_nothing_is_asked_for_twice(self) -> None:
        for _, asked in self.runs():
            flat = [config for batch in asked for config in batch]
            assert len(flat) == len(set(flat))

    def test_something_is_asked_for_where_there_is_something(self) -> None:
        for space, asked in self.runs():
            assert bool(asked) == bool(space.ranked)

    def test_equal_outcomes_lead_to_equal_batches(self) -> None:
        assert self.runs() == self.runs()
