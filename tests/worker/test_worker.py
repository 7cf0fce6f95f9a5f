"""The worker's contestants on a CPU, with Python functions in place of kernels: versions under the baseline's judge."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the worker keeps its memory in torch")

from tilewright.launching import cuda  # noqa: E402
from tilewright.launching.driver import ProgramLaunch  # noqa: E402
from tilewright.race.protocol import Budget  # noqa: E402
from tilewright.race.rules import Policy  # noqa: E402
from tilewright.records import Configuration  # noqa: E402
from tilewright.worker.messages import (  # noqa: E402
    CheckOutputs,
    Configured,
    Message,
    OpenTask,
    PrepareInputs,
    Program,
    RaceField,
    Refused,
    Running,
    Source,
    TimeRounds,
    decode,
    encode,
    send,
)
from tilewright.worker.process import worker as worker_module  # noqa: E402
from tilewright.worker.process.bound import BoundLaunch  # noqa: E402
from tilewright.worker.process.examiner import Prepared  # noqa: E402
from tilewright.worker.process.torch_backend import TorchBackend  # noqa: E402
from tilewright.worker.process.worker import ANSWERS, Worker, failure  # noqa: E402

TEXT = """\
import tilewright as tw

def kernel(x, y, FACTOR):
    y.copy_(FACTOR * x)

task = tw.Task(
    name="double",
    tensors={"x": tw.Tensor(("M",), "float32"), "y": tw.Output(("M",), "float32")},
    reference=lambda x: 2 * x,
    launch=lambda x, y, config: tw.Launch(kernel, (1,), (x, y, config.FACTOR)),
    flops=lambda M: M,
    space=tw.Space(constants={"FACTOR": (2, 3)}, shipped={"FACTOR": 2}),
    workloads={"a": {"M": 64}, "b": {"M": 32}},
)
"""


class Clock:
    """A clock whose times are the number of the launch: it runs what it is given, on a stream of its own."""

    def __init__(
        self, runners: Sequence[Any], policy: Policy, monitor: Any, sets: Any, announce: Callable[[int], None]
    ) -> None:
        self.runners, self.sets = runners, sets
        for index in range(len(runners)):
            announce(index)

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, *_: object) -> None: ...

    def round(self, order: Sequence[int]) -> list[float]:
        self.sets.swap()
        for index in order:
            self.sets.spoil()
            self.runners[index](7)
        return [10.0 + index for index in order]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, dict[str, str]]:
    """The files of the run, of which the user's has changed since the run began."""
    user = tmp_path / "ops.py"
    user.write_text(TEXT.replace("2 * x", "7 * x"))
    (tmp_path / "baseline").mkdir()
    (tmp_path / "baseline" / "ops.py").write_text(TEXT)
    return {"baseline": {str(user): str(tmp_path / "baseline" / "ops.py")}}


def program(factor: float) -> Program:
    """Stands for a cubin that multiplies by ``factor``."""
    return Program("", f"times {factor}", (1,), ())


