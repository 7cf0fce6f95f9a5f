"""Changes of a real program are run, compared and counted; only the race is left to tests/program/test_race.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import MachineError, RequestError
from tilewright.ledger.agent_records import AgentChange
from tilewright.program import trying
from tilewright.program.checking import CheckedChange
from tilewright.program.command import ProgramCommand
from tilewright.program.early import Meanwhile
from tilewright.program.findings.record import RecordedRun
from tilewright.program.race import ProgramRace
from tilewright.program.run import ProgramFailed
from tilewright.program.trying import ProgramTrials
from tilewright.progress import Progress
from tilewright.race.stats import Interval
from tilewright.tools import child

pytest.importorskip("torch")

PROGRAM = """import torch
torch.manual_seed(0)
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
x = torch.randn(4, 8)
for step in range(4):
    loss = layer(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def change_of(script: Path, old: str, new: str, ran: str = "aten::square|aten::pow") -> AgentChange:
    text = script.read_text()
    assert old in text
    return AgentChange(id="Q1.1", item="Q1", specialist="profiling", name="change", rationale="", site="train.py:7",
                       texts={str(script): text.replace(old, new)}, ran=(ran,))  # fmt: skip


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("program") / "train.py"
    script.write_text(PROGRAM)
    return script


@pytest.fixture(scope="module")
def trials(script: Path) -> Iterator[ProgramTrials]:
    shown: dict[str, list[tuple[int, str]]] = {}

    def progress(stage: str, done: int, total: int | None, note: str = "") -> None:
        shown.setdefault(stage, []).append((done, note))

    command = ProgramCommand.of("train.py", script.parent)
    trials = ProgramTrials(command, steps=4, run_seconds=120.0, race_seconds=0.0, progress=progress)
    baseline = trials.baseline({}, {}, record=True)
    assert (baseline.kind, baseline.device) == ("baseline", "this CPU")
    assert baseline.values["steps"] == 4
    assert baseline.values["median step, µs"] > 0.0
    yield trials
    counts = [done for done, _ in shown["runs"]]
    assert counts == sorted(counts) and counts[-1] > 3, "no count goes back"
    assert "a run is ended after 120 s" in shown["runs"][0][1]
    assert script.read_text() == PROGRAM  # every version ran in a copy


def test_a_change_that_computes_something_else_is_not_raced(trials: ProgramTrials, script: Path) -> None:
    trial = trials.judge(change_of(script, "square()", "abs()"), {}, asked=True, seconds=0.0)
    assert (trial.kept, trial.failed_at, trial.why, trial.race) == (False, "correctness", "inapplicable", None)
    assert trial.outputs is not None and trial.outputs.verdict == "different"


def test_a_change_that_fails_says_how(trials: ProgramTrials, script: Path) -> None:
    trial = trials.judge(change_of(script, "square()", "squared()"), {}, asked=True, seconds=0.0)
    assert (trial.kept, trial.failed_at) == (False, "implement")
    assert "has no attribute 'squared'" in trial.reason and "\n" not in trial.reason


def test_a_change_with_a_wrong_import_is_refused_before_it_runs(trials: ProgramTrials, script: Path) -> None:
    """The import is caught, so the program would run as before."""
    (script.parent / "ops.py").write_text("def fused(x):\n    return x\n")
    added = "import torch\ntry:\n    from ops import fuse\nexcept ImportError:\n    fuse = None\n"
    ran = trials._ran
    trial = trials.judge(change_of(script, "import torch\n", added), {}, asked=True, seconds=0.0)
    assert (trial.kept, trial.failed_at, trial.race, trials._ran) == (False, "implement", None, ran)
    assert "train.py uses 'fuse' of ops.py, which does not have it; known: fused" in trial.reason


def test_a_change_that_does_not_run_is_not_kept(trials: ProgramTrials, script: Path) -> None:
    dead = change_of(script, "import torch\n", "import torch\nif False:\n    torch.fft\n", ran="aten::fft")
    trial = trials.judge(dead, {}, asked=True, seconds=0.0)
    assert (trial.kept, trial.failed_at) == (False, "implement")
    assert trial.run.values == {"aten::fft, before": 0.0, "aten::fft, after": 0.0}


def test_a_right_change_is_raced_and_the_count_of_the_race_has_its_name(
    trials: ProgramTrials, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a race without time blocks the change."""
    shown: list[tuple[object, ...]] = []
    race_programs = trying.race_programs

    def race(*given: Any, progress: Progress, **named: Any) -> ProgramRace | ProgramFailed:
        progress("race", 3, 25, "note")
        return race_programs(*given, progress=progress, **named)

    monkeypatch.setattr(trying, "race_programs", race)
    monkeypatch.setattr(trials, "progress", lambda *what: shown.append(what))
    changed = change_of(script, "square().mean()", "pow(2).mean() + torch.zeros(())", ran="aten::zeros|aten::add")
    trial = trials.judge(changed, {}, asked=True, seconds=0.0)
    assert trial.outputs is not None and trial.outputs.verdict in ("equal", "within tolerance")
    assert ("race of change", 3, 25, "note") in shown
    assert (trial.failed_at, trial.why) == ("validate", "blocked")
    assert trial.race is not None and trial.race.verdict == "failed"


def test_the_first_runs_are_enough_for_the_findings(trials: ProgramTrials, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version with other texts is recorded in a run of its own."""
    shown: list[str] = []
    monkeypatch.setattr(trials, "progress", lambda stage, *_: shown.append(stage))
    assert trials._recorded is not None and isinstance(trials._recorded[1], RecordedRun), trials._recorded
    trials.findings({})
    assert shown == []
    trials.findings({trials.command.script: PROGRAM.replace("range(4)", "range(5)")})
    assert set(shown) == {"recorded run"}


def test_the_copies_of_a_race_start_while_the_outputs_are_checked_and_end_if_they_are_wrong(
    trials: ProgramTrials, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    check = trials._check

    def checked(*given: Any) -> CheckedChange:
        started.append(len(child._running))
        return check(*given)

    monkeypatch.setattr(trials, "race_seconds", 60.0)
    monkeypatch.setattr(trials, "_check", checked)
    before = len(child._running)
    trial = trials.judge(change_of(script, "square()", "abs()"), {}, asked=True, seconds=0.0)
    assert (trial.kept, trial.failed_at, trial.race) == (False, "correctness", None)
    assert started[0] >= before + 2 and len(child._running) == before


def test_a_change_that_fails_beside_the_copies_of_its_race_is_checked_again_alone(
    trials: ProgramTrials, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first observed run of the changed program fails, as one that lacks memory. The second does not."""

    def race(*_: object, meanwhile: Meanwhile | None = None, **__: object) -> ProgramFailed:
        if meanwhile is not None:
            meanwhile()
        return ProgramFailed("race", "no time")

    monkeypatch.setattr(trying, "race_programs", race)
    once = (
        f"import os, torch\nmark = {str(tmp_path / 'mark')!r}\nif not os.path.exists(mark):\n"
        "    open(mark, 'w').close()\n    raise SystemExit('out of memory')\n"
    )
    changed = change_of(script, "import torch\n", once, ran="aten::pow|aten::square")
    trial = trials.judge(replace(changed, ran=()), {}, asked=True, seconds=0.0)
    assert (tmp_path / "mark").exists() and trial.run.verdict == "no pattern"
    assert trial.outputs is not None and trial.outputs.verdict in ("equal", "within tolerance")
    assert trial.failed_at == "validate" and "no time" in trial.reason


def test_what_is_needed_is_estimated_from_runs_and_races(trials: ProgramTrials) -> None:
    before = trials.needed()
    assert before.change > before.effect > trials._original.wall_s
    trials._races.extend([3.0, 1e6, 2.0])
    assert trials.needed() == (trials._original.wall_s + 3.0, 3.0)


def test_a_kept_change_whose_edit_was_refused_is_not_counted(
    trials: ProgramTrials, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = ProgramRace(Interval(0.5, 0.6, 0.7, 0.95, 6), 2.0, 1.0, {}, 6, "faster", "")
    monkeypatch.setattr(trials, "_race", lambda *_, **__: faster)
    changed = change_of(script, "square().mean()", "pow(2).mean() + torch.zeros(())", ran="aten::zeros$")
    first = trials.judge(changed, {}, asked=True, seconds=0.0)
    again = trials.judge(changed, {}, asked=True, seconds=0.0)
    assert first.kept and first.run.values == again.run.values


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("raise SystemExit('no data here')\n", RequestError, "fails as it is, before any change: no data here"),
        ("print(1)\n", RequestError, "torch"),
        ("import torch\ntorch.zeros(2, device='cuda')\n", MachineError, "needs a GPU, and there is none here"),
    ],
)
def test_a_program_that_cannot_be_measured_is_one_line(
    tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    import torch

    if error is MachineError and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(error, match=message) as raised:
        ProgramTrials(ProgramCommand.of("train.py", tmp_path), steps=2).baseline({}, {})
    assert "\n" not in str(raised.value)
