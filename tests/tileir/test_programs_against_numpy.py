"""Whole cuTile programs on the interpreter against NumPy: the cases of `bench/differential.py`, without a GPU.

Where NumPy has no answer in few lines (directed rounding, flush-to-zero, fp8), the case must run without a
finding; single operations have their own oracles elsewhere.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "bench"))

import differential
from differential_cases import CASES, Case
from differential_classes import EXACT, difference, order, ulps


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_program_computes_what_numpy_computes(case: Case) -> None:
    row = differential.against_numpy(case)
    assert row.inside, (row.reason, row.findings, row.difference)


def test_there_are_enough_cases_and_each_has_a_name() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    with_oracle = sum(case.oracle is not None for case in CASES)
    assert with_oracle >= 0.7 * len(CASES)
    assert set(Counter(case.within.kind for case in CASES)) == {"exact", "rounding", "ulps", "order"}


def test_a_wrong_result_is_outside_every_class() -> None:
    expected = np.linspace(1, 2, 64, dtype=np.float32).reshape(2, 32)
    off = expected.copy()
    off[1, 3] *= np.float32(1 + 2.0**-18)
    classes = (EXACT, ulps(2), ulps(1, 2), order(lambda given: {"out": np.float64(2.0**-20)}))
    for within in classes:
        assert difference(within, "out", expected, expected, {}).inside
        found = difference(within, "out", off, expected, {})
        assert not found.inside and "[1, 3]" in found.worst
    assert difference(ulps(2), "out", np.nextafter(expected, np.float32(9)), expected, {}).inside


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_outside(bad: float) -> None:
    expected = np.ones(4, np.float32)
    off = np.array([1, bad, 1, 1], np.float32)
    for within in (EXACT, ulps(4), order(lambda given: {"out": np.float64(1.0)})):
        assert not difference(within, "out", off, expected, {}).inside
        assert not difference(within, "out", expected, off, {}).inside
    assert difference(EXACT, "out", off, off, {}).inside
