"""The CUDA-graph specialist (issue 17, point 4): snippets with known answers, proposals, and what it cannot do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from tests.specialists.graph_answers import SNIPPETS, answered, known, snippets

from tilewright.cli.main import app as command_line
from tilewright.errors import MachineError, RequestError
from tilewright.hardware.gpu import detect
from tilewright.program.graphs.analysis import GraphAnalysis, read_analysis
from tilewright.program.graphs.trial import GraphTrial, trial_of
from tilewright.program.run import ProgramFailed
from tilewright.specialists import cuda_graph, specialist_of
from tilewright.specialists.cuda_graph import CudaGraph
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.proposal import NoProposal

SPECIALIST = specialist_of("cuda-graph")
NO_GPU = pytest.mark.skipif(detect() is not None, reason="there is a GPU")


def asked(file: Path | str, task: str = "Apply CUDA graphs") -> Delegation:
    return Delegation("cuda-graph", task, "one step", ("latency",), file=str(file))


def test_the_snippets_are_answered_as_they_are_known() -> None:
    """Of those that were set aside, ten of ten were right when the finder was run on them, once, after it was done."""
    paths = (*snippets(aside=False), *snippets(aside=True))
    answers = {path.stem: (known(path), answered(path)) for path in paths}
    assert len(answers) == 30
    assert not {name: both for name, both in answers.items() if both[0] != both[1]}


def recorded(**more: object) -> dict[str, object]:
    """A record as a process leaves it, of a model that was captured."""
    return {
        "module": "Net", "calls": 6, "fake": [], "fake_ended": "", "gradients": False, "shapes": 1, "numbers": False,
        "waits": [], "capture": "", "replays": 20, "equal": 19, "within": 20, "worst": 0.5,
        "eager_us": [100.0, 101.0, 99.0, 100.0, 102.0, 98.0, 100.0], "replay_us": [25.0] * 7, **more,
    }  # fmt: skip


def trial(**more: object) -> GraphTrial:
    found = trial_of(recorded(**more), Path("/program"), "0a1b2c3d")
    assert isinstance(found, GraphTrial)
    return found


def test_a_record_of_a_trial_is_read() -> None:
    good = trial()
    assert good.right and not good.hazards and good.ratio.high < 0.3
    assert str(good).startswith("19 of 20 replays with changing inputs equal eager to the bit, 20 up to rounding")
    assert not trial(within=19).right
    waits = [["net.py", 7, "waits"], ["net.py", 9, "waits"]]
    bad = trial(capture="operation not permitted", capture_at=["net.py", 7], waits=waits)
    assert not bad.right and bad.captured is False and bad.note == "the capture fails: operation not permitted"
    assert [(each.place, each.kind) for each in bad.hazards] == [("net.py:7", "host-read"), ("net.py:9", "host-read")]
    assert trial(shapes=4).note == "the inputs had 4 shapes in 6 calls, and each needs a graph of its own"
    assert trial(numbers=True).note.startswith("numbers of the host among the inputs differ")


def test_a_trial_that_fails_itself_is_no_verdict() -> None:
    broken = {"module": "Net", "calls": 6, "fake": [], "fake_ended": "", "failed": "RuntimeError: out of memory"}
    found = trial_of(broken, Path("/program"), "")
    assert isinstance(found, GraphTrial) and found.captured is None and not found.right and not found.hazards
    assert found.note == "the trial itself failed: RuntimeError: out of memory"
    assert isinstance(trial_of({"module": ""}, Path("/program"), ""), ProgramFailed)


def test_a_capture_that_replays_rightly_refutes_the_source() -> None:
    read = read_analysis(SNIPPETS / "positive_activations.py")
    assert [each.kind for each in read.hazards] == ["data-shape"]
    assert not replace(read, trial=trial()).hazards
    assert replace(read, trial=trial(within=3)).hazards == read.hazards


PLAIN = """import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4))
for _ in range(4):
    {call}
"""


def script_of(folder: Path, call: str) -> Path:
    (script := folder / "program.py").write_text(PLAIN.format(call=call))
    return script


@pytest.mark.long
@NO_GPU
def test_a_program_is_analysed_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source is read, and a copy of it runs with fake tensors, before the command says what is missing."""
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    (program := tmp_path / "program").mkdir()
    script_of(program, "print(model(torch.randn(2, 4)).sum().item())")
    monkeypatch.chdir(program)
    done = CliRunner().invoke(command_line(["agent"]), ["agent", "Apply CUDA graphs to program.py", "--yes"])
    assert isinstance(done.exception, MachineError)
    assert str(done.exception).startswith("this machine cannot do that: cuda-graph needs a GPU (none here)")
    assert done.stdout.splitlines()[-1] == (
        "cuda-graph: nothing that prevents a capture was found; Sequential ran with fake tensors: "
        "no place needs values on the host"
    )


