"""Tuning in a large space: a part is compiled, within a limit of time or number, and the result says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import RequestError
from tilewright.hardware.architectures import default_board
from tilewright.hardware.machine import Target
from tilewright.inspect.expected import ExpectedTimes
from tilewright.ledger.tunings import TuneLedger
from tilewright.race.rules import Policy
from tilewright.records import Candidate, Configuration, TuningResult
from tilewright.space.space import Space
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tune import tune as tuning
from tilewright.tune.run import TuneRequest
from tilewright.tune.tune import tune
from tilewright.tune.workload_search import Limits, Searching

OPS = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel
def scale(x, y, TILE: ct.Constant[int], A: ct.Constant[int], B: ct.Constant[int]):
    t = ct.load(x, (ct.bid(0), 0), (TILE, 64))
    ct.store(y, (ct.bid(0), 0), t * 2 + (A - A) * B)

task = tw.Task(
    name="scale",
    tensors={{"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")}},
    reference=lambda x: 2 * x,
    launch=lambda x, y, M, config: tw.Launch(scale, (-(-M // config.TILE),), (x, y, config.TILE, config.A, config.B)),
    flops=lambda M, N: M * N,
    independent=("M",),
    space=tw.Space(
        constants={{"TILE": (16, 32, 64, 128), "A": range({A}), "B": range({B})}},
        shipped={{"TILE": 32, "A": 0, "B": 0}},
        where=[lambda TILE, A, N: TILE * A != 7 * N],
    ),
    workloads={{"even": {{"M": 4096, "N": 64}}, "odd": {{"M": 4095, "N": 64}}}},
)
"""
MEMORY = 1.2
"""Peak memory of tuning in 20,000 configurations, over that in 200."""
COMMAND = """\
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "tilewright", "tune", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(done.returncode)
"""


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "detect", lambda: None)


def written(folder: Path, a: int, b: int) -> Path:
    file = folder / f"ops_{a}_{b}.py"
    file.write_text(OPS.format(A=a, B=b))
    return file


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return load_task(str(written(tmp_path, 50, 100)))


def of(result: TuningResult) -> list[tuple[str, int, int]]:
    searches = [workload.searched for workload in result.workloads]
    return [(each.strategy, each.compiled, each.of) for each in searches if each]


