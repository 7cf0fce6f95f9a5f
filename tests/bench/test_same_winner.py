"""bench/same_winner.py: a race in each process, by the protocol of executors. The times themselves need a GPU."""

from __future__ import annotations

import inspect
from pathlib import Path

from tests.bench.kit import bench_module
from tests.tune.test_measured import Simulated, named
from tests.tune.test_tune import OPS

from tilewright.executors.local import Local
from tilewright.task.loading import load_task
from tilewright.worker.client import Contestant
from tilewright.worker.messages import Configured


def test_each_process_verifies_and_races_all_contestants(tmp_path: Path) -> None:
    bench = bench_module("same_winner")
    (tmp_path / "ops.py").write_text(OPS)
    task = load_task(str(tmp_path / "ops.py"))
    workload = task.workload("even")
    configurations = task.space.configurations(90, workload.dims)[:3]
    contestants = [Contestant(str(each), Configured(each)) for each in configurations]
    started: list[Simulated] = []

    def start(where: str) -> Simulated:
        assert load_task(where).name == task.name
        started.append(Simulated({named(configurations[1]): 8.0}))
        return started[-1]

    races = list(bench.one_race_each(task, workload, contestants, 3, start))
    assert [winner for winner, _ in races] == [str(configurations[1])] * 3
    assert all(rounds > 0 for _, rounds in races)
    assert [sum(line.startswith("check") for line in one.said) for one in started] == [3, 3, 3, 0]
    assert all(one.said[-1] == "close" for one in started)
    inspect.signature(Local).bind("FILE.py:TASK")
