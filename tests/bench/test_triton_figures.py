"""The part of `bench/triton_figures.py` that needs no GPU: parts that go on, the best of a race, the tasks."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.bench.kit import bench_module

from tilewright.compile.compile import Unit, compile_all, lower
from tilewright.hardware.architectures import default_board
from tilewright.task.loading import load_task
from tilewright.worker.programs import program_of

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


def test_cubins_of_another_triton_are_raced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubins, board = bench_module("triton_cubins"), default_board("sm_90")
    task = load_task(f"{BENCH / 'triton_figures_tasks.py'}:softmax_rows")
    workload, config = next(iter(task.selected(None))), task.space.shipped
    with pytest.raises(SystemExit, match="is missing; fix: python bench/triton_cubins.py"):
        cubins.kept_programs(tmp_path, task, workload.name, board)
    assert cubins.keep_programs(tmp_path, task, [config], board).startswith("softmax_rows: 1 of 1 compiled")
    assert cubins.kept_programs(tmp_path, task, workload.name, board) == [], "made by the Triton that is here"
    monkeypatch.setattr(cubins.metadata, "version", lambda package: "3.6.0")
    (compiled,) = compile_all(task, [Unit(workload, config, board)])
    expected = {"config": dict(config), "triton": version("triton")}
    assert cubins.kept_programs(tmp_path, task, workload.name, board) == [(expected, program_of(task, compiled))]
    with pytest.raises(SystemExit, match="is for workload"):
        cubins.kept_programs(tmp_path, task, "another", board)
    with pytest.raises(SystemExit, match="is for H200, and the GPU here is B200"):
        cubins.kept_programs(tmp_path, task, workload.name, default_board("sm_100"))


def test_a_best_row_says_whose_cubin_it_is(figures: ModuleType) -> None:
    rows = [row(9, route="ptx"), {**row(8, route="ptx"), "triton": "3.9.0"}]
    assert figures.best_of({"rows": rows}, route="ptx")["triton"] == "3.9.0"
