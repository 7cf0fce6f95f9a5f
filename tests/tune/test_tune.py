"""The tuning path without a GPU: predicted, never called measured; an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.processes import own_children, until

from tilewright.compile import compile as compile_module
from tilewright.compile.compile import compile_all
from tilewright.errors import TaskError, UnknownChoice
from tilewright.hardware import machine
from tilewright.hardware.architectures import DEFAULT_ARCH
from tilewright.hardware.gpu import Gpu
from tilewright.languages.base import Lowered
from tilewright.languages.cutile.cutile import CuTile
from tilewright.ledger.tunings import TuneLedger
from tilewright.progress import BEST
from tilewright.race.rules import Policy
from tilewright.records import Candidate, Failed, TuningResult
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tune import schedule
from tilewright.tune import tune as tuning
from tilewright.tune.as_json import to_json
from tilewright.tune.field import Field
from tilewright.tune.tune import tune
from tilewright.worker import session as worker_session

OPS = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel
def scale(x, y, TILE: ct.Constant[int], BIAS: ct.Constant[int]):
    t = ct.load(x, (ct.bid(0), 0), (TILE, 64))
    ct.store(y, (ct.bid(0), 0), t * 2 + BIAS)

task = tw.Task(
    name="scale",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
    reference=lambda x, bias: 2 * x + bias,
    launch=lambda x, y, M, bias, config: tw.Launch(scale, (-(-M // config.TILE),), (x, y, config.TILE, bias)),
    flops=lambda M, N: M * N,
    independent=("M",),
    space=tw.Space(
        constants={"TILE": (16, 32)},
        hints={"occupancy": (None, 2)},
        shipped={"TILE": 32, "occupancy": None},
    ),
    workloads={"even": {"M": 4096, "N": 64, "bias": 0}, "odd": {"M": 4095, "N": 64, "bias": 1}},
)
"""
SEED = 7
CONTRACT = {"machine", "measured", "workloads"}
WORKLOAD_CONTRACT = {"workload", "best", "tied", "candidates"}
CANDIDATE_CONTRACT = {"config", "predicted_us", "measured_us", "interval_us"}


@pytest.fixture(autouse=True, scope="module")
def _no_gpu() -> Iterator[None]:
    """These are the tests of a machine without one, whatever this machine has. Equal bytecode is really
    compiled and read once in all of them: test_compile.py is about compiling."""
    assemble, read_all = CuTile.assemble, compile_module.read_all
    built: dict[Any, Any] = {}
    codes: dict[bytes, Any] = {}

    def assemble_once(self: CuTile, lowered: Lowered, seconds: float) -> Any:
        done = built.get(lowered.identity) or assemble(self, lowered, seconds)
        if not isinstance(done, Failed):  # such as a compiler that a mistake in the task stopped
            built[lowered.identity] = done
        return done

    def read_once(cubins: list[bytes]) -> list[Any]:
        new = [cubin for cubin in dict.fromkeys(cubins) if cubin not in codes]
        codes.update(zip(new, read_all(new), strict=True))
        return [codes[cubin] for cubin in cubins]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "detect", lambda: None)
        patch.setattr(CuTile, "assemble", assemble_once)
        patch.setattr(compile_module, "read_all", read_once)
        yield


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tuning") / "ops.py"
    path.write_text(OPS)
    return path


@pytest.fixture(scope="module")
def task(file: Path) -> Task:
    return load_task(str(file))


