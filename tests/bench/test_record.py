"""What bench/record.py records: its kernels and workloads, and its file. The timing itself needs a GPU."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import ModuleType

import pytest
from tests.bench.kit import BENCH, bench_module


@pytest.fixture(scope="module")
def record() -> ModuleType:
    return bench_module("record")


def test_more_than_ten_kernels_and_forty_workloads_are_recorded(record: ModuleType) -> None:
    lines = record.listed().splitlines()
    workloads = [part for line in lines for part in line.split(None, 1)[1].split(", ")]
    assert len(lines) >= 10 and len(workloads) >= 40
    assert all(int(part.split()[1]) > 1 for part in workloads), "configurations to compare"


@pytest.mark.parametrize(
    ("listed", "count"), [("fit_set_aside.txt", 4), ("fit_set_aside_2.txt", 8), ("fit_set_aside_3.txt", 4)]
)
def test_the_kernels_set_aside_are_among_them(record: ModuleType, listed: str, count: int) -> None:
    lines = (BENCH / listed).read_text().splitlines()
    aside = [line for line in lines if line and not line.startswith("#")]
    assert len(aside) == count and set(aside) <= record.EXTRA.keys()


@pytest.mark.parametrize("kernel", ["matmul", "naive/softmax", "naive/dual_gemm", "aside/linear_gelu"])
def test_a_widened_task_keeps_its_own_workloads_and_shipped_configuration(
    record: ModuleType, kernel: str, tmp_path: Path
) -> None:
    from tilewright.task.loading import load_task

    before, after = load_task(str(record.file_of(kernel))), record.widened(kernel, tmp_path)
    assert {**before.workloads, **record.EXTRA[kernel]} == dict(after.workloads)
    for workload in after.selected(None):
        chosen = record.configurations(kernel, after, 90, workload.dims)
        assert after.space.shipped in chosen and len(set(chosen)) == len(chosen)
        assert all(after.space.shipped[knob] == value for knob, value in before.space.shipped.items())


def test_the_parts_that_are_there_are_merged(record: ModuleType, tmp_path: Path) -> None:
    record.part_of(tmp_path, "naive/rope").write_text(json.dumps({"kernel": "naive/rope", "workloads": [1, 2]}))
    assert record.merge(["matmul", "naive/rope"], tmp_path, tmp_path / "out.json.gz") == 2
    with gzip.open(tmp_path / "out.json.gz", "rt") as file:
        assert [task["kernel"] for task in json.load(file)["tasks"]] == ["naive/rope"]
