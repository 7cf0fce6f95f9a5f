"""Real programs, run and observed. Those with torch share their runs, since importing it takes seconds."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.processes import ended, until

from tilewright.program.command import ProgramCommand
from tilewright.program.copies import COPIED_BYTES, Startable, program_copy
from tilewright.program.outputs import compare
from tilewright.program.run import ProgramFailed, ProgramRun, run_program
from tilewright.program.slices import Slicing, run_in_slices

TRAINS = """
import sys, torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 4)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        y = (q @ k.transpose(-1, -2) / 3.0).softmax(-1) @ v
        return self.out(y)

model, loss_of = Attention(), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, target = torch.randn(2, 8, 16), torch.randint(4, (16,))
for step in range(12):
    optimizer.zero_grad()
    loss = loss_of(model(x).flatten(0, 1), target)
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}")
torch.save(model.state_dict(), "last.pt")
"""
SOFTMAX = "(q @ k.transpose(-1, -2) / 3.0).softmax(-1) @ v"
BETTER = "nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], scale=1 / 3.0)[:, 0]"
CHANGES = {
    "unchanged": ("", ""),
    "nudged": ("", ""),
    "same": (SOFTMAX, BETTER),
    "other scale": (SOFTMAX, BETTER.replace("1 / 3.0", "0.34")),
    "stops learning": ("loss.backward()", "loss.backward()\n    if step > 8: optimizer.zero_grad()"),
}  # fmt: skip


def command_of(folder: Path, code: str, *words: str) -> ProgramCommand:
    (folder / "program.py").write_text(code)
    return ProgramCommand.of([sys.executable, "program.py", *words], folder)


def ran(program: Startable, **options: object) -> ProgramRun:
    run = run_program(program, seconds=120.0, **options)  # type: ignore[arg-type]
    assert isinstance(run, ProgramRun), run
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ProgramRun]:
    """A run of the unchanged program, one whose parameters are nudged, and one of each change."""
    pytest.importorskip("torch")
    command = command_of(tmp_path_factory.mktemp("trains"), TRAINS)
    checkpoint = command.root / "last.pt"
    checkpoint.write_bytes(b"theirs" * COPIED_BYTES)  # large, so it is a link in the copies
    found = {}
    for name, (old, new) in CHANGES.items():
        with program_copy(command, {command.script: TRAINS.replace(old, new) if old else TRAINS}) as copy:
            found[name] = ran(copy, outputs=True, nudged=name == "nudged")
            assert (copy.root / "last.pt").stat().st_size < COPIED_BYTES
    assert checkpoint.read_bytes()[:6] == b"theirs"
    return found


def test_what_is_observed(runs: dict[str, ProgramRun]) -> None:
    run = runs["unchanged"]
    assert (run.unit, run.steps, run.cut, run.device) == ("optimizer step", 12, "", "cpu")
    assert run.stdout.splitlines()[-1].startswith("step 11: loss ")
    assert run.operations["aten::softmax"] == 2 and run.operations["aten::addmm"] > 2
    assert any("backward" in name.lower() for name in run.operations)
    assert run.outputs is not None
    assert run.outputs.calls[:3] == ((2, 1), (4, 2), (6, 3))
    tensors = {each.name: each for each in run.outputs.tensors}
    assert tensors["call 1 output 0"].shape == (2, 8, 4)
    assert (tensors["backward 1 loss 0"].shape, tensors["call 2 output 0"].shape) == ((), ())
    assert "step 8 parameter 3" in tensors and "step 9 parameter 3" not in tensors
    assert "aten::scaled_dot_product_attention" in runs["same"].operations


def test_a_program_that_calls_its_model_before_each_training_step_is_observed(tmp_path: Path) -> None:
    """As in reinforcement learning. The operations are those of the steps, not of the calls before the first one."""
    pytest.importorskip("torch")
    code = """
import torch
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(9):
    for _ in range(12):
        with torch.no_grad():
            layer(torch.ones(2, 4)).erf()
    layer(torch.ones(2, 4)).tanh().sum().backward()
    optimizer.step()
