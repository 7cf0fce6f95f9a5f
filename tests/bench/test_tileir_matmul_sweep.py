"""The part of `bench/tileir_matmul_sweep.py` that needs no GPU: its forms, and the order of a race."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
from tests.bench.kit import bench_module

from tilewright.compile.compile import Unit, lower
from tilewright.hardware.architectures import default_board
from tilewright.task.loading import load_task
from tilewright.verify.check import InterpreterChecker

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def sweep() -> ModuleType:
    return bench_module("tileir_matmul_sweep")


def row(us: float, verdict: str = "correct", **config: Any) -> dict[str, Any]:
    return {"config": config, "checked": {"verdict": verdict}, "samples_us": [us, us + 2, us + 1]}


def test_every_form_is_allowed_by_the_space_and_lowers(sweep: ModuleType) -> None:
    task, board = load_task(str(sweep.TASK)), default_board("sm_90")
    field = sweep.field(task)
    assert all(config["route"] == "tileir" for config in field) and len(set(field)) == len(field)
    sources = {tuple(config[name] for name in task.space.constants): config for config in (*field, *sweep.by_ptx(task))}
    assert {config["BLOCKS_PER_SM"] for config in sources.values()} == {None, 1}
    for config in sources.values():
        assert task.space.allows(config, board.sm, task.workload("4096").dims) is None
        made = lower(task, Unit(task.workload("4096"), config, board))
        assert isinstance(made, tuple), made


@pytest.mark.parametrize("form", ["host", "descriptors"])
@pytest.mark.parametrize("blocks", [None, 2])
def test_both_loops_are_right(sweep: ModuleType, form: str, blocks: int | None) -> None:
    task = load_task(str(sweep.TASK))
    config = task.space.shipped.replace(FORM=form, BLOCKS_PER_SM=blocks, BLOCK_M=64, BLOCK_N=64, GROUP=4)
    found = InterpreterChecker(task, default_board("sm_90"), 0).of(task.workload("512"), config)
    assert found.verdict == "correct on reduced shapes", found.reason


def test_a_neighbour_differs_in_at_most_two_values(sweep: ModuleType) -> None:
    task = load_task(str(sweep.TASK))
    near = sweep.neighbours(task, [task.space.shipped])
    assert {config["num_stages"] for config in near} == {6, 7, 8, 9, 10}
    for config in near:
        assert sum(config[name] != task.space.shipped[name] for name in config) <= 2


def test_the_fastest_are_right_and_of_their_route(sweep: ModuleType) -> None:
    rows = [row(5, "incorrect", route="ptx"), row(9, route="ptx"), row(7, route="tileir"), row(8, route="ptx")]
    assert [sweep.median_us(each) for each in sweep.fastest(rows, "ptx", 5)] == [9, 10]
    found = sweep.figures({"rows": rows, "trusted_us": [4.0]})
    assert found["tileir/ptx"] == 8 / 9 and found["torch"] == 4
    assert [each.get("us") for each in sweep.shortened(rows)] == [8, 9, 10, None]
    assert math.isnan(sweep.figures({"rows": []})["tileir/ptx"])
