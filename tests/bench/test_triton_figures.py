"""The part of `bench/triton_figures.py` that needs no GPU: parts that go on, the best of a race, the tasks."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.bench.kit import bench_module

from tilewright.compile.compile import Unit, lower
from tilewright.hardware.architectures import default_board
from tilewright.task.loading import load_task

pytest.importorskip("triton")
BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    return bench_module("triton_figures")


def row(us: float, verdict: str = "correct", **config: Any) -> dict[str, Any]:
    return {"config": config, "checked": {"verdict": verdict}, "samples_us": [us, us + 2, us + 1]}


def test_the_best_is_right_and_of_its_group(figures: ModuleType) -> None:
    rows = [row(5, "incorrect", route="ptx"), row(9, route="ptx"), row(7, route="tileir"), row(8, route="ptx"),
            {"config": {"route": "ptx"}, "failed": {"stage": "verify", "reason": "lost"}}]  # fmt: skip
    assert figures.best_of({"rows": rows}, route="ptx") == {"us": 9, "config": {"route": "ptx"}, "of": 2}
    assert figures.best_of({"rows": rows}, route="other") is None
    found = figures.with_bests({"rows": rows, "trusted_us": [4.0]}, {"ptx": {"route": "ptx"}, "none": {"route": ""}})
    assert figures.us_of(found, "torch") == 4 and figures.us_of(found, "none") != figures.us_of(found, "none")


def test_a_part_that_is_done_is_kept_and_one_that_fails_is_named(figures: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "matmul.json").write_text(json.dumps({"figures": {"tileir/ptx": 0.9}}))
    assert figures.run_parts(["matmul"], tmp_path, 600) == {}
    assert figures.run_parts(["unknown"], tmp_path, 600) == {"unknown": "exit code 1"}
    assert figures.run_parts(["interpreter"], tmp_path, 0.01) == {"interpreter": "not done within 0.01 s"}
    assert not (tmp_path / "interpreter.json").exists()
    assert "matmul" in figures.table({"matmul": {"figures": {"tileir/ptx": 0.9}}})


@pytest.mark.parametrize("name", ["products", "softmax_rows", "rms_rows"])
def test_the_tasks_lower_by_both_routes(name: str) -> None:
    task = load_task(f"{BENCH / 'triton_figures_tasks.py'}:{name}")
    workload = next(iter(task.selected(None)))
    for form in ("pointers", "descriptors", "host") if "FORM" in task.space.shipped else (None,):
        for route in ("ptx", "tileir"):
            config = task.space.shipped.replace(route=route, **({"FORM": form} if form else {}))
            made = lower(task, Unit(workload, config, default_board("sm_90")))
            assert isinstance(made, tuple), made


def test_the_tuned_space_has_24_configurations() -> None:
    task = load_task(str(BENCH / "triton_plain_matmul.py"))
    assert len(task.space.configurations(90, task.workload("4096").dims)) == 24