"""
    run = ran(command_of(tmp_path, code), outputs=True)
    assert (run.unit, run.steps) == ("optimizer step", 9)
    assert run.operations["aten::tanh"] > 0
    assert run.operations["aten::erf"] == 12 * run.operations["aten::tanh"]


@pytest.mark.long
def test_runs_that_start_together_take_their_steps_in_turn(tmp_path: Path) -> None:
    """Each run notes when a step begins and ends: no step of one overlaps one of the other. Then one ends early."""
    pytest.importorskip("torch")
    code = """
import sys, time, torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(int(sys.argv[2])):
    began = time.monotonic()
    weight.sum().backward()
    if step: print(began, time.monotonic(), file=open(sys.argv[1], "a"))
    optimizer.step()
"""
    programs = [command_of(tmp_path, code, name, "100") for name in ("one", "other")]
    runs = run_in_slices(programs, Slicing(steps=4, slices=10), seconds=120.0)
    assert runs is not None
    assert [(run.unit, run.steps, len(run.step_us), run.device) for run in runs] == [
        ("optimizer step", 32, 8, "cpu")
    ] * 2
    steps = sorted(
        (*map(float, line.split()), name)
        for name in ("one", "other") for line in (tmp_path / name).read_text().splitlines()
    )  # fmt: skip
    assert len(steps) == 80 and all(ended <= began for (_, ended, _), (began, _, _) in pairwise(steps))
    assert "".join(name[1] for _, _, name in steps[::4]) == 5 * "nttn"
    few = command_of(tmp_path, code, "few", "9")
    assert run_in_slices([programs[0], few], Slicing(steps=4, slices=10), seconds=120.0) is None


def test_two_runs_are_equal_to_the_bit(runs: dict[str, ProgramRun], tmp_path: Path) -> None:
    assert compare(runs["unchanged"], runs["unchanged"], runs["nudged"]).verdict == "equal"
    assert runs["nudged"].outputs != runs["unchanged"].outputs


def test_another_order_of_sums_is_within_tolerance(runs: dict[str, ProgramRun]) -> None:
    found = compare(runs["unchanged"], runs["same"], runs["nudged"])
    assert (found.verdict, found.right) == ("within tolerance", True), found
    assert found.worst is not None and 0.0 < found.worst < 1.0


def test_a_small_mistake_is_different(runs: dict[str, ProgramRun]) -> None:
    found = compare(runs["unchanged"], runs["other scale"], runs["nudged"])
    assert found.verdict == "different" and not found.right
    assert found.worst is not None and found.worst > 10.0


def test_a_program_that_stops_learning_is_different(runs: dict[str, ProgramRun]) -> None:
    """Its early steps are the same; the printed losses of later steps are not."""
    found = compare(runs["unchanged"], runs["stops learning"], runs["nudged"])
    assert found.verdict == "different", found


@pytest.mark.long
def test_a_module_that_computes_in_another_precision_is_nudged_by_that(tmp_path: Path) -> None:
    """The region of autocast begins within the module, and a layer before it has run."""
    pytest.importorskip("torch")
    code = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.first(x)
        with torch.autocast("cpu", torch.bfloat16):
            return self.second(y).float()

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""
    command = command_of(tmp_path, code)
    plain, nudged = (ran(command, outputs=True, nudged=each) for each in (False, True))
    assert plain.outputs is not None and nudged.outputs is not None
    assert plain.operations["aten::linear"] > 2, "they are those of a second run: there is no fifth step"
    assert plain.outputs.eps == nudged.outputs.eps == 2.0**-7
    one, other = (each.outputs.tensors[0].sample for each in (plain, nudged))
    assert 1e-3 < max(abs(a - b) for a, b in zip(one, other, strict=True)) < 0.1


def with_first(run: ProgramRun, **facts: object) -> ProgramRun:
    """The run with other facts about the first output."""
    assert run.outputs is not None
    first, *others = run.outputs.tensors
    return replace(run, outputs=replace(run.outputs, tensors=(replace(first, **facts), *others)))  # type: ignore[arg-type]


def test_what_is_missing_is_different(runs: dict[str, ProgramRun]) -> None:
    run, noise = runs["unchanged"], runs["nudged"]
    outputs = run.outputs
    assert outputs is not None
    for changed, said in (
        (replace(run, steps=1), "makes 1 steps instead of 12"),
        (replace(run, unit="forward call"), "a step was a optimizer step"),
        (replace(run, stdout=run.stdout[:200]), r"prints \d+ lines 'step #: loss # \(2\)' instead of 12"),
        (replace(run, stdout=run.stdout.replace("loss ", "loss 1")), "prints"),
        (replace(run, outputs=replace(outputs, calls=outputs.calls[:5] + ((10, 6),) * 7)), "up to step 6 instead of"),
        (replace(run, outputs=replace(outputs, tensors=outputs.tensors[1:])), "call 1 output 0 is missing"),
        (with_first(run, shape=(2,)), "call 1 output 0 has the shape"),
        (with_first(run, dtype="x"), "has the type x instead of float32"),
        (with_first(run, not_finite=3), "has 3 values that are NaN or infinite instead of 0"),
    ):  # fmt: skip
        found = compare(run, changed, noise)
        assert found.verdict == "different", said
        assert re.search(said, found.reason), found.reason


def test_a_program_that_never_does_the_same_is_unverified(runs: dict[str, ProgramRun]) -> None:
    run = runs["unchanged"]
    found = compare(run, run, replace(run, steps=11))
    assert (found.verdict, found.reason) == ("unverified", "two runs of the unchanged program make 12 and 11 steps")


CALLS = """
import torch
model = torch.nn.Linear(8, 8)
with torch.no_grad():
    for n in range(50):
        x = model(torch.ones(8))
        print("call", n)
