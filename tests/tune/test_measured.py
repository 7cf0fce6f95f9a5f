"""Tuning with a GPU that is made up: an executor in this process with a simulated clock, candidates really compiled."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from tests.tune.test_tune import OPS

from tilewright.compile.compile import Compiled, compile_all
from tilewright.errors import MachineError, RequestError
from tilewright.executors.base import Executor, ignore
from tilewright.hardware.gpu import Gpu
from tilewright.languages.cutile.cutile import CuTile
from tilewright.race import protocol
from tilewright.race.rules import Policy
from tilewright.records import Built, Candidate, Checked, Configuration, WorkloadResult
from tilewright.space.space import Space
from tilewright.strategies.base import Search, SearchSpace, Strategy
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.testing.simulated import SimulatedClock
from tilewright.tune import schedule, workload_search
from tilewright.tune import tune as tuning
from tilewright.tune.tune import tune
from tilewright.worker.messages import (
    CheckOutputs,
    Configured,
    FieldRaced,
    InputsReady,
    OutputsChecked,
    PrepareInputs,
    RaceField,
)
from tilewright.worker.outcome import Outcome

H200 = Gpu("NVIDIA H200", "sm_90", 132, 141 << 30, 50 << 20, "13.0")


NAMES: dict[str, str] = {}
"""Cubin in Base64 → the name of the first configuration that has it."""


def name_of(source: Any) -> str:
    return named(source.configuration) if isinstance(source, Configured) else NAMES[source.cubin]


def named(configuration: Configuration) -> str:
    return f"{configuration.TILE}/{configuration.occupancy}"


@dataclass
class Simulated(Executor):
    """Runs steps on true times by name; ``trouble``: what a candidate does, by name and step."""

    us: Mapping[str, float] = field(default_factory=dict)
    trouble: Mapping[tuple[str, str], str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    name = "simulated"

    def open(self, task: str, files: Mapping[str, str] | None = None) -> None:
        self.said.append("open")

    def run(self, step: Any, *, silence: float | None = None, on_progress: Callable[..., None] = ignore) -> Any:
        answer = self._answer(step)
        return answer if isinstance(answer, Outcome) else Outcome("PASSED", answer)

    def _answer(self, step: Any) -> Any:
        if isinstance(step, PrepareInputs):
            return InputsReady((), new=True)
        if isinstance(step, CheckOutputs):
            return self._checked(name_of(step.source))
        assert isinstance(step, RaceField)
        return self._raced(step)

    def _checked(self, name: str) -> Any:
        self.said.append(f"check {name}")
        trouble = self.trouble.get((name, "check"), "")
        if trouble == "crash":
            return Outcome("FAILED", reason="illegal memory access")
        return OutputsChecked(Checked("incorrect" if trouble else "correct", trouble))

    def _raced(self, step: RaceField) -> Any:
        names = [name_of(source) for source in step.sources]
        self.said.append(f"race {' '.join(names)}{' one by one' if step.careful else ''}")
        troubles = [self.trouble.get((name, "race"), "") for name in names]
        for place, trouble in enumerate(troubles):
            if trouble == "hang":
                at = place if step.careful else None
                return Outcome("HANG_DETECTED", reason="no answer for 30 s: a kernel hangs", at=at)
            if trouble == "nobody":
                return Outcome("ERROR", reason="the driver is gone")
        clock = SimulatedClock([self.us.get(name, 10.0) for name in names], seed=1)
        rng = np.random.default_rng(0)
        race = protocol.race(len(names), clock, step.policy, cost=step.costs, shipped=step.shipped, rng=rng)
        wrong = troubles[race.winner] if race.winner is not None else ""
        return FieldRaced(race, {"nvml": "none"}, wrong or None)

    def close(self, wait: bool = True) -> None:
        self.said.append("close")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    path = tmp_path_factory.mktemp("measured") / "ops.py"
    path.write_text(OPS)
    return load_task(str(path))


@pytest.fixture(scope="module")
def arrived() -> dict[Any, Compiled]:
    return {}


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch, arrived: dict[Any, Compiled]) -> None:
    """A GPU that is said to be here, and each unit compiled once in all tests."""

    def once(task: Task, units: Any, *, on_done: Any, **more: Any) -> Any:
        new = [unit for unit in units if (unit.workload.name, unit.configuration) not in arrived]
        for each in compile_all(task, new, **more):
            arrived[each.unit.workload.name, each.unit.configuration] = each
        for unit in units:
            done = arrived[unit.workload.name, unit.configuration]
            if isinstance(done.built, Built):
                NAMES.setdefault(base64.b64encode(done.built.cubin).decode(), named(unit.configuration))
            on_done(done)

    monkeypatch.setattr(tuning, "detect", lambda: H200)
    monkeypatch.setattr(schedule, "compile_all", once)
    monkeypatch.setattr(CuTile, "remember", lambda self, built: len(built))


def tuned(task: Task, executor: Simulated, **more: Any) -> WorkloadResult:
    policy = Policy(max_rounds=60)
    result = tune(task, workloads=["even"], seed=3, **{"policy": policy, "executor": executor, **more})
    assert result.measured and executor.said[0] == "open" and executor.said[-1] == "close"
    return result.workloads[0]


def by_name(result: WorkloadResult) -> dict[str, Candidate]:
    return {named(one.configuration): one for one in result.candidates}


def raced(result: WorkloadResult) -> set[str]:
    return {name for name, one in by_name(result).items() if one.status == "raced"}


def test_the_fastest_is_the_best_with_its_race_as_evidence(task: Task) -> None:
    result = tuned(task, Simulated({"16/None": 8.0}))
    assert result.best is not None and result.best.configuration.TILE == 16
    assert result.best.measured is not None and result.best.measured.us == pytest.approx(8.0, rel=0.05)
    assert result.best.checked is not None and result.best.checked.verdict == "correct"
    assert result.tied == (result.best.configuration,)
    assert result.race is not None and result.race["seed"] == 3 and result.race["monitor"] == {"nvml": "none"}
    assert result.reason == result.race["why"]


def test_a_time_that_the_board_cannot_reach_is_refused(task: Task) -> None:
    """trust.md 23: the race is run again without the candidate. An H200 reads 1 MiB in 0.22 µs."""
    executor = Simulated({"16/None": 0.1})
    result = tuned(task, executor)
    cheat = by_name(result)["16/None"]
    assert cheat.status == "wrong" and cheat.checked is not None and cheat.checked.verdict == "incorrect"
    assert cheat.reason.startswith("measured 0.1") and "H200 needs at least 0.2185 µs" in cheat.reason
    assert [line for line in executor.said if line.startswith("race") and "16/None" not in line]
    assert result.best is not None and result.best.configuration == task.space.shipped


def test_of_equal_times_the_shipped_wins(task: Task) -> None:
    result = tuned(task, Simulated())
    assert result.best is not None and result.best.configuration == task.space.shipped


def test_those_beyond_the_top_are_not_verified_and_the_shipped_always_is(task: Task) -> None:
    executor = Simulated()
    result = tuned(task, executor, top=1)
    assert len(raced(result)) <= 2 and by_name(result)["32/None"].status == "raced"
    rest = [one for one in result.candidates if one.status == "screened"]
    assert all("the first 1 were raced" in one.reason for one in rest)


def test_each_is_verified_once_and_the_same_race_run_once(task: Task) -> None:
    """Also where candidates were verified and raced ahead of the last compiler."""
    executor = Simulated()
    tuned(task, executor)
    assert len(executor.said) == len(set(executor.said))


@pytest.mark.parametrize(
    ("trouble", "status", "reason"),
    [("crash", "failed", "verify: illegal memory access"), ("y[3] is 7", "wrong", "y[3] is 7")],
)
def test_who_is_not_right_is_not_raced(task: Task, trouble: str, status: str, reason: str) -> None:
    executor = Simulated({"16/None": 1.0}, {("16/None", "check"): trouble})
    result = tuned(task, executor)
    one = by_name(result)["16/None"]
    assert (one.status, one.reason, one.measured) == (status, reason, None)
    assert not any("race" in said and "16/None" in said for said in executor.said)
    assert result.best is not None and result.best.configuration.TILE == 32


def test_who_hangs_in_the_race_is_found_one_by_one(task: Task) -> None:
    executor = Simulated({"16/None": 1.0}, {("16/None", "race"): "hang"})
    result = tuned(task, executor)
    assert by_name(result)["16/None"].reason == "race: no answer for 30 s: a kernel hangs"
    assert result.best is not None and result.best.configuration.TILE == 32
    assert any("one by one" in said for said in executor.said)


def test_a_winner_that_is_wrong_after_timing_is_not_the_best(task: Task) -> None:
    result = tuned(task, Simulated({"16/None": 1.0}, {("16/None", "race"): "after timing: y"}))
    assert by_name(result)["16/None"].status == "wrong"
    assert result.best is not None and result.best.configuration.TILE == 32


def test_a_race_that_fails_for_all_ends_the_run(task: Task) -> None:
    names = ("16/None", "32/None", "16/2", "32/2")
    with pytest.raises(MachineError, match="the race of workload even fails: the driver is gone"):
        tuned(task, Simulated(trouble={(name, "race"): "nobody" for name in names}))


def test_where_nothing_is_right_there_is_no_best(task: Task) -> None:
    names = ("16/None", "32/None", "16/2", "32/2")
    result = tuned(task, Simulated(trouble={(name, "check"): "wrong" for name in names}))
    assert result.best is None and result.race is None
    assert result.reason == "no candidate compiled, ran and was correct"


def test_eager_launches_are_timed_when_all_compilers_are_done(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, finish = Simulated(), schedule.Schedule.finish
    monkeypatch.setattr(schedule.Schedule, "finish", lambda self: (finish(self), executor.said.append("compiled"))[0])
    tuned(task, executor, policy=Policy(launch="eager", max_rounds=60))
    assert executor.said[:2] == ["open", "compiled"]


def test_a_strategy_of_several_batches_sees_times_and_the_last_race_decides(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    class OneByOne(Strategy):
        name = "one by one"

        def search(self, space: SearchSpace) -> Search:
            for configuration in space.each():
                (outcome,) = yield (configuration,)
                if outcome.status != "duplicate":
                    assert outcome.measured is not None
                    seen.append(outcome.measured.us)

    monkeypatch.setattr(workload_search, "strategy_of", lambda name: OneByOne())
    result = tuned(task, Simulated({"16/None": 8.0}), strategy="one by one")
    assert len(seen) >= len(raced(result)) > 1
    assert result.best is not None and result.best.configuration.TILE == 16


def test_the_fastest_of_an_earlier_batch_stays_in_the_race(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a top of 1, the later batch has the shortest predicted time, but the first batch has the fastest."""
    space = Space(
        constants={"TILE": (16, 64, 128)}, hints={"occupancy": (None,)}, shipped={"TILE": 128, "occupancy": None}
    )
    shipped, small, middle = space.configurations(90, {})

    class InTurn(Strategy):
        name = "in turn"

        def search(self, space: SearchSpace) -> Search:
            first = yield (shipped, middle)
            assert [each.measured is not None for each in first] == [True, True]
            (last,) = yield (small,)
            assert last.measured is not None

    monkeypatch.setattr(workload_search, "strategy_of", lambda name: InTurn())
    executor = Simulated({"64/None": 4.0})
    result = tuned(replace(task, space=space), executor, top=1, strategy="in turn")
    predicted = {each.configuration: each.predicted.us for each in result.candidates if each.predicted}
    assert predicted[small] < predicted[middle] < predicted[shipped]
    assert result.best is not None and result.best.configuration == middle
    assert [set(said.split()[1:]) for said in executor.said if said.startswith("race")] == [
        {"64/None", "128/None"}, {"16/None", "64/None", "128/None"},
    ]  # fmt: skip
    assert result.searched is not None and result.searched.complete and result.searched.strategy == "in turn"


