"""bench/planted_limits.py: kernels with a planted limit that were in view when the diagnosis was made."""

from __future__ import annotations

import pytest
from tests.bench.kit import bench_module


@pytest.mark.parametrize("name", ["bytes_in_flight", "conversions", "too_few_blocks"])
def test_the_planted_limit_is_named(name: str) -> None:
    row = bench_module("planted_limits").row_of(name)
    assert row["named"] == row["planted"], row["limits"]


def test_the_kernels_set_aside_exist_and_are_left_out() -> None:
    bench = bench_module("planted_limits")
    files = {path.stem for path in bench.FOLDER.glob("*.py")}
    assert len(files) == 10 and len(bench.set_aside()) == 4 and set(bench.set_aside()) < files
