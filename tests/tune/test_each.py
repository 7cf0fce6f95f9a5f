"""Several kinds of GPU tuned at once, which are simulated: each kind compiles, races and stores for itself."""

from __future__ import annotations

import base64
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.tune.test_measured import Simulated
from tests.tune.test_tune import OPS as FOUR

from tilewright.cli.main import main
from tilewright.errors import MachineError, RequestError
from tilewright.hardware.gpu import Gpu
from tilewright.hardware.machine import OtherMachine
from tilewright.ledger.tunings import TuneLedger
from tilewright.machine_code import cubin
from tilewright.plugins import plugins
from tilewright.race import protocol
from tilewright.race.rules import Policy
from tilewright.records import TuningResult
from tilewright.runtime.dispatch.parts import parts_of
from tilewright.runtime.store.config_file import load
from tilewright.task.loading import load_task
from tilewright.testing.simulated import SimulatedClock
from tilewright.tune.tune import tune, tune_each
from tilewright.worker.messages import FieldRaced, PrepareInputs, RaceField

OPS = FOUR.replace("(None, 2)", "(None,)")
"""Two configurations: the shipped one has the larger tile."""
H200 = Gpu("NVIDIA H200", "sm_90", 132, 141 << 30, 50 << 20, "13.0")
B200 = Gpu("NVIDIA B200", "sm_100", 148, 180 << 30, 126 << 20, "13.0")
LIMIT = 60.0


@dataclass
class Board(Simulated):
    """A machine with a GPU. On an H200 small tiles are fast, on a B200 large ones.

    together: waits with its first workload until the other kinds of GPU have one, too.
    """

    gpu: Gpu = H200
    together: Any = None
    dies: bool = False
    prepared: list[str] = field(default_factory=list)
    architectures: set[int] = field(default_factory=set)
    name = "board"
    made: ClassVar[dict[str, Board]] = {}

    @classmethod
    def at(cls, where: str) -> Board:
        return cls.made[where]

    def place(self, task: str) -> OtherMachine:
        return OtherMachine(self.gpu.name, self.gpu, "580.0", "x86_64")

    def _answer(self, step: Any) -> Any:
        if isinstance(step, PrepareInputs):
            if not self.prepared and self.together is not None:
                self.together.wait(LIMIT)
            self.prepared.append(step.workload)
            if self.dies:
                raise MachineError("device lost")
        return super()._answer(step)

    def _raced(self, step: RaceField) -> Any:
        self.architectures |= {cubin.read(base64.b64decode(source.cubin)).sm for source in step.sources}
        us = [10.0 + (source.grid[0] if self.gpu is B200 else -source.grid[0]) / 100 for source in step.sources]
        clock = SimulatedClock(us, seed=1)
        return FieldRaced(protocol.race(len(us), clock, step.policy, cost=step.costs, shipped=step.shipped), {}, None)


@pytest.fixture
def ops(tmp_path: Path) -> str:
    (tmp_path / "ops.py").write_text(OPS)
    return str(tmp_path / "ops.py")


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are those of grids here. ``--on board:NAME`` finds the boards."""
    monkeypatch.setattr("tests.tune.test_measured.name_of", lambda source: str(source.grid))
    monkeypatch.setattr("tilewright.executors.plugins", lambda *where: iter((*plugins(*where), Board)))
    monkeypatch.setattr(Board, "made", {})


def best(result: TuningResult | MachineError) -> dict[str, int]:
    assert isinstance(result, TuningResult), result
    return {each.workload.name: each.best.configuration.TILE for each in result.workloads if each.best}


def test_each_kind_has_its_own_code_race_and_run(ops: str, tmp_path: Path) -> None:
    """Two GPUs are of one model and share its workloads; all kinds work at the same time."""
    both = threading.Barrier(3)
    one, two, other = (Board(gpu=gpu, together=both) for gpu in (H200, H200, B200))
    with TuneLedger(tmp_path / "runs.db") as store:
        results = tune_each(ops, executors=[one, other, two], store=store, seed=3, policy=Policy(max_rounds=60))
        assert store.stored() == (4, True) and len(store.begun) == 2
        stored = {store.run(run).machine.gpu: best(store.load(run)) for run in store.begun}
        assert stored == {gpu.name: best(result) for gpu, result in zip((H200, B200), results, strict=True)}
    assert [best(each) for each in results] == [{"even": 16, "odd": 16}, {"even": 32, "odd": 32}]
    assert [one.architectures | two.architectures, other.architectures] == [{90}, {100}]
    assert len({*one.prepared}) == len({*two.prepared}) == 1 and {*one.prepared, *two.prepared} == {*other.prepared}
    assert all(each.said[-1] == "close" for each in (one, two, other))


def test_one_command_makes_one_config_file_for_all(
    ops: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Board.made.update(one=Board(), other=Board(gpu=B200))
    where = ["tune", ops, "--on", "board:one", "--on", "board:other", "--workload", "even", "--no-store", "--seed", "3"]
    assert main([*where, "--into", str(tmp_path), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["each"]
    assert (first["machine"]["gpu"], second["machine"]["gpu"]) == (H200.name, B200.name)
    table, task = load(str(tmp_path / "scale.json")), load_task(ops)
    dims = task.workload("even").dims
    for gpu, tile in ((H200, 16), (B200, 32)):
        row = table.find(parts_of(task.on(gpu.arch), dims, task.arrays(dims), gpu.board))
        assert row is not None and (row.config["TILE"], row.match) == (tile, "exact")
    assert main(where) == 0
    shown = capsys.readouterr().out
    assert shown.index(f"scale on {H200.name}") < shown.index(f"scale on {B200.name}")
    assert shown.count("correctness: PASS") == 2


def test_a_kind_whose_gpus_fail_takes_no_result_from_the_others(
    ops: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Board.made.update(one=Board(), other=Board(gpu=B200, dies=True))
    ledger = tmp_path / "runs.db"
    where = ["tune", ops, "--on", "board:one", "--on=board:other", "--workload", "even", "--store", str(ledger)]
    assert main([*where, "--json"]) == 3
    said = capsys.readouterr()
    first, second = json.loads(said.out)["each"]
    assert first["workloads"][0]["best"] and second == {"gpu": B200.name, "error": "device lost"}
    assert f"no result for {B200.name}: device lost" in said.err
    with TuneLedger(ledger) as store:
        assert best(store.load(first["run"])) == {"even": 16}


def test_several_architectures_are_predicted(ops: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", ops, "--arch", "sm_90,sm_100", "--workload", "even", "--no-store", "--json"]) == 0
    each = json.loads(capsys.readouterr().out)["each"]
    assert [(one["machine"]["arch"], one["measured"]) for one in each] == [("sm_90", False), ("sm_100", False)]
    assert all(one["workloads"][0]["best"]["predicted_us"] > 0 for one in each)


def test_what_does_not_fit_together_is_refused(ops: str) -> None:
    with pytest.raises(RequestError, match="different models .NVIDIA H200, NVIDIA B200.; fix: tilewright.tune_each"):
        tune(ops, executor=[Board(), Board(gpu=B200)], store=False)
    with pytest.raises(RequestError, match="fix: leave out --arch"):
        tune_each(ops, archs=["sm_90", "sm_100"], executors=[Board()], store=False)
    with pytest.raises(RequestError, match="the GPU of NVIDIA B200 is sm_100, not sm_90"):
        tune_each(ops, archs=["sm_90"], executors=[Board(), Board(gpu=B200)], store=False)
    with pytest.raises(MachineError, match="this machine has no GPU"):
        tune_each(ops, executors=[None, Board()], store=False)
