"""Distributions from which nothing can be drawn are refused where they are declared."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.errors import TaskError


@pytest.mark.parametrize(("low", "high"), [(1.5, 0.5), (float("nan"), 1.0), (0.0, float("inf"))])
def test_no_numbers_between(low: float, high: float) -> None:
    with pytest.raises(TaskError, match="the smaller one first"):
        tw.uniform(low, high)


@pytest.mark.parametrize(("low", "high"), [(0, 0), (3, 1)])
def test_no_integers_between(low: int, high: int) -> None:
    with pytest.raises(TaskError, match="there is none"):
        tw.integers(low, high)


def test_one_number_and_an_expression_are_accepted() -> None:
    assert tw.uniform(2.0, 2.0).kind == "uniform" and tw.integers(0, "S").kind == "integers"
