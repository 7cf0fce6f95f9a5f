"""bench/strategies.py: a replay of the recorded kernels; the default for large spaces is the best of them."""

from __future__ import annotations

import statistics
from types import ModuleType
from typing import Any

import pytest
from tests.bench.kit import bench_module

from tilewright.strategies import FOR_LARGE, strategy_of


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return bench_module("strategies")


@pytest.fixture(scope="module")
def workloads(bench: ModuleType) -> list[Any]:
    aside = bench.set_aside()
    return [each for each in bench.recorded(bench.RECORDED) if each.kernel not in aside]


def test_all_compiled_is_nearly_no_regret(bench: ModuleType, workloads: list[Any]) -> None:
    """What is left is the error of the prediction: ten are raced."""
    assert len(workloads) == 37
    regrets = [each.regret(strategy_of("exhaustive"), len(each.rows), 0) for each in workloads]
    assert all(0 <= regret < 0.06 for regret in regrets) and sum(regret <= 0.01 for regret in regrets) >= 36


def test_with_half_compiled_the_default_is_better_than_chance(bench: ModuleType, workloads: list[Any]) -> None:
    regrets = {}
    for strategy in (bench.Random(), strategy_of(FOR_LARGE)):
        regrets[strategy.name] = [each.regret(strategy, -(-len(each.rows) // 2), each.seed(0)) for each in workloads]
    small = {name: sum(regret <= 0.01 for regret in found) for name, found in regrets.items()}
    assert small[FOR_LARGE] > small["random"] and small[FOR_LARGE] >= 0.8 * len(workloads)
    assert statistics.fmean(regrets[FOR_LARGE]) < 0.5 * statistics.fmean(regrets["random"])
