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


def test_a_later_run_skips_what_its_file_holds(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel whose text has changed, or that --only names, is measured again. Its row takes the place of the old."""
    out, measured = str(tmp_path / "out.json"), list[str]()

    def row(name: str, language: str, folder: Path) -> dict[str, Any]:
        measured.append(f"{name} {language}")
        file = bench.written(name, language, folder)
        numbers = {"us": 1.0, "torch_us": 2.0, "torch_over_ours": 2.0, "seconds": 0.1, "kernel": bench.digest(file)}
        return {"operation": name, "language": language, **numbers}

    monkeypatch.setattr(bench, "compared", row)
    bench.run(["gelu"], 60.0, out)
    bench.run(["gelu", "softmax"], 60.0, out)
    assert measured == ["gelu cutile", "gelu triton", "softmax cutile", "softmax triton"]
    record = bench.run(["gelu"], 60.0, out, only="gelu")
    assert measured[4:] == ["gelu cutile", "gelu triton"] and len(record["rows"]) == 4
    record["rows"][0]["kernel"] = "another"
    Path(out).write_text(json.dumps(record))
    changed = f"{record['rows'][0]['operation']} {record['rows'][0]['language']}"
    bench.run(["gelu", "softmax"], 60.0, out)
    assert measured[6:] == [changed] and "measured before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "no record of this bench"), ('{"machine": {"gpu": "another"}, "rows": []}', "made on 'another', and this")],
)
def test_a_file_that_cannot_be_resumed_stays(bench: ModuleType, tmp_path: Path, text: str, reason: str) -> None:
    out = tmp_path / "out.json"
    out.write_text(text)
    with pytest.raises(SystemExit, match=f"{reason}.*; give --out a new file"):
        bench.run(["gelu"], 60.0, str(out))
    assert out.read_text() == text
