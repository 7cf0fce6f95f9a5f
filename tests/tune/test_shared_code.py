"""What is compiled for one workload is a candidate of all workloads with the same code, and is compiled once."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.tune.test_large import OPS
from tests.tune.test_measured import H200, Simulated

from tilewright.languages.cutile.cutile import CuTile
from tilewright.ledger.tunings import TuneLedger
from tilewright.race.rules import Policy
from tilewright.records import Configuration, TuningResult
from tilewright.space.space import Space
from tilewright.strategies.base import Search, SearchSpace, Strategy
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.testing.strategies import outcome
from tilewright.tune import tune as tuning
from tilewright.tune import workload_search
from tilewright.tune.tune import tune
from tilewright.tune.workload_search import Limits, Searching, TimeLimit

WORKLOADS = '"even": {"M": 4096, "N": 64}, "more": {"M": 8192, "N": 64}, "odd": {"M": 4095, "N": 64}'


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "detect", lambda: None)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """The code depends only on whether the rows can be divided by 16."""
    file = tmp_path / "ops.py"
    source = OPS.format(A=2, B=4)
    start = source.index('"even"')
    file.write_text(source[:start] + WORKLOADS + source[source.index("},\n)", start) :])
    return load_task(str(file))


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows with each run of a compiler."""
    real, found = CuTile.assemble, list[Any]()

    def counted(self: CuTile, lowered: Any, seconds: float) -> Any:
        found.append((lowered.identity, lowered.symbol))
        return real(self, lowered, seconds)

    monkeypatch.setattr(CuTile, "assemble", counted)
    return found


def configurations(result: TuningResult) -> dict[str, set[Configuration]]:
    return {each.workload.name: {one.configuration for one in each.candidates} for each in result.workloads}


def shared(result: TuningResult) -> list[tuple[int, int]]:
    return [(each.searched.compiled, each.searched.shared) for each in result.workloads if each.searched]


@pytest.mark.parametrize("stored", [True, False])
def test_each_code_is_compiled_once_and_the_result_says_which_are_shared(
    task: Task, assembled: list[Any], tmp_path: Path, stored: bool
) -> None:
    """Of 32 configurations, four are compiled for each workload. ``even`` is first, so it takes the first batch of
    ``more``. ``more`` takes all of ``even``."""
    with TuneLedger(tmp_path / "ledger.db") as ledger:
        result = tune(task, arch="sm_90", candidates=4, strategy="halving", store=ledger if stored else False)
        if stored:
            assert ledger.load(result.run) == result
    found = configurations(result)
    assert found["even"] < found["more"]
    assert shared(result) == [(5, 1), (8, 4), (4, 0)]
    assert len(assembled) == len(set(assembled)) == 12
    assert "of them for another workload)" in str(result.workloads[1].searched)
    for each in result.workloads:
        assert all(one.predicted and one.code for one in each.candidates)


def test_a_search_is_the_same_again(task: Task) -> None:
    first, second = (tune(task, arch="sm_90", candidates=6, strategy="halving", seed=1, store=False) for _ in range(2))
    assert configurations(first) == configurations(second) and shared(first) == shared(second)


@dataclass
class Together(Simulated):
    """A GPU that waits in its first step for the other one."""

    barrier: threading.Barrier | None = None

    def run(self, step: Any, **more: Any) -> Any:
        if self.barrier is not None:
            barrier, self.barrier = self.barrier, None
            barrier.wait(60)
        return super().run(step, **more)


def test_two_gpus_share_code_at_the_same_time(
    task: Task, assembled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "detect", lambda: H200)
    monkeypatch.setattr(CuTile, "remember", lambda self, built: len(built))
    monkeypatch.setattr("tests.tune.test_measured.name_of", lambda source: "any")
    barrier = threading.Barrier(2)
    gpus = [Together(barrier=barrier), Together(barrier=barrier)]
    policy = Policy(max_rounds=60)
    result = tune(task, candidates=4, strategy="halving", executor=gpus, policy=policy, seed=1, store=False)
    assert all(each.best is not None for each in result.workloads)
    assert len(assembled) == len(set(assembled)) <= 12
    assert sum(compiled - by_others for compiled, by_others in shared(result)) <= 12


class Coded:
    """Expected times of made-up code, which is equal for all workloads, or that of one of them."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def us(self, configurations: Any, like: Any = None) -> tuple[float, ...]:
        return tuple(100.0 / int(each.SIZE) for each in configurations)

    def identity(self, configuration: Configuration, like: Any = None) -> Any:
        return configuration

    def code(self, configuration: Configuration) -> Any:
        return self.name, configuration


SPACE = Space(constants={"SIZE": range(1, 41)}, shipped={"SIZE": 1})


def two(task: Task, names: tuple[str, str] = ("", ""), strategy: str = "halving") -> tuple[Searching, Searching]:
    found: dict[str, Searching] = {}
    for workload, name in zip(task.selected(["even", "more"]), names, strict=True):
        found[workload.name] = Searching(
            workload, SPACE, 90, Limits(candidates=6), strategy=strategy, expected=lambda name=name: Coded(name),
            others=found.values(),
        )  # fmt: skip
    return found["even"], found["more"]


def test_what_another_workload_asked_for_is_not_asked_for_again(task: Task) -> None:
    one, other = two(task)
    assert set(one.batch) & set(other.batch) == {SPACE.shipped}
    assert len(other.batch) == len(one.batch) + 1, "the shipped configuration does not count"
    assert other.shared().keys() == set(one.batch) - {SPACE.shipped}


def test_other_code_is_not_shared(task: Task) -> None:
    one, other = two(task, ("one", "other"))
    assert one.batch == other.batch and not one.shared() and not other.shared()


def test_a_strategy_gets_outcomes_that_are_there_already(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for what was taken: nothing is compiled, and the search goes on."""
    sent: list[Configuration] = []
    last = SPACE.shipped.replace(SIZE=2)

    class Asks(Strategy):
        name = "asks"

        def search(self, space: SearchSpace) -> Search:
            yield (space.shipped,)
            taken = tuple(space.shared())
            sent.extend(each.configuration for each in (yield taken))
            yield (last,)

    one, _ = two(task)
    monkeypatch.setattr(workload_search, "strategy_of", lambda name: Asks())
    found = {"one": one}
    search = Searching(
        one.workload, SPACE, 90, Limits(candidates=2), strategy="asks", expected=Coded, others=found.values()
    )
    taken = search.take(search.shared())
    assert len(taken) > 0
    judged = {config: outcome(config, "predicted", 1.0) for config in (SPACE.shipped, *taken)}
    assert search.next(judged, TimeLimit(None)) == (last,)
    assert tuple(sent) == taken
    assert search.report(judged).shared == len(judged)
