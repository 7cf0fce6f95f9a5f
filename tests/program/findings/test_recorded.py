"""Programs that run under the recorder, each in a process of its own, as `tilewright agent` starts them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.program.findings.recorded_here import HERE

from tilewright.errors import ToolFailed
from tilewright.program.command import ProgramCommand
from tilewright.program.copies import program_copy
from tilewright.program.findings.finding import findings_in
from tilewright.program.findings.record import RecordedRun
from tilewright.program.recorded import recorded_run
from tilewright.program.run import ProgramFailed
from tilewright.program.trying import ProgramTrials
from tilewright.runtime.operations.recorder import OperationRecorder
from tilewright.runtime.operations.recording import BEFORE_MODULES, RECORDED

torch = pytest.importorskip("torch")

TRAINS = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)  # optimizer-one-by-one
total = 0.0
fast = torch.compile(lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def evaluate(x):
    model.eval()
    right = 0
    for part in x.split(16):
        right += int(model(part).argmax(1).sum())  # gradients-without-backward
    model.train()
    return right


for step in range(200):
    x = torch.randn(64, 32)
    optimizer.zero_grad(set_to_none=False)  # gradients-filled-with-zeros
    loss = (model(fast(x)) ** 2).mean()
    loss.backward()
    optimizer.step()
    total = total + loss  # graph-kept
    open("steps", "a").write(".")
    if step == 15:
        print(evaluate(torch.randn(64, 32)))  # gradients-without-backward
print(float(total))
"""

NOT_COMPILED = TRAINS.replace("torch.compile(", "(")
"""Importing what compiles takes as long as the rest of the program."""

INFERS = """
import torch

model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(6)))


def embed(x):
    first = model(x)  # gradients-without-backward
    return first + model(-x)  # gradients-without-backward


def main():
    for _ in range(12):
        embed(torch.randn(64, 32))


main()
"""


ROLLS_OUT = """
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    seen = [model(torch.randn(4, 8)) for _ in range(15)]
    torch.stack(seen).sum().backward()
    optimizer.step()
"""


def run_of(folder: Path, text: str) -> RecordedRun | ProgramFailed:
    (folder / "train.py").write_text(text)
    command = ProgramCommand.of("train.py", folder)
    with program_copy(command, {}) as copy:
        return recorded_run(copy, 120.0)