print("not reached")
"""


def test_without_an_optimizer_a_call_is_a_step(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = ran(command_of(tmp_path, CALLS), steps=9)
    assert (run.unit, run.steps, run.cut, len(run.step_us)) == ("forward call", 9, "steps", 8)
    assert run.stdout.splitlines()[-1] == "call 8" and run.outputs is None and not run.operations


@pytest.mark.long
def test_calls_of_a_compiled_module_are_seen(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    compiled = CALLS.replace("with torch.no_grad", 'model.compile(backend="eager")\nwith torch.no_grad')
    run = ran(command_of(tmp_path, compiled), steps=3, outputs=True)
    assert (run.unit, run.steps, run.outputs is not None and len(run.outputs.tensors)) == ("forward call", 3, 3)


PROFILES = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def step():
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()

for n in range(4): step()
with torch.profiler.profile() as theirs:
    for n in range(6): step()
print(sum(event.name == "aten::linear" for event in theirs.events()))
"""


def test_a_program_may_use_the_profiler_itself(tmp_path: Path) -> None:
    """It starts its profiler while Tilewright's runs, which gives way."""
    pytest.importorskip("torch")
    run = ran(command_of(tmp_path, PROFILES), outputs=True)
    assert (run.stdout, run.steps) == ("6\n", 10)
    assert run.operations["aten::linear"] == 1


# Without torch ------------------------------------------------------------------------------------

RANDOM = """
import random, sys
print("sum", sum(random.random() for _ in range(100)))
print("set", hash("a"))
sys.stderr.write("to stderr")
"""


def test_a_program_without_torch_is_timed_as_a_whole(tmp_path: Path) -> None:
    one, other = (ran(command_of(tmp_path, RANDOM), outputs=True) for _ in range(2))
    assert (one.unit, one.steps, one.step_us) == ("process", 0, ())
    assert one.stdout == other.stdout and one.stdout.count("\n") == 2, "random numbers are seeded"
    assert one.stderr == "to stderr" and one.wall_s > 0.0
    assert compare(one, other, None).verdict == "equal"
    changed = ran(command_of(tmp_path, RANDOM.replace("range(100)", "range(99)")))
    assert compare(one, changed, other).verdict == "different"
    silent = ran(command_of(tmp_path, "pass"))
    assert compare(silent, silent, silent).verdict == "unverified"


