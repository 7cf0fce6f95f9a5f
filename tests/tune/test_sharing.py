"""Workloads shared out over several GPUs, which are simulated. A workload stays on one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.processes import PATIENCE
from tests.tune.test_measured import H200, Simulated, _gpu, arrived, task  # noqa: F401  (fixtures)

from tilewright.errors import MachineError
from tilewright.executors.base import ignore
from tilewright.hardware.gpu import Gpu
from tilewright.ledger.tunings import TuneLedger
from tilewright.race.rules import Policy
from tilewright.records import TuningResult
from tilewright.task.task import Task
from tilewright.tune.judge import taking_part
from tilewright.tune.tune import tune
from tilewright.worker.messages import FieldRaced, PrepareInputs, RaceField

EVERY = {"even", "odd"}


@dataclass
class Board(Simulated):
    """A GPU that notes its workloads. ``first``: waits until both GPUs have a workload."""

    us: Any = field(default_factory=lambda: {"16/None": 8.0})
    fails: str = ""
    together: Any = None
    prepared: list[str] = field(default_factory=list)
    raced: list[str] = field(default_factory=list)

    def run(self, step: Any, *, silence: float | None = None, on_progress: Callable[..., None] = ignore) -> Any:
        if isinstance(step, PrepareInputs):
            if step.workload not in self.prepared:
                self.prepared.append(step.workload)
                if self.together is not None and len(self.prepared) == 1:
                    self.together.wait(PATIENCE)
            if self.fails == "dies":
                raise MachineError("the worker process did not start: CUDA error: device lost")
        outcome = super().run(step, silence=silence, on_progress=on_progress)
        if isinstance(step, RaceField):
            self.raced.append(self.prepared[-1])
            if self.fails == "throttles":
                answer: FieldRaced = outcome.answer
                object.__setattr__(answer.race, "disturbed", 10 * answer.race.rounds)
        return outcome


def tuned(task: Task, *boards: Board, **more: Any) -> TuningResult:  # noqa: F811
    return tune(task, seed=3, policy=Policy(max_rounds=60), executor=boards, **{"store": False, **more})


def winners(result: TuningResult) -> dict[str, str]:
    return {each.workload.name: str(each.best.configuration) for each in result.workloads if each.best}


def test_each_gpu_gets_workloads_and_the_winners_are_the_same(task: Task, tmp_path: Any) -> None:  # noqa: F811
    alone = Board()
    expected = winners(tuned(task, alone))
    assert expected.keys() == EVERY and set(alone.prepared) == EVERY
    both = threading.Barrier(2)
    first, second = Board(together=both), Board(together=both)
    with TuneLedger(tmp_path / "runs.db") as store:
        result = tuned(task, first, second, store=store)
        assert store.stored() == (2, True)
    assert winners(result) == expected
    assert [len(first.prepared), len(second.prepared)] == [1, 1] and {*first.prepared, *second.prepared} == EVERY
    for board in (first, second):
        assert set(board.raced) == set(board.prepared), "a race stays on the GPU that verified"
        assert (board.said[0], board.said[-1]) == ("open", "close")
    races = [line for board in (first, second) for line in board.said if line.startswith("race")]
    assert len(races) == len([line for line in alone.said if line.startswith("race")]), "nothing is raced twice"


@pytest.mark.parametrize(("fails", "reason"), [("dies", "device lost"), ("throttles", "rounds were disturbed")])
def test_a_gpu_that_fails_is_left_out_and_its_share_taken_over(
    fails: str,
    reason: str,
    task: Task,  # noqa: F811
    tmp_path: Any,
) -> None:
    both, notes = threading.Barrier(2), []  # type: threading.Barrier, list[str]
    bad, good = Board(fails=fails, together=both), Board(together=both)
    with TuneLedger(tmp_path / "runs.db", note=notes.append) as store:
        result = tuned(task, bad, good, store=store)
    assert winners(result).keys() == EVERY and set(good.prepared) == EVERY
    assert len(bad.prepared) == 1 and len(notes) == 1
    assert notes[0].startswith("GPU 0 is left out, and another one takes workload ") and reason in notes[0]


def test_another_gpu_takes_the_only_workload(task: Task) -> None:  # noqa: F811
    good = Board()
    assert winners(tuned(task, Board(fails="dies"), good, workloads="even")).keys() == {"even"}
    assert good.prepared == ["even"]


def test_if_all_gpus_fail_the_last_one_says_why(task: Task) -> None:  # noqa: F811
    with pytest.raises(MachineError, match="device lost"):
        tuned(task, Board(fails="dies"), Board(fails="dies"))


def test_other_models_and_busy_gpus_take_no_part() -> None:
    h100 = Gpu("NVIDIA H100", "sm_90", 132, 80 << 30, 50 << 20, "13.0")
    busy = {1: "other work keeps it busy (97% of the time)"}
    chosen, remarks = taking_part([H200, H200, h100, H200], busy.get)
    assert chosen == [0, 3]
    assert remarks[0] == "GPU 1 (NVIDIA H200) is left out: other work keeps it busy (97% of the time)"
    assert "another model than GPU 0, NVIDIA H200" in remarks[1]
    assert taking_part([H200, H200], {0: "x", 1: "x"}.get)[0] == [0]
