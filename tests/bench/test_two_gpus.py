"""bench/two_gpus.py: its task, and how runs are compared. The times themselves need two GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.bench.kit import bench_module

from tilewright.task.loading import load_task


def run(seconds: float, best: int, *tied: int) -> dict[str, Any]:
    return {"command": 10 + seconds, "compile": 5.0, "verify": seconds / 4, "race": seconds * 3 / 4,
            "winners": {"a": [best, best, *tied]}}  # fmt: skip


def test_its_task_has_eight_workloads(tmp_path: Path) -> None:
    bench = bench_module("two_gpus")
    (tmp_path / "eight.py").write_text(bench.TASK.format(examples=str(bench.EXAMPLES)))
    assert len(load_task(str(tmp_path / "eight.py")).workloads) == 8


def test_ratios_and_winners_are_compared() -> None:
    compared = bench_module("two_gpus").compared
    found = compared([run(20, 1), run(22, 1), run(30, 1)], [run(11, 1), run(10, 2, 1), run(12, 1)])
    assert found["verify_and_race"] == pytest.approx(11 / 22) and found["whole_command"] == pytest.approx(21 / 32)
    assert found["compiling_share_of_one"] == pytest.approx(5 / 32) and found["other_winners"] == []
    assert compared([run(20, 1)], [run(10, 2)])["other_winners"] == ["a"]
