"""Expected times choose what is compiled: the best of a space is found with fewer compilations."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import pytest

from tilewright.records import Candidate, Configuration, MachineCode
from tilewright.strategies import informed
from tilewright.strategies.base import SearchSpace, batches
from tilewright.strategies.halving import Halving
from tilewright.testing.strategies import StrategyContract, made_space, outcome, searched, smooth_space, smooth_us

CODE = MachineCode("k", 90, 40, 0, 1024, 128, 1, 0, 0, "none", 0, {}, 200, "ab" * 32)


class Made:
    """Expected times that are true times, wrong by up to ``error`` in both directions and by one factor for all."""

    def __init__(self, us: Callable[[Configuration], float | None], error: float = 1.0) -> None:
        self.of, self.error = us, error
        self.asked: list[Configuration] = []
        self.likes: list[Candidate | None] = []

    def us(self, configurations: Sequence[Configuration], like: Candidate | None = None) -> tuple[float | None, ...]:
        self.asked += configurations
        self.likes.append(like)
        return tuple(map(self._one, configurations))

    def _one(self, configuration: Configuration) -> float | None:
        us, wrong = self.of(configuration), random.Random(str(configuration)).uniform(-1, 1)
        return None if us is None else 3 * us * self.error**wrong

    def identity(self, configuration: Configuration, like: Candidate | None = None) -> Hashable:
        return configuration

    def code(self, configuration: Configuration) -> Hashable:
        return configuration


class Copies(Made):
    """The knob ``COPY`` changes nothing."""

    def identity(self, configuration: Configuration, like: Candidate | None = None) -> Hashable:
        return configuration.TILE_M, configuration.TILE_N, configuration.STAGES


class TestInformed(StrategyContract):
    """Halving keeps the contract with expected times, too."""

    strategy = Halving()

    def runs(self, seed: int = 0) -> list[tuple[SearchSpace, list[tuple[Configuration, ...]]]]:
        runs = []
        for size, most in ((1, 1), (3, 3), (40, 10), (40, 40)):
            space = replace(made_space(size, most, seed=seed), expected=Made(lambda config: 1000.0 / int(config.TILE)))
            for status in ("raced", "predicted", "wrong", "failed"):
                runs.append((space, searched(self.strategy, space, lambda _, status=status: status)))  # type: ignore[misc]
        large = replace(smooth_space(60, copies=200, seed=seed), expected=Made(smooth_us))
        runs.append((large, searched(self.strategy, large, lambda _: "predicted", smooth_us)))
        return runs


def rugged_us(config: Configuration) -> float:
    """Neighbours differ by a random factor of up to 2, so they say little about each other."""
    return smooth_us(config) * random.Random(f"rugged {config}").uniform(1, 2)


@pytest.mark.parametrize("error", [1.0, 1.1])
def test_few_compilations_are_enough(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 of 140. Without expected times, so few do not find the best."""
    monkeypatch.setattr(informed, "READ", 200)
    space = smooth_space(12)
    best = min(map(rugged_us, space.each()))

    def found(space: SearchSpace) -> float:
        asked = searched(Halving(), space, lambda _: "raced", rugged_us)
        return min(rugged_us(config) for batch in asked for config in batch) / best

    assert found(replace(space, expected=Made(rugged_us, error))) <= 1.02
    assert found(space) > 1.1


def test_the_first_batch_is_the_shipped_configuration_and_those_expected_to_be_fastest() -> None:
    space = replace(smooth_space(12), expected=Made(smooth_us))
    first = next(Halving().search(space))
    fastest = sorted(space.each(), key=smooth_us)[:12]
    assert first[0] == space.shipped and len(first) == 4 and set(first[1:]) <= set(fastest)


@pytest.mark.parametrize("expected", [Made(smooth_us), None])
def test_the_configurations_of_other_workloads_are_asked_for_once_a_batch(expected: Made | None) -> None:
    """To compare the code of two workloads reads the kernel of each."""
    asked: list[None] = []

    def shared() -> dict[Configuration, Candidate | None]:
        asked.append(None)
        return {}

    space = replace(smooth_space(40), expected=expected, shared=shared)
    batches = searched(Halving(), space, lambda _: "raced", smooth_us)
    assert len(batches) > 2 and len(asked) == len(batches)


def test_measured_times_correct_what_was_expected() -> None:
    """Tiles of N above 32 are expected to be fast, and are slow."""
    space = smooth_space(24)
    expected = Made(lambda config: smooth_us(config) / (4 if config.TILE_N > 32 else 1))
    first, *later = searched(Halving(), replace(space, expected=expected), lambda _: "raced", smooth_us_of_small)
    assert sum(config.TILE_N > 32 for config in first) > len(first) / 2
    last = [config for batch in later[1:] for config in batch]
    assert sum(config.TILE_N > 32 for config in last) < len(last) / 2


def smooth_us_of_small(config: Configuration) -> float:
    return smooth_us(config) * (4 if config.TILE_N > 32 else 1)