@pytest.fixture(scope="module")
def result(task: Task) -> TuningResult:
    return tune(task, arch="sm_90", seed=SEED, store=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The architectures that compilers were started for."""
    found: list[str] = []
    assemble = CuTile.assemble

    def counting(self: CuTile, lowered: Lowered, seconds: float) -> Any:
        found.append(lowered.arch)
        return assemble(self, lowered, seconds)

    monkeypatch.setattr(CuTile, "assemble", counting)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TuneLedger]:
    with TuneLedger(tmp_path / "ledger.db") as one:
        yield one


# What comes out


def test_nothing_is_measured_without_a_gpu(result: TuningResult) -> None:
    """Issue 3: without a GPU the interpreter verifies, and the result says so."""
    assert result.measured is False
    assert result.machine.gpu is None and result.machine.arch == "sm_90"
    for workload in result.workloads:
        assert workload.race is None and workload.tied == ()
        assert "predicted, not measured" in workload.reason
        for candidate in workload.candidates:
            assert candidate.measured is None
            assert candidate.status in ("predicted", "duplicate", "screened")
            assert candidate.checked is not None and candidate.reason
            if candidate.status == "predicted":
                assert candidate.checked.verdict == "correct on reduced shapes"
                assert "by the interpreter, not on a GPU" in candidate.checked.reason
            else:
                assert candidate.checked.verdict == "unverified"


def test_a_faster_prediction_that_is_not_the_best_is_named(result: TuningResult) -> None:
    """A candidate that is correct at full size comes before one that is correct on reduced shapes only."""
    first, second = [each for each in result.workloads[0].candidates if each.predicted and each.checked][:2]
    assert first.checked is not None
    slower = replace(second, predicted=replace(first.predicted, us=2 * first.predicted.us))
    best = replace(slower, checked=replace(first.checked, verdict="correct"))
    field = object.__new__(Field)
    field.tried = [best.configuration, first.configuration]
    field.candidates = {best.configuration: best, first.configuration: first}
    said = field._faster_than(best)
    assert f"{first.configuration} is predicted faster, but is only '{first.checked.verdict}'" in said
    assert field._faster_than(first) == ""


def test_the_best_is_the_shortest_predicted(result: TuningResult) -> None:
    for workload in result.workloads:
        assert workload.best in workload.candidates
        raceable = [one for one in workload.candidates if one.status == "predicted"]
        assert predicted_us(workload.best) == min(map(predicted_us, raceable))


def predicted_us(candidate: Candidate | None) -> float:
    assert candidate is not None and candidate.predicted is not None
    return candidate.predicted.us


def test_every_configuration_of_every_workload_is_a_row(task: Task, result: TuningResult) -> None:
    """trust.md 34; in the order of the space."""
    assert [one.workload.name for one in result.workloads] == ["even", "odd"]
    for workload in result.workloads:
        expected = task.space.configurations(90, workload.workload.dims)
        assert tuple(one.configuration for one in workload.candidates) == expected
        assert workload.shipped == task.space.shipped == expected[0]


def test_the_json_is_strict_and_keeps_its_contract(result: TuningResult) -> None:
    """Issue 2, "Commands": the names that scripts rely on."""
    text = json.dumps(to_json(result), allow_nan=False)
    said = json.loads(text)
    assert said.keys() >= CONTRACT
    assert said["measured"] is False
    assert said["note"] == "predicted, not measured"
    for workload in said["workloads"]:
        assert workload.keys() >= WORKLOAD_CONTRACT
        assert workload["best"]["predicted_us"] > 0
        assert workload["best"]["measured_us"] is None
        for candidate in (workload["best"], *workload["candidates"]):
            assert candidate.keys() >= CANDIDATE_CONTRACT
            assert candidate["config"].keys() == {"TILE", "occupancy"}
            assert candidate["verdict"] == (
                "correct on reduced shapes" if candidate["status"] == "predicted" else "unverified"
            )
        assert workload["best"] in workload["candidates"]
    assert said["machine"]["arch"] == "sm_90"


def test_the_wall_time_of_each_stage_is_recorded(result: TuningResult) -> None:
    assert result.seconds["compile"] > 0
    assert result.seconds["total"] >= result.seconds["compile"]
    assert result.seconds["race"] == 0


def test_only_the_named_workloads_are_tuned(task: Task) -> None:
    found = tune(task, arch="sm_90", workloads=["odd"])
    assert [one.workload.name for one in found.workloads] == ["odd"]
    with pytest.raises(UnknownChoice, match="unknown workload 'huge'; known: even, odd"):
        tune(task, arch="sm_90", workloads=["huge"])


def test_an_unknown_architecture_is_answered_with_the_choices(task: Task, started: list[str]) -> None:
    with pytest.raises(UnknownChoice, match="sm_90"):
        tune(task, arch="sm_17")
    assert started == []


def test_without_an_architecture_the_default_is_taken(task: Task, started: list[str]) -> None:
    found = tune(task, workloads=["even"])
    assert found.machine.arch == DEFAULT_ARCH
    assert set(started) == {DEFAULT_ARCH}
    assert "choose with --arch" in (machine.target_of(None, None).note or "")


def test_another_architecture_than_the_gpus_is_predicted(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("NVIDIA H200", "sm_90", 132, 141 << 30, 50 << 20, "13.0")
    monkeypatch.setattr(tuning, "detect", lambda: gpu)
    target = machine.target_of("sm_100", gpu)
    assert not target.measured and "sm_100 is predicted, not measured" in (target.note or "")
    assert machine.target_of("sm_90", gpu).measured and machine.target_of(None, gpu).measured
    assert tune(task, arch="sm_100", workloads=["even"]).measured is False


def test_progress_counts_every_candidate(task: Task) -> None:
    seen: list[tuple[str, int, int | None]] = []
    tune(task, arch="sm_90", progress=lambda stage, done, total, note="": seen.append((stage, done, total)))
    assert [one for one in seen if one[0] == "compile"] == [("compile", n, 8) for n in range(1, 9)]
    assert {one[0] for one in seen} == {"compile", "verify", BEST}


def test_who_stands_for_equal_code_does_not_depend_on_who_arrives_first(
    task: Task, result: TuningResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """trust.md 28: two processes agree."""
    for order in (forwards, backwards):
        monkeypatch.setattr(schedule, "compile_all", order)
        other = tune(task, arch="sm_90", seed=SEED)
        assert [one.best for one in other.workloads] == [one.best for one in result.workloads]
        assert [one.candidates for one in other.workloads] == [one.candidates for one in result.workloads]


def forwards(task: Task, units: Any, *, on_done: Any, **rest: Any) -> Any:
    """`compile_all`, but what it compiled arrives in the order of the units."""
    compiled = compile_all(task, units, **rest)
    for one in compiled:
        on_done(one)
    return compiled


def backwards(task: Task, units: Any, *, on_done: Any, **rest: Any) -> Any:
    compiled = compile_all(task, units, **rest)
    for one in reversed(compiled):
        on_done(one)
    return compiled


# What goes wrong


def test_when_every_candidate_fails_there_is_no_best(task: Task, store: TuneLedger) -> None:
    broken = replace(task, launch=lambda x, y, M, config: launch_with(task, 48, x, y, M, config))
    found = tune(broken, arch="sm_90", store=store)
    for workload in found.workloads:
        assert workload.best is None
        assert workload.reason == "no candidate compiled"
        for candidate in workload.candidates:
            assert candidate.status == "failed"
            assert candidate.reason.startswith("front end: ops.py:6: ")
    said = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert said["workloads"][0]["best"] is None
    assert store.load(found.run) == found


def test_one_candidate_that_fails_is_a_row_among_the_others(task: Task) -> None:
    def launch(x: Any, y: Any, M: int, config: Any) -> Any:
        return launch_with(task, 48 if config.TILE == 16 else config.TILE, x, y, M, config)

    (workload,) = tune(replace(task, launch=launch), arch="sm_90", workloads=["even"]).workloads
    status = {(one.configuration.TILE, one.status == "failed") for one in workload.candidates}
    assert status == {(16, True), (32, False)}
    assert workload.best is not None and workload.best.configuration.TILE != 16


def test_a_candidate_that_the_interpreter_finds_wrong_is_never_the_best(task: Task) -> None:
    """Issue 3: `tune` without a GPU verifies by the interpreter."""

    def wrong_from(tile: int) -> Callable[..., Any]:
        def launch(x: Any, y: Any, M: int, bias: int, config: Any) -> Any:
            return task.launch(x, y, M, bias + (tile <= config.TILE), config)

        return launch

    (workload,) = tune(replace(task, launch=wrong_from(32)), arch="sm_90", workloads=["even"]).workloads
    assert workload.best is not None and workload.best.configuration.TILE == 16
    assert workload.reason.startswith("the shortest predicted time of the candidates that the interpreter finds")
    wrong = [one for one in workload.candidates if one.status == "wrong"]
    assert wrong and all(one.configuration.TILE == 32 and one.checked for one in wrong)
    assert all(one.checked.verdict == "incorrect" and "should be" in one.reason for one in wrong if one.checked)
    (workload,) = tune(replace(task, launch=wrong_from(0)), arch="sm_90", workloads=["even"]).workloads
    assert workload.best is None and workload.reason == "every candidate is incorrect"


def launch_with(task: Task, tile: int, x: Any, y: Any, M: int, config: Any) -> Any:
    launch = task.launch(x, y, M, 0, config)
    return replace(launch, args=(x, y, tile, 0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": lambda x: x.T}, r"has shape \(64, \d+\) for 'y'"),
        ({"reference": lambda x: 0 * x}, "does not depend on the inputs"),
        ({"reference": lambda x: x @ x}, "reference of task 'scale' failed: ValueError"),
        ({"flops": lambda M, K: M}, "flops of task 'scale' asks for 'K'; known: M, N"),
        ({"flops": lambda M: "many"}, "flops of task 'scale' failed: "),
        ({"launch": lambda x, z: None}, "asks for 'z'; known: M, N, bias, x, y, config, hardware"),
        ({"launch": lambda x: (1, 2)}, "returned tuple; return tilewright.Launch"),
    ],
)
def test_a_mistake_in_the_task_is_one_line_and_stores_nothing(
    task: Task, store: TuneLedger, changes: dict[str, Callable[..., Any]], message: str
) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        tune(replace(task, **changes), arch="sm_90", store=store)
    assert "\n" not in str(caught.value)
    assert all(not run.workloads for run in store.runs())
    assert "launch" in changes or store.runs() == (), "a refused request is no run"


# Resuming


class Interrupt:
    """Ctrl-C when ``at`` candidates are done."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, stage: str, done: int, total: int | None, note: str = "") -> None:
        if stage == "compile" and done >= self.at:
            raise KeyboardInterrupt


def test_a_run_is_stored_as_it_was_returned(task: Task, store: TuneLedger) -> None:
    found = tune(task, arch="sm_90", store=store)
    assert store.load(found.run) == found
    (summary,) = store.runs()
    assert summary.finished and not summary.measured
    assert summary.workloads == ("even", "odd")


def test_a_run_is_in_the_default_ledger_unless_it_is_not_wanted(task: Task) -> None:
    assert not tune(task, arch="sm_90", workloads=["even"], store=False).run
    found = tune(task, arch="sm_90", workloads=["even"])
    with TuneLedger() as ledger:
        assert [one.run for one in ledger.runs()] == [found.run]
        assert ledger.load(found.run) == found
    assert found.seconds["verify"] > 0, "the interpreter verified"


def test_a_run_keeps_the_command_that_makes_it_again(task: Task, store: TuneLedger) -> None:
    policy = Policy(tie_band=0.02)
    found = tune(task, arch="sm_90", workloads=["even"], top=3, seed=5, policy=policy, store=store)
    record = store.run(found.run)
    assert record.reproduce == (
        f"tilewright tune {record.where} --arch sm_90 --top 3 --fresh --workload even --tie-band 0.02 --seed 5"
    )
    assert (record.board, record.top, record.seed, record.policy["tie_band"]) == ("H200", 3, 5, 0.02)


def test_an_interrupted_run_goes_on_where_it_stopped(
    task: Task, store: TuneLedger, started: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(schedule, "compile_all", forwards)
    with pytest.raises(KeyboardInterrupt):
        tune(task, arch="sm_90", store=store, progress=Interrupt(at=7))
    (summary,) = store.runs()
    assert summary.finished is None
    assert summary.workloads == ("even",), "whole workloads only"
    before = len(started)
    whole = tune(task, arch="sm_90", store=False)
    in_full = len(started) - before
    assert store.compiled() == in_full, "of the interrupted workload, too"
    seen: list[int | None] = []

    def see(stage: str, done: int, total: int | None, note: str = "") -> None:
        if stage == "compile":
            seen.append(total)

    capsys.readouterr()
    found = tune(task, arch="sm_90", store=store, progress=see)
    assert capsys.readouterr().err == f"note: resuming run {summary.run}: 1 of 2 workloads are done\n"
    assert set(seen) == {4}, "the first workload is not compiled again"
    assert len(started) - before == in_full, "nothing is compiled again"
    assert store.compiled() == 0 and not list(store.path.parent.glob("*.compiled"))
    assert found.run == summary.run
    assert [one.workload.name for one in found.workloads] == ["even", "odd"]
    assert [one.best.configuration for one in found.workloads if one.best] == [
        one.best.configuration for one in whole.workloads if one.best
    ]
    assert store.load(found.run) == found
    assert len(store.runs()) == 1


def test_a_finished_run_is_not_resumed(task: Task, store: TuneLedger) -> None:
    first = tune(task, arch="sm_90", workloads=["even"], store=store)
    second = tune(task, arch="sm_90", workloads=["even"], store=store)
    assert first.run != second.run and len(store.runs()) == 2


@pytest.mark.parametrize("change", ["fresh", "arch", "workloads", "file"])
def test_a_run_of_another_key_is_not_resumed(file: Path, tmp_path: Path, store: TuneLedger, change: str) -> None:
    own = tmp_path / "ops.py"
    own.write_text(file.read_text())
    with pytest.raises(KeyboardInterrupt):
        tune(load_task(str(own)), arch="sm_90", store=store, progress=Interrupt(at=7))
    (interrupted,) = store.runs()
    if change == "file":
        own.write_text(own.read_text() + "\n# changed\n")
    found = tune(
        load_task(str(own)),
        arch="sm_100" if change == "arch" else "sm_90",
        workloads=["odd"] if change == "workloads" else None,
        store=store,
        fresh=change == "fresh",
    )
    assert found.run != interrupted.run


def test_ctrl_c_leaves_no_thread_and_no_compiler_behind(task: Task) -> None:
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        tune(task, arch="sm_90", progress=Interrupt(at=2))
    assert until(lambda: not set(threading.enumerate()) - before)
    for pid in own_children():
        with suppress(FileNotFoundError):  # it ended meanwhile
            assert b"tileiras" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_tuning_starts_no_worker_process(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, no process that would import torch."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a session was started")

    monkeypatch.setattr(worker_session, "spawned", refuse)
    tune(task, arch="sm_90", workloads=["even"])


def test_tune_and_inspect_are_public_names() -> None:
    import tilewright
    from tilewright.inspect.inspect import inspect

    assert tilewright.tune is tune
    assert tilewright.inspect is inspect
