"""`tune --seeds`: configurations that the space does not list, and one line where there are none."""

from __future__ import annotations

import pytest
from tests.test_docs import ROOT

from tilewright.errors import MachineError, RequestError, UnknownChoice
from tilewright.hardware.machine import Target, target_of
from tilewright.race.rules import Policy
from tilewright.records import PredictedTime
from tilewright.space import heuristics
from tilewright.space.heuristics import Seed
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tune.run import TuneRequest
from tilewright.tune.tune import tune

H200 = target_of("sm_90", None)


@pytest.fixture(scope="module")
def matmul() -> Task:
    return load_task(str(ROOT / "examples" / "matmul.py"))


def tried(task: Task, seeds: str | None, target: Target = H200) -> list[str]:
    workloads = task.selected(None)[:1]
    request = TuneRequest(task, target, Policy(), workloads, 10, None, None, seeds, ("cutile",))
    (search,) = request.searches(workloads, 2).values()
    return [str(config) for config in search.batch]


def test_seeds_come_after_the_configurations_of_the_space(matmul: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = Seed((256, 128, 128), (1, 2), PredictedTime(100.0, "a model"))
    monkeypatch.setattr(heuristics, "matmul_seeds", lambda *asked: (seed,))
    listed, more = tried(matmul, None), tried(matmul, "heuristics")
    assert more[: len(listed)] == listed and len(set(more)) == len(more) > len(listed)


def test_unknown_seeds_name_the_choices(matmul: Task) -> None:
    with pytest.raises(
        UnknownChoice, match="unknown seeds 'heuristic'; did you mean 'heuristics'. known: templates, heuristics"
    ):
        tune(matmul, arch="sm_90", seeds="heuristic")


def test_seeds_need_a_matrix_product() -> None:
    task = load_task(str(ROOT / "examples" / "rms_norm.py"))
    with pytest.raises(RequestError, match="they need the dimensions M, N and K"):
        tried(task, "heuristics")


def test_a_missing_package_names_the_extra_and_its_licence(matmul: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heuristics, "missing", lambda: f"not installed; {heuristics.INSTALL}")
    with pytest.raises(MachineError, match=r"tilewright\[heuristics\]' \(under NVIDIA's proprietary licence\)"):
        tried(matmul, "heuristics")