def test_equal_machine_code_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informed, "READ", 300)
    space = replace(smooth_space(40, copies=2), expected=Copies(smooth_us))
    asked = searched(Halving(), space, lambda _: "raced", smooth_us)
    every = [config for batch in asked for config in batch]
    assert len(every) == len({space.expected.identity(config) for config in every if space.expected})


def test_what_is_expected_to_have_the_code_of_another_one_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 280, half are copies. They are not lost, because the expectation may be wrong."""
    monkeypatch.setattr(informed, "READ", 300)
    space = replace(smooth_space(150, copies=2), expected=(copies := Copies(smooth_us)))
    every = [config for batch in searched(Halving(), space, lambda _: "raced", smooth_us) for config in batch]
    assert len(every) == 150
    assert len({copies.identity(config) for config in every[:140]}) == 140


def test_the_first_compiled_candidate_shows_which_code_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is known that the stages change nothing, one of them is compiled for each tile."""
    monkeypatch.setattr(informed, "READ", 200)

    class Stages(Made):
        def identity(self, configuration: Configuration, like: Candidate | None = None) -> Hashable:
            return (configuration.TILE_M, configuration.TILE_N) if like else configuration

    space = replace(smooth_space(24), expected=Stages(smooth_us))
    search = Halving().search(space)
    first = next(search)
    batch = search.send(tuple(replace(outcome(config, "raced", smooth_us(config)), code=CODE) for config in first))
    tiles = {(config.TILE_M, config.TILE_N) for config in first}
    assert len({(config.TILE_M, config.TILE_N) for config in batch} - tiles) == len(batch)


def test_what_another_workload_asked_for_does_not_count() -> None:
    space = replace(smooth_space(12), expected=Made(smooth_us), counts=lambda config: config.STAGES != 3)
    outcomes = lambda batch: tuple(outcome(config, "raced", smooth_us(config)) for config in batch)  # noqa: E731
    asked = [config for batch in batches(Halving().search(space), outcomes) for config in batch]
    counted = [config for config in asked if space.counts(config)]
    assert len(counted) == 12 < len(asked)


def test_a_compiled_candidate_shows_how_the_kernel_is_compiled() -> None:
    expected = Made(smooth_us)
    search = Halving().search(replace(smooth_space(12), expected=expected))
    batch = next(search)
    assert expected.likes == [None, None]  # whether any is known, and the first batch
    search.send(tuple(replace(outcome(config, "raced", smooth_us(config)), code=CODE) for config in batch))
    assert expected.likes[-1] is not None and expected.likes[-1].configuration == batch[0]


def test_few_configurations_of_a_large_space_are_read() -> None:
    expected = Made(smooth_us)
    space = replace(smooth_space(60, copies=100), expected=expected)
    asked = searched(Halving(), space, lambda _: "raced", smooth_us)
    every = [config for batch in asked for config in batch]
    assert len(every) == 60
    assert len(set(expected.asked)) <= informed.READ + informed.NEAR * len(asked) + len(every)
    assert min(map(smooth_us, every)) <= 1.05 * min(map(smooth_us, smooth_space(0).each()))


def test_without_any_expected_time_the_first_batch_is_spread() -> None:
    space = smooth_space(32)
    unknown = replace(space, expected=Made(lambda _: None))
    assert searched(Halving(), unknown, lambda _: "raced", smooth_us) == searched(
        Halving(), space, lambda _: "raced", smooth_us
    )


def test_a_configuration_without_an_expected_time_is_possible() -> None:
    space = smooth_space(36)
    expected = Made(lambda config: None if config.STAGES == 4 else smooth_us(config))
    asked = searched(Halving(), replace(space, expected=expected), lambda _: "raced", smooth_us)
    assert any(config.STAGES == 4 for batch in asked for config in batch)
    assert all(math.isfinite(smooth_us(config)) for batch in asked for config in batch)


def test_what_is_compiled_for_others_is_not_asked_for_and_its_outcomes_count() -> None:
    """The fastest are shared. Those without an outcome are not asked for, and do not count."""
    space = smooth_space(12)
    fastest = sorted(space.each(), key=smooth_us)[:6]
    judged: dict[Configuration, Candidate | None] = dict.fromkeys((space.shipped, *fastest))
    told = replace(space, expected=Made(smooth_us), shared=lambda: judged)
    search = Halving().search(told)
    first = next(search)
    assert first[0] == space.shipped and len(first) == 5 and not set(first) & set(fastest)
    judged |= {config: outcome(config, "raced", 4 * smooth_us(config)) for config in fastest}
    second = search.send(tuple(outcome(config, "raced", smooth_us(config)) for config in first))
    alone = Halving().search(replace(told, shared=lambda: dict.fromkeys(judged)))
    next(alone)
    assert second != alone.send(tuple(outcome(config, "raced", smooth_us(config)) for config in first))
    assert not set(second) & set(judged)