def test_a_strategy_that_asks_for_a_forbidden_configuration_is_named(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forbidden(Strategy):
        name = "forbidden"

        def search(self, space: SearchSpace) -> Search:
            yield (space.shipped.replace(TILE=64),)

    monkeypatch.setattr(workload_search, "strategy_of", lambda name: Forbidden())
    with pytest.raises(
        RequestError, match="strategy 'forbidden' asks for TILE=64,occupancy=auto, which the space does"
    ):
        tune(task, workloads=["even"], strategy="forbidden", store=False)


@dataclass
class TooSmall(Simulated):
    """A machine on which nothing of the workload fits."""

    def _answer(self, step: Any) -> Any:
        assert isinstance(step, PrepareInputs), "nothing runs without inputs"
        return InputsReady((), new=False, unverified="needs about 965 GiB of memory")


def test_what_needs_too_much_memory_is_unverified_by_name(task: Task) -> None:
    """trust.md 44: neither wrong nor the end of the run."""
    result = tuned(task, TooSmall())
    assert result.best is None and result.reason == "unverified: needs about 965 GiB of memory"
    tried = [one for one in result.candidates if one.checked is not None]
    assert tried and {one.checked.verdict for one in tried if one.checked} == {"unverified"}
    assert not [one for one in result.candidates if one.status in ("wrong", "failed", "raced")]
