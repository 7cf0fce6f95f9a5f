"""bench/strategies.py: a replay of the recorded kernels; the default for large spaces is the best of them."""

from __future__ import annotations

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


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_all_compiled_is_nearly_no_regret(bench: ModuleType, workloads: list[Any], every: int) -> None:
    """What is left is the error of the prediction: ten are raced. Every eighth workload, or all."""
    assert len(workloads) == 65
    replays = bench.alone(workloads[::every], strategy_of("exhaustive"), 1.0, 0)
    regrets = [replay.regret for replay in replays]
    assert all(0 <= regret < 0.06 for regret in regrets) and sum(regret > 0.01 for regret in regrets) <= 1


@pytest.mark.long
def test_with_a_quarter_compiled_the_default_is_better_than_without_expected_times(
    bench: ModuleType, workloads: list[Any]
) -> None:
    """On every sixth workload; the whole replay is recorded in bench/recorded."""
    found = {}
    for strategy in (bench.Random(), bench.Unaided(), strategy_of(FOR_LARGE)):
        found[strategy.name] = bench.alone(workloads[::6], strategy, bench.QUARTER, 0)
    small = {name: bench.reached(each) for name, each in found.items()}
    assert small["halving"] >= max(small["unaided"], small["random"]) + 0.2
    assert bench.mean_regret(found["halving"]) < 0.5 * bench.mean_regret(found["unaided"])


def test_workloads_of_a_task_share_what_is_compiled(bench: ModuleType, workloads: list[Any]) -> None:
    """Products of which the code does not depend on the workload; never more than a quarter of all spaces."""
    some = [each for each in workloads if each.kernel in ("naive/matmul_fp32", "naive/dual_gemm")]
    alone, together = (mode(some, strategy_of(FOR_LARGE), bench.QUARTER, 0) for mode in bench.MODES.values())
    assert bench.reached(together) == 1 > bench.reached(alone)
    assert bench.compiled(alone)["of_spaces"] < bench.compiled(together)["of_spaces"] <= bench.QUARTER


def test_every_recorded_kernel_has_a_family(bench: ModuleType, workloads: list[Any]) -> None:
    aside = bench.lines_of(bench.SET_ASIDE)
    assert {bench.family(kernel) for kernel in aside} == {"products", "attention", "rows", "elementwise"}
    assert {bench.family(each.kernel) for each in workloads} == {*bench.FAMILIES}