def lines_with(text: str, rule: str) -> set[int]:
    return {n for n, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {rule}")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    run = run_of(tmp_path_factory.mktemp("trains"), TRAINS)
    assert isinstance(run, RecordedRun), run
    return run


RULES = ("optimizer-one-by-one", "gradients-filled-with-zeros", "graph-kept", "gradients-without-backward")


@pytest.mark.parametrize("rule", RULES)
def test_a_training_program_is_recorded_up_to_its_first_evaluation(trained: RecordedRun, rule: str) -> None:
    """The evaluation comes after the recorded steps."""
    found = {line.line for each in findings_in(trained) if each.rule == rule for line in each.lines}
    assert found == lines_with(TRAINS, rule)


def test_a_compiled_function_is_left_out(trained: RecordedRun) -> None:
    assert not any(each.base == "rsqrt" for part in trained.stored for each in part.operations)
    assert "function-by-hand" not in {each.rule for each in findings_in(trained)}


def test_the_backward_pass_is_recorded(trained: RecordedRun) -> None:
    assert all(any(each.backward for each in part.operations) for part in trained.steps)


def test_a_program_without_steps_of_an_optimizer_has_findings_too(tmp_path: Path) -> None:
    run = run_of(tmp_path, INFERS)
    assert isinstance(run, RecordedRun), run
    found = {line.line for each in findings_in(run) if each.rule == "gradients-without-backward" for line in each.lines}
    assert found and found <= lines_with(INFERS, "gradients-without-backward")


def test_calls_of_a_model_before_its_first_training_step_are_no_steps(tmp_path: Path) -> None:
    run = run_of(tmp_path, ROLLS_OUT)
    assert isinstance(run, RecordedRun), run
    assert any(each.backward for part in run.stored for each in part.operations)
    assert "gradients-without-backward" not in {each.rule for each in findings_in(run)}


def test_a_program_that_fails_is_one_reason(tmp_path: Path) -> None:
    run = run_of(tmp_path, "import torch\ntorch.ones(2) + torch.ones(3)\n")
    assert isinstance(run, ProgramFailed)
    assert "\n" not in run.reason and "size of tensor" in run.reason


def test_a_program_without_torch_leaves_no_record(tmp_path: Path) -> None:
    run = run_of(tmp_path, "print(1)\n")
    assert isinstance(run, ProgramFailed) and "no record" in run.reason


# What it costs --------------------------------------------------------------------------------------


def calls_of(work: int, recorder: OperationRecorder | None) -> int:
    """The calls of Python functions that so many operations make."""
    x, calls = torch.randn(8), 0

    def count(frame: object, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call"

    if recorder is not None:
        recorder.start()
    sys.setprofile(count)
    for _ in range(work):
        torch.add(x, x)
    sys.setprofile(None)
    if recorder is not None:
        recorder.stop()
    return calls


def test_an_operation_costs_few_calls_whatever_ran_before() -> None:
    assert calls_of(100, None) < 5
    recorder = OperationRecorder(str(HERE))
    calls_of(1, recorder)  # torch imports more at its first operation under a mode
    first, later = calls_of(200, recorder), calls_of(200, recorder)
    assert first <= 80 * 200
    assert later <= 1.1 * first


def test_a_recorder_knows_when_torch_has_taken_a_mode_off() -> None:
    """A signal may arrive then. Modes of the program itself are none of the recorder's."""
    from torch.overrides import _pop_mode_temporarily

    recorder = OperationRecorder(str(HERE))
    assert recorder.is_whole()
    recorder.start()
    try:
        with torch.device("cpu"):
            assert recorder.is_whole()
        with _pop_mode_temporarily():
            assert not recorder.is_whole()
        assert recorder.is_whole()
    finally:
        recorder.stop()
    assert recorder.is_whole()


def test_the_record_is_small(trained: RecordedRun) -> None:
    """Of steps that are alike, only the first are stored, and only so many are recorded."""
    assert len(trained.steps) <= RECORDED / 2
    assert sum(part.count for part in trained.parts) <= 1.5 * RECORDED * trained.step_count
    assert json.dumps([len(part.operations) for part in trained.parts])


def test_data_of_many_operations_leaves_the_steps_to_be_recorded(tmp_path: Path) -> None:
    """A program may make its data element by element. Its steps are recorded, and not all of that: the recorder soon
    leaves the program alone, but not while the program uses a mode of its own."""
    (tmp_path / "train.py").write_text(
        "import torch\nfrom torch.utils._python_dispatch import _get_current_dispatch_mode as mode\n"
        f"with torch.device('cpu'):\n    rows = [torch.zeros(1) for _ in range({BEFORE_MODULES + 2000})]\n"
        "    assert mode() is not None\n"
        f"for _ in range(100000):\n    rows[0] = rows[0] + 1\nassert mode() is None\n{NOT_COMPILED}"
    )
    with program_copy(ProgramCommand.of("train.py", tmp_path), {}) as copy:
        run = recorded_run(copy, 120.0)
    assert isinstance(run, RecordedRun)
    before, *later = (part.count for part in run.parts)
    assert BEFORE_MODULES <= before < BEFORE_MODULES + 2000
    assert sum(count > 10 for count in later) >= RECORDED / 2


@pytest.mark.long
def test_an_endless_evaluation_is_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NOT_COMPILED.replace("in x.split(16)", "in iter(lambda: x, None)"))
    with program_copy(ProgramCommand.of("train.py", tmp_path), {}) as copy:
        run = recorded_run(copy, 100.0)
    assert isinstance(run, RecordedRun) and len(run.parts) > RECORDED and run.parts[-1].count > 100


# The judge ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_judge_finds_problems_in_the_version_that_it_is_given(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(INFERS)
    judge = ProgramTrials(ProgramCommand.of("train.py", tmp_path))
    assert "gradients-without-backward" in {each.rule for each in judge.findings({})}
    without = {script: INFERS.replace("    for _ in", "    torch.set_grad_enabled(False)\n    for _ in")}
    assert "gradients-without-backward" not in {each.rule for each in judge.findings(without)}
    assert script.read_text() == INFERS
    with pytest.raises(ToolFailed, match=r"^the run that records operations failed"):
        judge.findings({script: "import torch\n1 / 0\n"})