@pytest.fixture
def worker(files: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Worker:
    def on_cpu(task: Any, config: Any, dims: Any, board: Any, tensors: Any) -> BoundLaunch:
        launch = task.launched(config, dims, tensors, board)
        return BoundLaunch(lambda stream: launch.kernel(*launch.args), "kernel")

    monkeypatch.setattr(worker_module, "detect", lambda: SimpleNamespace(board=None))

    def launch(program: Program, tensors: Any, own_code: bool = False) -> Callable[[Any], None]:
        how, factor = program.symbol.split()
        if how != "times":
            return lambda stream: CHEATS[how](tensors["x"], tensors["y"], stream)
        return lambda stream: tensors["y"].copy_(float(factor) * tensors["x"])

    monkeypatch.setattr(worker_module, "bound", on_cpu)
    monkeypatch.setattr(worker_module, "ProgramLaunch", launch)
    monkeypatch.setattr(worker_module, "GpuClock", Clock)
    (user,) = files["baseline"]
    made = Worker(OpenTask(user, tuple(files["baseline"].items())), io.StringIO())
    made.prepared = Prepared(made.task, lambda task, dims: TorchBackend("cpu"))
    return made


def asked(worker: Worker, step: Message) -> tuple[Any, list[Message]]:
    """The answer, and what was said before it."""
    worker.out.seek(0)
    worker.out.truncate()
    sent = decode(encode(step))
    try:
        reply = ANSWERS[type(sent)](worker, sent)
    except Exception as error:
        reply = failure(error)
    send(worker.out, reply)
    said = [decode(line) for line in worker.out.getvalue().splitlines()]  # type: ignore[attr-defined]
    return said[-1], said[:-1]


def verdict(worker: Worker, source: Source) -> str:
    said, _ = asked(worker, CheckOutputs(source))
    return str(said.checked.verdict)


def configured(factor: int) -> Configured:
    return Configured(Configuration.of({"FACTOR": factor}))


def test_the_judge_is_the_task_as_it_was_opened(worker: Worker) -> None:
    """The user's changed file has no say."""
    asked(worker, PrepareInputs("a", 1))
    assert verdict(worker, program(2)) == "correct"
    assert verdict(worker, program(2.01)) == "incorrect"
    assert verdict(worker, configured(3)) == "incorrect"
    assert verdict(worker, configured(2)) == "correct"


def test_prepare_says_whether_it_was_there(worker: Worker) -> None:
    new = [asked(worker, PrepareInputs(name, 1))[0].new for name in ("a", "b", "a", "b")]
    assert new == [True, True, False, False]


def pairs(*factors: float) -> TimeRounds:
    return TimeRounds(tuple(map(program, factors)), Budget(30, 60, 5), Policy(), 1)


def test_a_confirmation_has_a_copy_of_the_incumbent_as_its_last_column(worker: Worker) -> None:
    asked(worker, PrepareInputs("a", 9, True))
    done, before = asked(worker, pairs(2, 2))
    assert done.samples_us == ((10.0,) * 30, (11.0,) * 30, (12.0,) * 30)
    assert done.after_timing is None and done.monitor
    assert before == [Running(0), Running(1), Running(1), Running(None)], "a hang of the copy is the incumbent's"


def test_each_capture_is_made_anew_in_a_drawn_order(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """trust.md 42: code that is loaded anew, and samples that stand by version whatever the order was."""
    loaded: list[tuple[float, bool]] = []

    def launch(program: Program, tensors: Any, own_code: bool = False) -> Callable[[Any], None]:
        factor = float(program.symbol.split()[1])
        loaded.append((factor, own_code))

        def run(stream: Any) -> None:
            tensors["y"].copy_(factor * tensors["x"])

        run.us = factor  # type: ignore[attr-defined]
        return run

    class ByFactor(Clock):
        def round(self, order: Sequence[int]) -> list[float]:
            super().round(order)
            return [self.runners[index].us for index in order]

    monkeypatch.setattr(worker_module, "ProgramLaunch", launch)
    monkeypatch.setattr(worker_module, "GpuClock", ByFactor)
    asked(worker, PrepareInputs("a", 9, True))
    done, before = asked(worker, replace(pairs(2, 3, 4), captures=6))
    assert done.captures == (5,) * 6
    assert done.samples_us == ((2.0,) * 30, (3.0,) * 30, (4.0,) * 30, (3.0,) * 30)
    captures = [before[at : at + 5] for at in range(0, 30, 5)]
    orders = [[one.at for one in capture[:4]] for capture in captures]
    assert all(sorted(order) == [0, 1, 1, 2] for order in orders) and len({tuple(order) for order in orders}) > 2
    assert [capture[4:] for capture in captures] == [[Running(None)]] * 6
    assert [int(factor) - 2 for factor, own in loaded if own] == [at for order in orders for at in order]


def test_captures_end_with_the_seconds_but_not_before_the_fewest(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(worker, PrepareInputs("a", 9, True))
    for fewest, captures in ((16, (2,) * 8), (8, (1,) * 8), (0, (1,))):
        done, _ = asked(worker, replace(pairs(2, 2), captures=8, budget=Budget(80, 0.0, fewest)))
        assert done.captures == captures

    now = 0.0

    class Slow(Clock):
        def __init__(self, *arguments: Any) -> None:
            nonlocal now
            super().__init__(*arguments)
            now += 20

    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(worker_module, "GpuClock", Slow)
    for fewest, captures in ((8, (10,) * 8), (4, (10,) * 4)):
        done, _ = asked(worker, replace(pairs(2, 2), captures=8, budget=Budget(80, 40.0, fewest)))
        assert done.captures == captures, "what a capture takes is time that its rounds do not count"


def test_what_is_wrong_after_timing_is_found(worker: Worker) -> None:
    """trust.md 12."""
    asked(worker, PrepareInputs("a", 9, True))
    said, _ = asked(worker, pairs(2.01, 2))
    assert "after timing" in said.after_timing


# trust.md 38: work that is left out in later launches

SAVED: list[str] = []
"""One entry for each launch that did no work."""
KEPT: dict[str, Any] = {}


def already_there(x: Any, y: Any, stream: int | None) -> None:
    if torch.equal(y, 2 * x):
        SAVED.append("the output holds the answer")
    else:
        y.copy_(2 * x)


def kept_by_contents(x: Any, y: Any, stream: int | None) -> None:
    """Keeps its last answer, and the inputs that it belongs to."""
    if "x" in KEPT and torch.equal(x, KEPT["x"]):
        SAVED.append("the inputs are those of the last launch")
    else:
        KEPT.update(x=x.clone(), y=2 * x)
    y.copy_(KEPT["y"])


def only_checked(x: Any, y: Any, stream: int | None) -> None:
    """Does nothing in a launch that is timed."""
    if stream is None:
        y.copy_(2 * x)


def half_is_timed(x: Any, y: Any, stream: int | None) -> None:
    y[: len(y) if stream is None else len(y) // 2].copy_(2 * x[: len(y) if stream is None else len(y) // 2])


CHEATS = {f.__name__: f for f in (already_there, kept_by_contents, only_checked, half_is_timed)}


def raced(worker: Worker, name: str, copied: int = 1) -> Any:
    """A confirmation of a cheat against an honest program, after the check."""
    cheat = Program("", f"{name} 2", (1,), ())
    asked(worker, PrepareInputs("a", 9, True))
    assert verdict(worker, cheat) == "correct"
    SAVED.clear()
    return asked(worker, TimeRounds((cheat, program(2)), Budget(30, 60, 5), Policy(), copied))[0]


@pytest.mark.parametrize("name", ["already_there", "kept_by_contents"])
def test_an_answer_that_is_kept_saves_no_work(worker: Worker, name: str) -> None:
    KEPT.clear()
    said = raced(worker, name)
    assert said.after_timing is None and SAVED == []
    assert said.monitor["outputs"] == "poisoned before each launch"
    assert said.monitor["alternating_share_of_inputs"] == {"x": 1.0}


@pytest.mark.parametrize("name", ["only_checked", "half_is_timed"])
def test_what_is_judged_after_timing_is_a_timed_launch(worker: Worker, name: str) -> None:
    assert "after timing: 'y'" in raced(worker, name).after_timing
    cheat = Program("", f"{name} 2", (1,), ())
    said, _ = asked(worker, RaceField((cheat, program(2)), ((), ()), 0, Policy(max_rounds=60)))
    assert said.race.winner == 0 and "after timing: " in said.after_timing


def test_a_race_takes_versions_as_it_takes_configurations(worker: Worker) -> None:
    asked(worker, PrepareInputs("a", 1))
    versions = (program(2), program(2.0))
    for sources in (versions, (configured(2), configured(2))):
        said, _ = asked(worker, RaceField(sources, ((), ()), 0, Policy(max_rounds=60)))
        assert said.race.winner == 0
        assert [row.state for row in said.race.candidates] == ["leader", "dropped"]


def test_a_worker_without_the_drivers_bindings_says_so(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real launch, which needs them, with a fix and as no mistake of the task."""
    monkeypatch.setattr(worker_module, "ProgramLaunch", ProgramLaunch)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    cuda.driver.cache_clear()
    asked(worker, PrepareInputs("a", 1))
    said, _ = asked(worker, CheckOutputs(program(2)))
    assert isinstance(said, Refused) and said.machine and "fix: pip install" in said.error
