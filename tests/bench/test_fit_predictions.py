"""bench/fit_predictions.py: what it never fits on, its margins; and the errors of the predictor as it stands."""

from __future__ import annotations

import math
import statistics
from types import ModuleType
from typing import Any

import pytest
from tests.bench.kit import bench_module

from tilewright.hardware import prediction_error


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    return bench_module("fit_predictions")


@pytest.fixture(scope="module")
def kernels(fit: ModuleType) -> dict[str, Any]:
    """All recorded kernels, those set aside too."""
    found = fit.per_kernel([case for path in (fit.RECORDED, fit.NAIVE) for case in fit.cases_of(path)])
    assert isinstance(found, dict)
    return found


def test_the_errors_that_are_printed_are_those_of_recorded_kernels(fit: ModuleType, kernels: dict[str, Any]) -> None:
    """Per kernel first, then the geometric mean. The kernels set aside are predicted no worse than the others."""
    errors = {name: statistics.fmean(case.score()[0] for case in cases) for name, cases in kernels.items()}
    aside = fit.set_aside() & errors.keys()
    assert len(errors) == 13 and len(aside) == 4
    assert math.exp(statistics.fmean(errors[name] for name in aside)) < prediction_error.TIME_FACTOR
    assert math.exp(statistics.fmean(errors.values())) < prediction_error.TIME_FACTOR
    assert all(math.exp(errors[name]) < 1.5 for name in aside)


def test_products_on_the_cuda_cores_are_within_three_times(kernels: dict[str, Any]) -> None:
    """Predicted at 0.10 of the measured time, when they were rated as if every instruction ran once."""
    for case in kernels["naive/matmul_fp32"]:
        assert all(1 / 3 < ratio < 3 for ratio in case.predicted() / case.measured)


def test_a_margin_is_the_difference_beyond_which_nine_of_ten_are_right(fit: ModuleType) -> None:
    right = [fit.Pair("tiles", 1.2 + n / 100, 1.5, 1.0) for n in range(90)]
    coins = [fit.Pair("tiles", 1 + n / 1000, 1.5 if n % 2 else 0.7, 1.0) for n in range(100)]
    assert 0.05 < fit.margin([*right, *coins]) < 0.2
    assert fit.margin(right) == pytest.approx(0.2)


def test_a_fit_leaves_the_predictor_as_it_was(fit: ModuleType, kernels: dict[str, Any]) -> None:
    before = fit.coefficients()
    found = fit.fitted(kernels["naive/rms_norm"], 8)
    assert fit.coefficients() == before and found.keys() == before.keys() and found != before
