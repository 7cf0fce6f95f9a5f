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
    return [each for path in bench.RECORDED for each in bench.recorded(path)]


def test_all_compiled_is_nearly_no_regret(bench: ModuleType, workloads: list[Any]) -> None:
    """What is left is the error of the prediction: ten are raced."""
    assert len(workloads) == 65
    regrets = [each.regret(strategy_of("exhaustive"), len(each.rows), 0) for each in workloads]
    assert all(0 <= regret < 0.06 for regret in regrets) and sum(regret <= 0.01 for regret in regrets) >= 64


def test_with_a_quarter_compiled_the_default_is_better_than_without_expected_times(
    bench: ModuleType, workloads: list[Any]
) -> None:
    """On every fourth workload; the whole replay is recorded in bench/recorded."""
    found = {}
    for strategy in (bench.Random(), bench.Unaided(), strategy_of(FOR_LARGE)):
        found[strategy.name] = bench.regrets(workloads[::4], strategy, bench.QUARTER, 1)
    small = {name: bench.reached(each) for name, each in found.items()}
    assert small["halving"] >= max(small["unaided"], small["random"]) + 0.2
    assert statistics.fmean(found["halving"]) < 0.5 * statistics.fmean(found["unaided"])


def test_every_recorded_kernel_has_a_family(bench: ModuleType, workloads: list[Any]) -> None:
    aside = bench.lines_of(bench.SET_ASIDE)
    assert {bench.family(kernel) for kernel in aside} == {"products", "attention", "rows", "elementwise"}
    assert {bench.family(each.kernel) for each in workloads} == {*bench.FAMILIES}
