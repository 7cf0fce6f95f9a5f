"""`tilewright.inspect`, and how the functions of the package take their arguments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tilewright
from tilewright.errors import SpaceError, TaskError, UnknownChoice
from tilewright.hardware.gpu import detect
from tilewright.task.loading import load_task

RMS_NORM = str(Path(__file__).parents[2] / "examples" / "rms_norm.py")
WIDE = {"TILE_M": 1, "BLOCKS_PER_SM": 1}


def test_the_public_names_are_listed_without_helpers() -> None:
    assert {name for name in dir(tilewright) if not name.startswith("__")} == set(tilewright.__all__)
    assert "_HOMES" not in dir(tilewright) and tilewright.Task


def test_a_configuration_is_a_text_or_a_mapping_or_several() -> None:
    (row,) = tilewright.inspect(RMS_NORM, "sm_90", config=WIDE)
    (same,) = tilewright.inspect(RMS_NORM, ["sm_90"], config="TILE_M=1,BLOCKS_PER_SM=1")
    assert row.candidate.configuration == same.candidate.configuration and row.candidate.configuration.TILE_M == 1
    assert str(row).startswith(f"{row.candidate.configuration} on sm_90: predicted, ") and len(str(row)) < 200
    with pytest.raises(SpaceError, match="config: 'TILE' is no knob of this space"):
        tilewright.inspect(RMS_NORM, "sm_90", config={"TILE": 1})


@pytest.mark.skipif(detect() is not None, reason="a GPU decides the architecture")
def test_the_architecture_may_be_left_out() -> None:
    assert [row.arch for row in tilewright.inspect(RMS_NORM, config=[WIDE])] == ["sm_90"]


def test_flops_that_fail_are_said_before_anything_compiles() -> None:
    task, compiled = replace(load_task(RMS_NORM), flops=lambda M: 1 / 0), []
    with pytest.raises(TaskError, match="flops of task 'rms_norm' failed: .*ZeroDivisionError"):
        tilewright.inspect(task, "sm_90", config=WIDE, progress=lambda *words: compiled.append(words))
    assert compiled == []


def test_one_workload_may_be_a_text() -> None:
    (verdict,) = tilewright.check(RMS_NORM, engine="interpreter", workloads="odd", quick=True, configurations=WIDE)
    assert verdict.configurations[0].TILE_M == 1
    assert str(verdict) == f"rms_norm: correct on reduced shapes, {verdict.reason}"
    with pytest.raises(UnknownChoice, match="unknown workload 'od'; did you mean 'odd'. known: "):
        tilewright.tune(RMS_NORM, workloads="od", store=False)


def test_each_configuration_has_its_limit() -> None:
    (row,) = tilewright.inspect(RMS_NORM, "sm_90", config=WIDE)
    assert row.diagnosis is not None
    found = row.to_json()["diagnosis"]
    assert isinstance(found, dict) and found["limit"] == row.diagnosis.limit.resource
    assert found["rung"] == "machine code and predicted time" and found["limits"] and found["moves"] == []
