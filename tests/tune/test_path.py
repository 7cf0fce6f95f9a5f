"""From the command function of `tilewright tune` to the clock: how many calls of ours, in how many files?

A real run on a machine without a GPU: candidates are compiled; the worker process is the real one with torch on the
CPU in place of launches and a simulated clock. Both processes are traced. A hop is a call from one of our functions to
another that is still running when the clock's first round is timed; a change of thread and one of process are hops.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the worker keeps its memory in torch")

from tilewright.cli import main as cli
from tilewright.cli import tune as command
from tilewright.hardware import gpu as gpus
from tilewright.tune import tune as tuning
from tilewright.worker import early
from tilewright.worker.messages import RaceField
from tilewright.worker.session import Session

SRC = Path(__file__).parents[2] / "src"
HOPS, FILES = 9, 7

TASK = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel
def scale(x, y, TILE: ct.Constant[int]):
    t = ct.load(x, (ct.bid(0), 0), (TILE, 64))
    ct.store(y, (ct.bid(0), 0), t * 2)

task = tw.Task(
    name="scale",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
    reference=lambda x: 2 * x,
    launch=lambda x, y, M, config: tw.Launch(scale, (-(-M // config.TILE),), (x, y, config.TILE)),
    flops=lambda M, N: M * N,
    space=tw.Space(constants={"TILE": (16, 32)}, shipped={"TILE": 32}),
    workloads={"only": {"M": 256, "N": 64}},
)
"""

WORKER = """\
import json, sys
sys.path.insert(0, {src!r})
from types import SimpleNamespace
from tilewright.testing.simulated import SimulatedClock
from tilewright.worker.process import worker
from tilewright.worker.process.examiner import Prepared
from tilewright.worker.process.torch_backend import TorchBackend

class Clock(SimulatedClock):
    def __init__(self, runners, policy, monitor, sets, announce):
        super().__init__([10.0 + place for place in range(len(runners))])
        self.runners, self.sets = runners, sets
    def round(self, order):
        self.sets.swap()
        for index in order:
            self.sets.spoil()
            self.runners[index](None)
        return super().round(order)
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass

class Launch:
    def __init__(self, program, tensors, own_code=False):
        self.tensors = tensors
    def __call__(self, stream):
        self.tensors["y"].copy_(2 * self.tensors["x"])

def trace(frame, event, argument):
    if event == "call" and frame.f_code is SimulatedClock.round.__code__:
        sys.setprofile(None)
        stack = []
        while frame is not None:
            stack.append((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back
        with open({out!r}, "w") as file:
            json.dump(stack[::-1], file)

worker.detect = lambda: SimpleNamespace(board=None)
worker.Prepared = lambda task: Prepared(task, lambda task, dims: TorchBackend("cpu"))
worker.GpuClock, worker.ProgramLaunch = Clock, Launch
sys.setprofile(trace)
worker.main()
"""

Call = tuple[str, str]
"""File and function."""


def ours(stack: list[Call]) -> list[Call]:
    return [(file, name) for file, name in stack if file.startswith(f"{SRC}/tilewright/") and name != "<module>"]


def calls_to(frame: FrameType | None) -> list[Call]:
    stack: list[Call] = []
    while frame is not None:
        stack.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    return ours(stack[::-1])


class Parent:
    """Traces this process until the first race: the calls of its thread, and of the threads that led to it."""

    def __init__(self) -> None:
        self.started: dict[int, list[list[Call]]] = {}
        """Thread → the chain of calls that started it, one list a thread."""
        self.chain: list[list[Call]] = []

    def trace(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or self.chain:
            return
        before = self.started.get(id(threading.current_thread()), [])
        if frame.f_code is threading.Thread.start.__code__:
            self.started[id(frame.f_locals["self"])] = [*before, calls_to(frame)]
        elif frame.f_code is Session.run.__code__ and isinstance(frame.f_locals["step"], RaceField):
            self.chain = [*before, calls_to(frame)]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Call]]:
    """The calls from the command to the clock, one list for each thread and process."""
    file, script, out = tmp_path / "ops.py", tmp_path / "worker.py", tmp_path / "stack.json"
    file.write_text(TASK)
    script.write_text(WORKER.format(src=str(SRC), out=str(out)))
    gpu = gpus.Gpu("NVIDIA H200", "sm_90", 132, 141 << 30, 50 << 20, "13.0")
    for module in (gpus, tuning):
        monkeypatch.setattr(module, "detect", lambda: gpu)
    monkeypatch.setattr(early, "early_worker", lambda: early.spawned((sys.executable, str(script))))
    parent = Parent()
    threading.setprofile(parent.trace)
    sys.setprofile(parent.trace)
    try:
        ran = CliRunner().invoke(cli.app(), ["tune", str(file), "--seed", "1", "--no-store", "--json"])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["workloads"][0]["race"]["rounds"] > 0
    return [*parent.chain, ours([(file, name) for file, name in json.loads(out.read_text())])]


def test_at_most_nine_hops_in_seven_files(path: list[list[Call]]) -> None:
    calls = [call for part in path for call in part]
    first = next(place for place, (file, _) in enumerate(calls) if file == command.__file__)
    calls = calls[first:]
    names = [f"{Path(file).relative_to(SRC / 'tilewright')}: {name}" for file, name in calls]
    assert names[0] == "cli/tune.py: tune" and names[-1].endswith("round"), names
    hops = len(calls) - 1  # from one call to the next; the change to another thread or process among them
    assert hops <= HOPS and len({file for file, _ in calls}) <= FILES, "\n".join(names)


def test_the_first_compilers_start_before_what_they_do_not_need_is_loaded(tmp_path: Path) -> None:
    (file := tmp_path / "ops.py").write_text(TASK)
    heavy = {
        "rich", "pydantic", "libcst", "torch", "tilewright.ledger.file", "tilewright.worker.messages",
        "tilewright.race.protocol", "tilewright.verify.tolerance", "tilewright.tileir.run.interpreter",
        "tilewright.doctor.probes",
    }  # fmt: skip
    code = (
        "import importlib, os, sys\n"
        "def enter(self):\n"
        f"    print(sorted({heavy!r} & set(sys.modules)), len(self.units), file=sys.__stdout__, flush=True)\n"
        "    os._exit(0)\n"
        "importlib.import_module('tilewright.tune.schedule').Schedule.__enter__ = enter\n"
        "from tilewright.cli import main as cli\n"
        f"sys.exit(cli.main(['tune', {str(file)!r}, '--arch', 'sm_90', '--no-store', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[] 2"], done.stderr