@NO_GPU
def test_without_a_gpu_nothing_is_proposed(tmp_path: Path) -> None:
    found = SPECIALIST.propose(asked(script_of(tmp_path, "model(torch.randn(2, 4))")))
    assert isinstance(found, NoProposal) and found.why == "blocked" and found.reason.startswith("no GPU here")


class Tried(CudaGraph):
    """The specialist after a trial whose record is given, because there is no GPU here."""

    def __init__(self, found: GraphTrial | None) -> None:
        self.found = found

    def _analysed(self, delegation: Delegation) -> GraphAnalysis:
        return replace(read_analysis(Path(delegation.file)), trial=self.found)


TRAINS = "model.zero_grad(); model(torch.randn(2, 4)).sum().backward()"


@pytest.mark.parametrize(
    ("call", "found", "task", "names"),
    [
        ("with torch.no_grad(): model(torch.randn(2, 4))", trial(), "", ["replayed_forward", "reduce_overhead"]),
        ("with torch.no_grad(): model(torch.randn(2, 4))", None, "", ["replayed_forward", "reduce_overhead"]),
        (TRAINS, trial(gradients=True), "", ["graphed_callables", "reduce_overhead"]),
        (TRAINS, None, "", ["graphed_callables", "reduce_overhead"]),
        (TRAINS, trial(gradients=True), "Use make_graphed_callables", ["graphed_callables"]),
        (TRAINS, trial(gradients=True), 'torch.compile(mode="reduce-overhead") for my model', ["reduce_overhead"]),
        (TRAINS, trial(gradients=True, within=19), "", ["reduce_overhead"]),
        (TRAINS, trial(gradients=True, capture="no", capture_at=["program.py", 5]), "", ["reduce_overhead"]),
    ],
)
def test_it_proposes_what_fits_the_program_and_the_trial(
    call: str, found: GraphTrial | None, task: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph, "detect", lambda: "a GPU")
    proposed = Tried(found).propose(asked(script_of(tmp_path, call), task or "Apply CUDA graphs"))
    assert not isinstance(proposed, NoProposal)
    assert [each.name for each in proposed] == names
    right = found is not None and found.right
    assert all(("in a trial, replays with changing inputs" in each.rationale) is right for each in proposed)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (trial(gradients=True, within=19), "only 19 of 20 replays give the outputs of an eager call"),
        (trial(capture="not permitted"), "the capture fails: not permitted"),
        (
            trial(capture="not permitted", capture_at=["net.py", 5]),
            "this prevents a capture: net.py:5: the capture fails",
        ),
    ],
)
def test_why_it_proposes_nothing(
    found: GraphTrial, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph, "detect", lambda: "a GPU")
    refused = Tried(found).propose(asked(script_of(tmp_path, TRAINS), "Use make_graphed_callables"))
    assert isinstance(refused, NoProposal) and refused.why == "inapplicable"
    assert refused.reason.startswith(reason)


def test_what_it_cannot_do_is_one_line(tmp_path: Path) -> None:
    (script := tmp_path / "once.py").write_text("import torch\nprint(torch.ones(2))\n")
    with pytest.raises(RequestError, match=r"once\.py has no step that could be captured: no loop calls a model"):
        SPECIALIST.answer(asked(script))
    with pytest.raises(RequestError, match=r"'gone\.py' is no Python program that can be read"):
        SPECIALIST.answer(asked("gone.py"))


def test_the_plan_shows_what_the_source_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text((SNIPPETS / "rows_repeated_by_counts.py").read_text())
    question = "Analyze train.py for CUDA Graph compatibility"
    result = CliRunner().invoke(command_line(["agent"]), ["agent", question])
    assert result.exit_code == 0
    (line,) = (each for each in result.stdout.splitlines() if "in the source" in each)
    assert re.match(r"  in the source: train\.py:14: torch\.repeat_interleave\(x, counts, dim=0\) has a size", line)
    said = json.loads(CliRunner().invoke(command_line(["agent"]), ["agent", question, "--json"]).stdout)
    assert [each.partition(" ")[0] for each in said["plan"]["seen"]] == ["train.py:14:"]