def ran(file: Path, *words: str) -> tuple[dict[str, Any], int]:
    """Runs `tilewright tune` in a process. Returns its JSON, and the peak memory of the process and its compilers."""
    command = [sys.executable, "-c", COMMAND, str(file), *words, "--arch", "sm_90", "--workload", "even", "--json"]
    environment = {**os.environ, "TILEWRIGHT_HOME": str(file.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["workloads"][0], int(done.stderr.split()[-1])


@pytest.mark.long
def test_a_space_of_20_000_takes_as_much_memory_as_one_of_200(tmp_path: Path) -> None:
    large, peak = ran(written(tmp_path, 50, 100), "--candidates", "12")
    small, usual = ran(written(tmp_path, 5, 10), "--candidates", "12")
    assert large["searched"] == {
        "strategy": "halving", "compiled": 12, "of": 19700, "exact": True,
        "why": "the limit --candidates 12 was reached", "shared": 0, "slow": 0,
    }  # fmt: skip
    assert (small["searched"]["strategy"], small["searched"]["of"]) == ("exhaustive", 200)
    assert len(large["candidates"]) == len(small["candidates"]) == 12
    assert large["best"]["verdict"] == "correct on reduced shapes"
    assert peak <= MEMORY * usual


@pytest.mark.long
def test_expected_times_choose_the_first_batch(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each workload has its own. The constants A and B change nothing, so the largest tiles are expected to be fast."""
    asked: list[tuple[str, int]] = []
    us = ExpectedTimes.us

    def noted(self: ExpectedTimes, configurations: Sequence[Configuration], like: Candidate | None = None) -> Any:
        asked.append((self.workload.name, len(configurations)))
        return us(self, configurations, like)

    monkeypatch.setattr(ExpectedTimes, "us", noted)
    found = tune(task, arch="sm_90", candidates=6, workloads="even", store=False)
    assert [name for name, _ in asked[:2]] == ["even", "even"] and 0 < asked[1][1] < 100
    tiles = [each.configuration.TILE for each in found.workloads[0].candidates]
    assert len(tiles) == 6 and 32 in tiles


def test_expected_times_are_made_only_where_there_is_a_choice(task: Task) -> None:
    made = []
    workload = task.selected("even")[0]

    def expected() -> ExpectedTimes:
        made.append(1)
        return ExpectedTimes(task, workload, default_board("sm_90"))

    small = Space(constants={"TILE": (32, 64), "A": (0,), "B": (0,)}, shipped={"TILE": 32, "A": 0, "B": 0})
    assert Searching(workload, small, 90, Limits(), expected=expected).space.expected is None and not made
    assert Searching(workload, small, 90, Limits(candidates=1), expected=expected).space.expected is not None and made


def test_only_kernels_of_cutile_have_expected_times(task: Task) -> None:
    workloads = tuple(task.selected("even"))
    for languages, known in ((("cutile",), True), (("triton",), False), (("cutile", "triton"), False)):
        target = Target(default_board("sm_90"), None)
        limits = Limits(candidates=2)
        request = TuneRequest(task, target, Policy(), workloads, 10, None, None, None, languages, limits)
        (search,) = request.searches(workloads, 1).values()
        assert (search.space.expected is not None) == known


@pytest.mark.parametrize("strategy", [None, "exhaustive", pytest.param("local", marks=pytest.mark.long)])
def test_a_time_limit_keeps_the_best_so_far(task: Task, tmp_path: Path, strategy: str | None) -> None:
    """All strategies, also the one that asks for everything at once. Each workload gets a share."""
    with TuneLedger(tmp_path / "ledger.db") as store:
        found = tune(task, arch="sm_90", seconds=4, strategy=strategy, store=store)
        assert store.load(found.run) == found
    for workload in found.workloads:
        assert workload.best is not None and workload.best.checked is not None and workload.best.checked.right
        assert workload.searched is not None and not workload.searched.complete
        assert 1 <= workload.searched.compiled == len(workload.candidates) < workload.searched.of
        assert "time limit of 4 s" in workload.searched.why
        assert task.space.shipped in {each.configuration for each in workload.candidates}


@pytest.mark.parametrize(
    ("candidates", "why"),
    [
        (1, "the only candidate that was compiled, so there was no choice; the interpreter finds it"),
        (2, "the shortest predicted time of the candidates that the interpreter finds"),
    ],
)
def test_a_single_candidate_is_not_said_to_be_chosen(task: Task, candidates: int, why: str) -> None:
    (workload,) = tune(task, arch="sm_90", candidates=candidates, workloads=["even"], store=False).workloads
    assert workload.reason == f"{why} correct on reduced shapes; predicted, not measured"


def test_the_number_of_candidates_is_kept_and_the_command_repeats_it(task: Task, tmp_path: Path) -> None:
    with TuneLedger(tmp_path / "ledger.db") as store:
        found = tune(task, arch="sm_90", candidates=3, strategy="local", seed=1, store=store)
        assert store.run(found.run).reproduce.endswith("--strategy local --seed 1 --candidates 3")
    assert of(found) == [("local", 3, 19700)] * 2
    again = tune(task, arch="sm_90", candidates=3, strategy="local", seed=1, store=False)
    rows = [[each.configuration for each in workload.candidates] for workload in found.workloads]
    assert rows == [[each.configuration for each in workload.candidates] for workload in again.workloads]


def test_an_interrupted_search_goes_on_with_the_next_workload(task: Task, tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int | None, note: str = "") -> None:
        if stage == "verify" and note.startswith("odd"):
            raise KeyboardInterrupt

    asked: dict[str, Any] = {"arch": "sm_90", "candidates": 2}
    with TuneLedger(tmp_path / "ledger.db") as store:
        with pytest.raises(KeyboardInterrupt):
            tune(task, store=store, progress=interrupt, **asked)
        (run,) = store.runs()
        assert run.workloads == ("even",)
        found = tune(task, store=store, **asked)
        assert found.run == run.run and of(found) == [("halving", 2, 19700)] * 2
        other = tune(task, store=store, **{**asked, "candidates": 1}, workloads=["odd"])
        assert other.run != run.run


def test_a_small_space_is_compiled_as_a_whole(tmp_path: Path) -> None:
    found = tune(load_task(str(written(tmp_path, 1, 2))), arch="sm_90", store=False)
    assert of(found) == [("exhaustive", 8, 8)] * 2
    assert all(workload.searched and workload.searched.complete for workload in found.workloads)


def test_a_space_of_ten_million_points_is_not_counted(tmp_path: Path) -> None:
    found = tune(
        load_task(str(written(tmp_path, 1000, 2500))), arch="sm_90", candidates=3, workloads="odd", store=False
    )
    assert of(found) == [("halving", 3, 10_000_000)]
    assert str(found.workloads[0].searched).startswith("3 of at most 10,000,000 configurations were compiled")


def test_a_limit_that_allows_nothing_is_refused(task: Task) -> None:
    with pytest.raises(RequestError, match="seconds is 0; give a number above 0"):
        tune(task, arch="sm_90", seconds=0)
    with pytest.raises(RequestError, match="candidates is 0; give at least 1"):
        tune(task, arch="sm_90", candidates=0)