COUNTED = """
import random
from pathlib import Path

runs = Path({runs!r})
runs.write_text(str(int(runs.read_text()) + 1))
numbers = random.Random(int(runs.read_text()))
for n in range(9):
    print({step}numbers.random())
"""


@pytest.mark.parametrize("step", ["", "n, "])
def test_a_program_that_nobody_can_seed_is_unverified(tmp_path: Path, step: str) -> None:
    """It draws other numbers in each run, the same whenever this test runs. Those of its steps are equal, and prove
    nothing."""
    runs = tmp_path / "runs"
    runs.write_text("0")
    one, noise, other = (ran(command_of(tmp_path, COUNTED.format(runs=str(runs), step=step))) for _ in range(3))
    assert len({one.stdout, noise.stdout, other.stdout}) == 3 == int(runs.read_text())
    found = compare(one, other, noise)
    assert found.verdict == "unverified" and "two runs of the unchanged program differ" in found.reason


def test_outputs_that_nobody_can_seed_are_unverified(runs: dict[str, ProgramRun]) -> None:
    run = runs["unchanged"]
    assert run.outputs is not None
    first = run.outputs.tensors[0]
    noise = with_first(run, digest=first.digest + 1, sample=tuple(2.0 * value for value in first.sample))
    other = with_first(run, digest=first.digest + 2, sample=tuple(3.0 * value for value in first.sample))
    found = compare(run, other, noise)
    assert (found.verdict, found.reason[:52]) == ("unverified", "two runs of the unchanged program differ: call 1 out")


def test_times_are_no_outputs(tmp_path: Path) -> None:
    code = "import time\nprint('value 2.5')\nprint(f'took {time.perf_counter_ns()} ns')\nprint(time.time_ns())"
    one, noise, other = (ran(command_of(tmp_path, code)) for _ in range(3))
    assert compare(one, other, noise).right
    assert compare(one, replace(other, stdout=other.stdout.replace("2.5", "2.8")), noise).verdict == "different"


@pytest.mark.parametrize(
    ("code", "stage", "said", "last"),
    [
        ("raise ValueError('too small')", "exit", "exit code 1: ValueError: too small", "ValueError: too small"),
        ("import sys; sys.exit(7)", "exit", "ended with exit code 7", ""),
        ("import os; os.kill(os.getpid(), 11)", "exit", "killed by signal 11 (Segmentation fault)", ""),
    ],
)  # fmt: skip
def test_a_failure_is_a_value(tmp_path: Path, code: str, stage: str, said: str, last: str) -> None:
    failed = run_program(command_of(tmp_path, code))
    assert isinstance(failed, ProgramFailed)
    assert (failed.stage, failed.last_line) == (stage, last)
    assert said in failed.reason and "\n" not in failed.reason


def test_a_program_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "if child := os.fork():\n"
        "    print(child, file=open('new', 'w'))\n"
        "    os.rename('new', 'pid')\n"
        "else:\n"
        "    os.setsid()\n"
        "time.sleep(3600)\n"
    )
    begun = (tmp_path / "pid").exists
    failed = run_program(command_of(tmp_path, code), seconds=0.3, meanwhile=lambda: until(begun) or None)
    assert isinstance(failed, ProgramFailed) and failed.stage == "time limit"
    child = int((tmp_path / "pid").read_text())
    assert until(lambda: ended(child))


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    failed = run_program(ProgramCommand((str(tmp_path / "python"), "a.py"), tmp_path))
    assert isinstance(failed, ProgramFailed)
    assert failed.stage == "start" and failed.reason.endswith("python: No such file or directory")
    assert "TILEWRIGHT_OBSERVE" not in os.environ
