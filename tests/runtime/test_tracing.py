"""Recording a trace of an unchanged program. Without a GPU the first use of CUDA is called by hand."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.errors import RequestError
from tilewright.runtime import tracing, turns
from tilewright.runtime.started import python_path, recorded

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the programs use no CUDA")
ROOT = Path(__file__).parents[2]
STARTUP = ROOT / "tests/startup"

TRAINS = """
import torch
first_use, _ = torch.cuda._queued_calls[-1]
first_use()  # as torch does when the program first uses CUDA
weight = torch.nn.Parameter(torch.ones(4))
optimizer, other = torch.optim.SGD([weight], 0.1), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
for step in range(STEPS):
    with torch.profiler.record_function(f"body {step}"):
        (weight * 2).sum().backward()
    optimizer.step()
    other.step()
print("done")
"""


def traced(
    code: str, folder: Path, last: str = "5", seconds: str = "0", end: str = ""
) -> subprocess.CompletedProcess[str]:
    environment = environment_of(folder, last, seconds, end)
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def traced_in_background(code: str, folder: Path, end: str, turn: str) -> subprocess.Popen[bytes]:
    environment = {**environment_of(folder, "5", "0", end), turns.VARIABLE: turn}
    return subprocess.Popen([sys.executable, "-c", code], env=environment)


def environment_of(folder: Path, last: str, seconds: str, end: str) -> dict[str, str]:
    paths = (str(STARTUP), str(ROOT / "src"))
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths), "HOME": str(folder)}
    wanted = {tracing.VARIABLE: str(folder), tracing.LAST_STEP: last, tracing.SECONDS: seconds, tracing.END_STEP: end}
    return {**base, "PYTHONPATH": python_path(base), **wanted}


def names(folder: Path) -> set[str]:
    (path,) = folder.glob("process*.json.gz")
    return {event.get("name", "") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}


def test_the_recording_ends_after_the_wanted_steps(tmp_path: Path) -> None:
    done = traced(TRAINS.replace("STEPS", "8"), tmp_path)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
    found = names(tmp_path)
    assert {"ProfilerStep#3", "ProfilerStep#4"} <= found and "ProfilerStep#5" not in found
    assert {name for name in found if name.startswith("body")} == {f"body {n}" for n in range(5)}


def test_what_the_program_marks_itself_may_span_the_end(tmp_path: Path) -> None:
    marks = "around = torch.profiler.record_function('epoch')\naround.__enter__()\nfor step"
    code = TRAINS.replace("STEPS", "8").replace("for step", marks)
    done = traced(code + "around.__exit__(None, None, None)\n", tmp_path)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_a_program_with_fewer_steps_is_recorded_whole(tmp_path: Path) -> None:
    assert traced(TRAINS.replace("STEPS", "2"), tmp_path, last="15").returncode == 0
    assert {"body 0", "body 1", "ProfilerStep#0", "ProfilerStep#1"} <= names(tmp_path)


def test_a_program_that_fails_leaves_its_trace_and_exit_code(tmp_path: Path) -> None:
    done = traced(TRAINS.replace("STEPS", "2") + "raise SystemExit(7)", tmp_path)
    assert done.returncode == 7
    assert "body 0" in names(tmp_path)


def test_a_process_that_never_uses_cuda_records_nothing(tmp_path: Path) -> None:
    done = traced("import torch; print(torch.ones(2).sum().item())", tmp_path)
    assert (done.stdout, done.stderr, list(tmp_path.glob("*.json*"))) == ("2.0\n", "", [])


def test_a_program_of_a_thread_is_told_and_goes_on(tmp_path: Path) -> None:
    code = "import threading, torch\nfirst, _ = torch.cuda._queued_calls[-1]\n"
    done = traced(code + "t = threading.Thread(target=first); t.start(); t.join(); print('runs')", tmp_path)
    assert done.stdout == "runs\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("tilewright: cannot record a trace: RuntimeError: CUDA was first used outside of the main")


def test_the_time_limit_ends_the_recording(tmp_path: Path) -> None:
    """The alarm comes while the program waits for its trace."""
    code = TRAINS.replace("STEPS", "2") + (
        f"import pathlib, time\nwhile not list(pathlib.Path({str(tmp_path)!r}).glob('process*')): time.sleep(0.01)\n"
    )
    assert traced(code, tmp_path, last="15", seconds="0.05").returncode == 0
    assert list(tmp_path.glob("process*.json.gz"))


def test_a_program_of_which_only_the_trace_is_wanted_is_ended(tmp_path: Path) -> None:
    done = traced(TRAINS.replace("STEPS", "1000000"), tmp_path, end="8")
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
    assert "ProfilerStep#4" in names(tmp_path)
    assert len(recorded(tmp_path, 0)[1]) == 2, "the times between steps 6, 7 and 8"


def test_a_program_that_was_started_early_waits_before_it_records(tmp_path: Path) -> None:
    """The pipe cannot be opened for writing before the program waits at its other end."""
    os.mkfifo(tmp_path / "turn")
    program = traced_in_background(TRAINS.replace("STEPS", "1000000"), tmp_path, "8", str(tmp_path / "turn"))
    with (tmp_path / "turn").open("wb", buffering=0) as turn:
        assert not list(tmp_path.glob("*process*"))
        turn.write(b"x")
    assert program.wait() == 0 and "ProfilerStep#4" in names(tmp_path)


def test_a_program_that_uses_no_gpu_waits_and_is_ended_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "turn")
    code = TRAINS.replace("STEPS", "1000000").replace("first_use()", "")
    program = traced_in_background(code, tmp_path, "8", str(tmp_path / "turn"))
    with (tmp_path / "turn").open("wb", buffering=0) as turn:
        turn.write(b"x")
    assert program.wait() == 0 and not list(tmp_path.glob("*process*"))


def test_a_program_without_steps_is_ended_with_its_recording(tmp_path: Path) -> None:
    code = TRAINS.replace("STEPS", "0") + "while True:\n    torch.ones(2).sum()\n"
    done = traced(code, tmp_path, last="15", seconds="0.05", end="35")
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
    assert list(tmp_path.glob("process*.json.gz"))


def test_what_a_program_left(tmp_path: Path) -> None:
    for code, why in ((7, "ended with exit code 7"), (0, "no Python process of it used CUDA")):
        with pytest.raises(RequestError, match=why):
            recorded(tmp_path, code)
    (tmp_path / "part-process1.json.gz").touch()
    with pytest.raises(RequestError, match="before its trace was complete"):
        recorded(tmp_path, 0)
    (tmp_path / "process2.json.gz").touch()
    assert recorded(tmp_path, 0) == ([tmp_path / "process2.json.gz"], [])
    (tmp_path / "process2.steps.json").write_text("[]")
    (tmp_path / "process3.steps.json").write_text("[1000.0, 3000.0, 2000.0]")
    assert recorded(tmp_path, 0)[1] == [1000.0, 3000.0, 2000.0]
