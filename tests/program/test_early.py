"""Real programs are started early. They meet at pipes, so no test depends on the speed of a machine."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.processes import until

from tilewright.program import early
from tilewright.program.command import ProgramCommand
from tilewright.program.copies import program_copy
from tilewright.program.early import enough_memory, may_start_early, meets_apart
from tilewright.program.findings.record import RecordedRun
from tilewright.program.recorded import recorded_run
from tilewright.program.run import ProgramFailed, ProgramRun, run_program
from tilewright.program.slices import Slicing, _Turns, run_in_slices

TRAINS = """import os, torch
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
open(f"{FOLDER}/ready", "w").write(str(os.getpid()) + " ")
layer(torch.ones(2, 4)).sum().backward()
open(f"{FOLDER}/stepped", "a").close()
for step in range(40):
    optimizer.step()
"""


@pytest.fixture
def command(tmp_path: Path) -> ProgramCommand:
    """A program that tells through a pipe that it is ready for its first step."""
    pytest.importorskip("torch")
    folder = tmp_path / "program"
    folder.mkdir()
    os.mkfifo(tmp_path / "ready")
    (folder / "train.py").write_text(TRAINS.replace("{FOLDER}", str(tmp_path)).replace('f"', '"'))
    return ProgramCommand.of("train.py", folder)


def waits(pid: str) -> bool:
    """Whether the process has opened the pipe through which its turn comes."""
    for opened in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if os.readlink(opened).endswith("/turn"):
                return True
    return False


def test_a_program_is_ready_early_and_makes_no_step_before_its_turn(command: ProgramCommand, tmp_path: Path) -> None:
    stepped: list[bool] = []

    def meanwhile() -> None:
        pid = (tmp_path / "ready").read_text().strip()  # waits until the program writes
        assert until(lambda: waits(pid))
        stepped.append((tmp_path / "stepped").exists())
        time.sleep(1.0)

    began = time.perf_counter()
    run = run_program(command, steps=8, seconds=120.0, outputs=True, meanwhile=meanwhile)
    assert isinstance(run, ProgramRun) and (run.steps, run.unit) == (8, "optimizer step")
    assert stepped == [False] and (tmp_path / "stepped").exists()
    assert run.outputs is not None and run.outputs.tensors
    assert run.wall_s < time.perf_counter() - began - 1.0  # waiting is no part of its time


def test_the_record_of_a_program_that_waited_has_no_waiting(command: ProgramCommand, tmp_path: Path) -> None:
    def meanwhile() -> None:
        (tmp_path / "ready").read_text()

    with program_copy(command, {}) as copy:
        run = recorded_run(copy, 120.0, meanwhile)
    assert isinstance(run, RecordedRun) and run.steps


def test_what_fails_meanwhile_ends_the_program_that_waits(command: ProgramCommand, tmp_path: Path) -> None:
    pids: list[int] = []

    def meanwhile() -> None:
        pids.append(int((tmp_path / "ready").read_text()))
        raise LookupError

    with pytest.raises(LookupError):
        run_program(command, seconds=120.0, meanwhile=meanwhile)
    assert not Path(f"/proc/{pids[0]}").exists() and not (tmp_path / "stepped").exists()


@pytest.mark.long
def test_slices_begin_after_what_is_done_meanwhile(command: ProgramCommand, tmp_path: Path) -> None:
    pids: list[int] = []

    def meanwhile() -> None:
        while len(pids) < 2:  # both programs may write before one reads
            pids.extend(map(int, (tmp_path / "ready").read_text().split()))

    done = run_in_slices([command, command], Slicing(1, 6), 120.0, meanwhile)
    assert done is not None and len(done) == len(set(pids)) == 2
    pids.clear()

    def fails() -> None:
        meanwhile()
        raise LookupError

    with pytest.raises(LookupError):
        run_in_slices([command, command], Slicing(1, 6), 120.0, fails)
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_programs_are_ended_if_the_memory_gets_low(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program waits for a pipe that nobody writes to, so only a kill ends it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "waits.py").write_text("open('was', 'w').close()\nopen('pipe').read()\n")
    monkeypatch.setattr(early, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(early, "memory", lambda: {"MemAvailable": 1 - (tmp_path / "was").exists(), "MemTotal": 1})
    with enough_memory():
        done = run_program(ProgramCommand.of("waits.py", tmp_path), seconds=120.0)
    assert isinstance(done, ProgramFailed) and "signal 9" in done.reason


@pytest.mark.parametrize(
    ("line", "early_"),
    [
        ("python train.py", True),
        ("torchrun --nproc-per-node 2 train.py", False),
        ("python -m torch.distributed.run train.py", False),
        ("env A=b uv run accelerate launch train.py", False),
    ],
)
def test_the_processes_of_a_job_may_meet_at_a_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, early_: bool
) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert may_start_early(ProgramCommand.of(line, tmp_path)) is early_
    (tmp_path / "train.py").write_text("import job\n")
    (tmp_path / "job.py").write_text("import torch\ntorch.distributed.init_process_group('gloo')\n")
    assert not may_start_early(ProgramCommand.of(line, tmp_path))
    (tmp_path / "train.py").write_text("import torch\n")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert not may_start_early(ProgramCommand.of(line, tmp_path))


@pytest.mark.parametrize(
    ("words", "text", "apart"),
    [
        (("--standalone",), "", True),
        (("--standalone", "--nproc-per-node", "2"), 'init_process_group("nccl")', True),
        (("--standalone",), 'os.environ["MASTER_PORT"] = "29501"', False),
        (("--standalone",), 'init_process_group(init_method="tcp://localhost:29501")', False),
        (("--master-port", "29501"), "", False),
    ],
)
def test_launched_runs_may_exist_at_once_if_each_has_a_port(
    tmp_path: Path, words: tuple[str, ...], text: str, apart: bool
) -> None:
    (tmp_path / "train.py").write_text(text)
    assert meets_apart(ProgramCommand.of(["torchrun", *words, "train.py"], tmp_path)) is apart
    assert not meets_apart(ProgramCommand.of(["python", "train.py", "--standalone"], tmp_path))


def test_all_processes_of_a_program_get_their_turn_and_the_slowest_counts() -> None:
    (their_go, go), (done, their_done) = os.pipe(), os.pipe()
    turns = _Turns(None, go, done, 2)  # type: ignore[arg-type]  # it is asked only if no line comes
    try:
        os.write(their_done, b'{"us": 3.0}\n{"us": 7.5}\n{"us": 1.0}\n')
        assert turns.slice_us(60.0) == 7.5
        assert os.read(their_go, 9) == b"xx"
        os.write(their_done, b'{"us": 2.0}\n')
        assert turns.slice_us(60.0) == 2.0, "a line that came early is of the next slice"
    finally:
        for pipe in (go, their_go, done, their_done):
            os.close(pipe)
