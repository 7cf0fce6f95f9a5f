"""Defines the contract of search strategies. Inherit `StrategyContract` in a test file of your strategy.

    class TestHalving(StrategyContract):
        strategy = Halving()

No test needs a GPU or a compiler: outcomes are made up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice

from tilewright.records import Candidate, Checked, Configuration, MeasuredTime, PredictedTime, Status
from tilewright.space.space import Space
from tilewright.strategies.base import Batch, Outcomes, SearchSpace, Strategy, batches

TILES = (8, 16, 32, 64, 128, 256)
SMOOTH = 0.05
"""The regret that is allowed on `smooth_us`: the best found may be this much slower than the best of all."""


def made_space(size: int, most: int, *, seed: int = 0) -> SearchSpace:
    """Makes a space of ``size`` tiles. The shipped one is the largest."""
    tiles = [1 << place for place in range(size)]
    return SearchSpace(Space(constants={"TILE": tiles}, shipped={"TILE": tiles[-1]}), 90, {}, most, seed=seed)


def smooth_space(most: int, *, copies: int = 1, seed: int = 0) -> SearchSpace:
    """Makes a space of 144 × ``copies`` points, of which a constraint refuses 4 × ``copies``."""
    constants = {"TILE_M": TILES, "TILE_N": TILES, "STAGES": (1, 2, 3, 4), "COPY": range(copies)}
    shipped = {"TILE_M": 256, "TILE_N": 8, "STAGES": 1, "COPY": 0}
    space = Space(constants=constants, shipped=shipped, where=[lambda TILE_M, TILE_N: TILE_M * TILE_N > 64])
    return SearchSpace(space, 90, {}, most, seed=seed)


def smooth_us(config: Configuration) -> float:
    """Returns a time without noise. The best is an inner point."""
    m, n = math.log2(config.TILE_M / 64), math.log2(config.TILE_N / 128)
    stages = int(config.STAGES) - 3
    return 10 * math.exp(0.1 * m * m + 0.05 * n * n + 0.03 * m * n + 0.04 * stages * stages)


def tile_us(config: Configuration) -> float:
    return 100.0 / int(config.TILE)


def outcome(configuration: Configuration, status: Status, us: float) -> Candidate:
    """Makes an outcome with this ``status``, which has a time unless it failed or is wrong."""
    checked = Checked("incorrect" if status == "wrong" else "correct", "made up")
    predicted = None if status == "failed" else PredictedTime(us, "made up")
    measured = MeasuredTime(us, (us, us), (us,)) if status == "raced" else None
    return Candidate(configuration, status, "made up", predicted=predicted, measured=measured, checked=checked)


def searched(
    strategy: Strategy, space: SearchSpace, status: Callable[[Configuration], Status],
    us: Callable[[Configuration], float] = tile_us,
) -> list[Batch]:  # fmt: skip
    """Runs a strategy and returns its batches, until ``space.most`` configurations are compiled, as `tune` does."""
    found: list[Batch] = []

    def outcomes(batch: Sequence[Configuration]) -> Outcomes:
        return tuple(outcome(config, status(config), us(config)) for config in batch)

    for batch in islice(batches(strategy.search(space), outcomes), space.most + 1):
        left = space.most - sum(map(len, found))
        if not left:
            break
        found.append(batch[:left])
    return found


class StrategyContract:
    """Tests one strategy on spaces of up to 28,800 points."""

    strategy: Strategy

    def runs(self, seed: int = 0) -> list[tuple[SearchSpace, list[Batch]]]:
        runs = []
        for size, most in ((1, 1), (3, 3), (40, 10), (40, 40)):
            space = made_space(size, most, seed=seed)
            for status in ("raced", "predicted", "wrong", "failed"):
                runs.append((space, searched(self.strategy, space, lambda _, status=status: status)))  # type: ignore[misc]
        large = smooth_space(60, copies=200, seed=seed)
        runs.append((large, searched(self.strategy, large, lambda _: "predicted", smooth_us)))
        return runs

    @classmethod
    @cache
    def known_runs(cls) -> list[tuple[SearchSpace, list[Batch]]]:
        """Returns `runs`, which the tests share."""
        return cls().runs()

    def test_it_has_a_name(self) -> None:
        assert self.strategy.name == self.strategy.name.strip().lower() != ""

    def test_only_allowed_configurations_are_asked_for(self) -> None:
        for space, asked in self.known_runs():
            assert all(space.allows(config) for batch in asked for config in batch)

    def test_nothing_is_asked_for_twice(self) -> None:
        for _, asked in self.known_runs():
            flat = [config for batch in asked for config in batch]
            assert len(flat) == len(set(flat))

    def test_the_shipped_configuration_is_in_the_first_batch(self) -> None:
        for space, asked in self.known_runs():
            assert asked and space.shipped in asked[0]

    def test_it_ends(self) -> None:
        """With any outcomes, and although a space of 40 allows more than it has."""
        for status in ("raced", "wrong", "failed"):
            space = made_space(40, 1000)
            asked = searched(self.strategy, space, lambda _, status=status: status)  # type: ignore[misc]
            assert sum(map(len, asked)) <= 40

    def test_it_finds_the_best_of_a_smooth_space(self) -> None:
        """With the share of the space that `tune` gives it."""
        every = list(smooth_space(0).each())
        space = smooth_space(math.ceil(self.strategy.share * len(every)))
        asked = searched(self.strategy, space, lambda _: "raced", smooth_us)
        found = min(smooth_us(config) for batch in asked for config in batch)
        assert found <= (1 + SMOOTH) * min(map(smooth_us, every))

    def test_the_same_seed_leads_to_the_same_search(self) -> None:
        assert [asked for _, asked in self.runs()] == [asked for _, asked in self.known_runs()]
