"""The part of `bench/written_against_eager.py` that needs no GPU: the order, the tasks, when its file is written."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.bench.kit import bench_module

from tilewright.specialists.writing.named import OPERATIONS
from tilewright.task.loading import load_task

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return bench_module("written_against_eager")


def test_products_come_first_and_all_operations_are_there(bench: ModuleType) -> None:
    names = bench.chosen("", "1/1")
    assert [each.startswith("gemm") for each in names[:3]] == [True, True, False]
    assert len(names) == 18 and {each.name for each in OPERATIONS} < set(names)
    assert bench.chosen("gelu, softmax", "1/1") == ["gelu", "softmax"]
    assert sorted(bench.chosen("", "1/2") + bench.chosen("", "2/2")) == sorted(names)


def test_an_unknown_operation_is_one_line(bench: ModuleType) -> None:
    with pytest.raises(SystemExit, match="unknown operation 'gem'; known: gemm_bias_relu, "):
        bench.chosen("gem", "1/1")


def test_each_task_has_torch_as_its_trusted_implementation(bench: ModuleType, tmp_path: Path) -> None:
    for name in bench.chosen("", "1/1"):
        task = load_task(str(bench.written(name, "cutile", tmp_path)))
        assert task.name == name and task.trusted.__name__ == "eager"


def test_the_record_is_written_after_each_kernel(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no GPU: the kernels are not timed, but each has its reason, and the file exists after the first."""
    out, seen = tmp_path / "out.json", list[dict[str, Any]]()

    def none_here(name: str, language: str, folder: Path) -> dict[str, Any]:
        seen.append(json.loads(out.read_text()) if out.exists() else {})
        if language == "triton":
            raise RuntimeError("this kernel fails")
        return {"operation": name, "us": 1.0, "torch_us": 2.0, "torch_over_ours": 2.0, "seconds": 0.1}

    monkeypatch.setattr(bench, "compared", none_here)
    record = bench.run(["gelu", "softmax"], 60.0, str(out))
    assert [len(each.get("rows", ())) for each in seen] == [0, 1, 1, 2]
    assert record == json.loads(out.read_text()) and list(record["failed"].values()) == ["this kernel fails"] * 2
    assert set(bench.run(["gelu"], -1.0, None)["failed"].values()) == {"no time was left"}
