"""The hardware table is what compiles (C-21, with what our languages can build in place of what their makers state)."""

from __future__ import annotations

import pytest
from tests.bench.kit import bench_module

from tilewright.specialists import specialists
from tilewright.specialists.compiled_for import COMPILED_FOR, compiles

SURVEY = bench_module("compiled_for")


@pytest.mark.long
@pytest.mark.parametrize("specialist", sorted(SURVEY.KERNELS))
def test_the_table_is_what_compiles_here(specialist: str) -> None:
    if specialist == "cute-dsl":
        pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed: pip install 'tilewright[cutedsl]'")
    elif specialist != "cutile":
        pytest.importorskip("triton")
    assert SURVEY.compiled_for(specialist) == COMPILED_FOR[specialist]


def test_each_language_that_is_built_has_a_row() -> None:
    assert set(COMPILED_FOR) == set(SURVEY.KERNELS)
    assert {each.name for each in specialists() if each.writes_kernels} == set(COMPILED_FOR)
    assert compiles("tileir", "sm_80") is True
    assert compiles("triton", "sm_88") is False
    assert compiles("cute-dsl", "sm_90") is True
    assert compiles("cute-dsl", "sm_110") is False, "the cubin is for sm_101, its older name"
    assert compiles("profiling", "sm_90") is None
