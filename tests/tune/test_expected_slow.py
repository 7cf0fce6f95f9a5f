"""What is expected to be slow is not compiled by default, and compiled after all if the expectations were wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.processes import until
from tests.tune.test_path import TASK

from tilewright.compile.compile import Compiled, Unit, compile_all
from tilewright.compile.skipped import EXPECTED_SLOWER
from tilewright.inspect.expected import ExpectedTimes
from tilewright.records import Candidate, Configuration
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.testing.entries import H200
from tilewright.tune.tune import tune

OPS = TASK.replace('"M": 256', '"M": 65536').replace(
    'space=tw.Space(constants={"TILE": (16, 32)}, shipped={"TILE": 32})',
    """independent=("M",),
    space=tw.Space(
        constants={"TILE": (1, 2, 4, 8, 16, 32, 64, 128)}, hints={"num_worker_warps": (None, 8)},
        shipped={"TILE": 2, "num_worker_warps": None},
    )""",
)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "ops.py").write_text(OPS)
    return load_task(str(tmp_path / "ops.py"))


def rows(task: Task, strategy: str | None = None) -> dict[Configuration, Candidate]:
    found = tune(task, arch="sm_90", strategy=strategy, store=False, jobs=1)
    [workload] = found.workloads
    slow, searched = sum("expected to take" in row.reason for row in workload.candidates), workload.searched
    assert searched and (searched.slow, searched.compiled + slow, searched.complete) == (slow, searched.of, not slow)
    return {row.configuration: row for row in workload.candidates}


def left_out(found: dict[Configuration, Candidate]) -> set[Configuration]:
    return {config for config, row in found.items() if row.code is None and "expected to take" in row.reason}


def test_what_is_expected_to_be_slow_is_not_compiled_unless_the_user_wants_everything(task: Task) -> None:
    found = rows(task)
    slow = left_out(found)
    [workload] = task.selected(None)
    assert slow and task.space.shipped not in slow and {found[config].status for config in slow} == {"screened"}
    expected = dict(zip(found, ExpectedTimes(task, workload, H200).us(list(found)), strict=True))
    least = min(us for us in expected.values() if us)
    assert all((expected[config] or 0) > EXPECTED_SLOWER * least for config in slow)
    every = rows(task, "exhaustive")
    assert every.keys() == found.keys() and not left_out(every)
    times = {config: row.predicted.us for config, row in every.items() if row.predicted}
    assert min(times, key=times.__getitem__) not in slow


def test_wrong_expectations_cost_time_and_not_the_fastest(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slowest is expected to be fastest by far, so all others are left out at first."""
    worst = Configuration.of({"TILE": 1, "num_worker_warps": None})

    def wrong(self: ExpectedTimes, configurations: Sequence[Configuration], like: object = None) -> tuple[float, ...]:
        return tuple(1.0 if config == worst else 100.0 for config in configurations)

    monkeypatch.setattr(ExpectedTimes, "us", wrong)
    found = rows(task)
    assert not left_out(found) and all(row.code for row in found.values())


def test_what_nothing_is_known_of_is_compiled(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExpectedTimes, "us", lambda self, configurations, like=None: (None,) * len(configurations))
    assert not left_out(rows(task))


def test_no_other_thread_calls_the_tasks_code_once_all_is_compiled(task: Task) -> None:
    [workload] = task.selected(None)
    units = [Unit(workload, config, H200) for config in list(task.space.each(90, workload.dims))[:2]]
    compiled, returned = list[Compiled](), list[Unit]()

    def expected_us(unit: Unit) -> None:
        assert until(lambda: len(compiled) == len(units))
        time.sleep(0.2)
        returned.append(unit)

    compile_all(task, units, jobs=1, on_done=compiled.append, expected_us=expected_us)
    assert returned == units[:1]


@pytest.mark.parametrize("seconds", [None, 60])
def test_a_kernel_that_breaks_the_model_is_compiled(
    task: Task, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise KeyError("an operation of tomorrow")

    monkeypatch.setattr(ExpectedTimes, "us", breaks)
    [workload] = tune(task, arch="sm_90", store=False, jobs=1, seconds=seconds).workloads
    assert workload.best is not None and all(row.code for row in workload.candidates)
