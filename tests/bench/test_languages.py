"""`bench/languages.py`: its tasks have three implementations each, and the rotation written for it is right."""

from __future__ import annotations

from types import ModuleType

import pytest
from tests.bench.kit import bench_module

from tilewright.records import Candidate, Checked, Configuration, MeasuredTime
from tilewright.task.loading import load_task
from tilewright.verify.check import check

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return bench_module("languages")


def candidate(implementation: str, us: float, *, right: bool = True) -> Candidate:
    config = Configuration.of({"implementation": implementation, "TILE": int(us)})
    verdict = Checked("correct" if right else "incorrect", "made up")
    return Candidate(config, "raced", "", checked=verdict, measured=MeasuredTime(us, (us - 1, us + 1), (us,)))


def test_each_operation_has_three_implementations(bench: ModuleType) -> None:
    for name in bench.OPERATIONS:
        task = load_task(f"{bench.TASKS}:{name}")
        assert list(task.implementations) == ["cutile", "triton_ptx", "triton_tileir"], name
        routes = {each["implementation"]: each.get("route") for each in task.space.every_shipped}
        assert routes == {"cutile": None, "triton_ptx": "ptx", "triton_tileir": "tileir"}, name


def test_the_rotation_is_right_in_all_implementations(bench: ModuleType) -> None:
    verdict, *_ = check(load_task(f"{bench.TASKS}:rope"), quick=True)
    assert verdict.verdict.startswith("correct"), verdict.reason


def test_the_best_of_each_implementation_is_right(bench: ModuleType) -> None:
    best = bench.best_of_each([
        candidate("cutile", 30), candidate("cutile", 20), candidate("triton_ptx", 10, right=False),
        candidate("triton_ptx", 25),
    ])  # fmt: skip
    assert {name: each.measured.us for name, each in best.items()} == {"cutile": 20, "triton_ptx": 25}
    assert list(best) == ["cutile", "triton_ptx"]
