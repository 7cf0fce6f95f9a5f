"""The worker process without torch, on a driver whose device is the host's memory (`host_driver.c`): the real process,
the real cuda-bindings, and functions in C in place of kernels."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

triton = pytest.importorskip("triton", reason="the headers of CUDA are in Triton")

from tests.runtime.dispatch.kit_dispatch import table  # noqa: E402

from tilewright.errors import MachineError  # noqa: E402
from tilewright.race.protocol import Budget  # noqa: E402
from tilewright.race.rules import Policy  # noqa: E402
from tilewright.records import Checked  # noqa: E402
from tilewright.task.loading import load_task  # noqa: E402
from tilewright.worker.messages import (  # noqa: E402
    CheckOutputs,
    FieldRaced,
    Hello,
    PackedNumber,
    Pointer,
    PrepareInputs,
    Program,
    RaceField,
    RoundsTimed,
    TimeRounds,
)
from tilewright.worker.session import Session  # noqa: E402

TASK = """\
import tilewright as tw

task = tw.Task(
    name="double",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
    reference=lambda x: 2 * x,
    launch=lambda x: None,
    flops=lambda M, N: M * N,
    independent=("M",),
    space=tw.Space(constants={"TILE": (1,)}, shipped={"TILE": 1}),
    workloads={"small": {"M": 40, "N": 50}, "sliced": {"M": 2000, "N": 500}},
)
"""
SIZES = {"small": 2000, "sliced": 1_000_000}
WORKER = """\
import runpy, sys
sys.modules["torch"] = None  # an import of torch fails
runpy.run_module("tilewright.worker.process.worker", run_name="__main__")
"""


def program(kernel: str, workload: str = "small") -> Program:
    size = PackedNumber(struct.pack("<i", SIZES[workload]).hex())
    return Program("", kernel, (1,), (Pointer("x"), Pointer("y"), size))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the driver."""
    folder = tmp_path_factory.mktemp("driver")
    include = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "include"
    source = Path(__file__).with_name("host_driver.c")
    command = ["gcc", "-O1", "-shared", "-fPIC", "-w", f"-I{include}", str(source), "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def command(driver: Path) -> tuple[str, ...]:
    return ("env", f"LD_LIBRARY_PATH={driver}", sys.executable, "-c", WORKER)


@pytest.fixture(scope="module")
def session(command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    task = tmp_path_factory.mktemp("task") / "double.py"
    task.write_text(TASK)
    with Session(str(task), command) as session:
        yield session
        assert session.losses == 0


def test_a_task_that_needs_torch_says_what_to_install(command: tuple[str, ...], tmp_path: Path) -> None:
    task = tmp_path / "judged.py"
    task.write_text(TASK.replace("    launch=", "    trusted=lambda x: 2 * x,\n    launch="))
    with Session(str(task), command) as session:
        for _ in range(2):  # the process lives on
            with pytest.raises(MachineError, match="needs it; fix: pip install torch"):
                session.run(PrepareInputs("small", 3))
        assert session.losses == 0


def test_a_workload_that_does_not_fit_is_unverified(command: tuple[str, ...], tmp_path: Path) -> None:
    task = tmp_path / "large.py"
    task.write_text(TASK.replace('"M": 2000', '"M": 200_000'))
    with Session(str(task), command) as session:
        ready = session.run(PrepareInputs("sliced", 3)).answer
        assert ready is not None and "50% of the GPU's 1 GiB" in ready.unverified


def checked(session: Session, kernel: str, workload: str = "small") -> Checked:
    ready = session.run(PrepareInputs(workload, 3)).answer
    assert ready is not None and not ready.unverified, ready
    outcome = session.run(CheckOutputs(program(kernel, workload)))
    assert outcome.answer is not None, outcome
    return outcome.answer.checked


def test_it_greets_with_the_drivers_words(session: Session) -> None:
    said = session.run(Hello()).answer
    assert said is not None and (said.gpu, said.cuda_driver) == ("NVIDIA H200", "13.0")


@pytest.mark.parametrize("workload", SIZES)
@pytest.mark.parametrize(
    ("kernel", "reason"),
    [("doubles", ""), ("leaves_the_last", "'y'"), ("writes_outside", "wrote outside the buffer of y"),
     ("changes_its_input", "changed its input x")],
)  # fmt: skip
def test_verdicts(session: Session, kernel: str, reason: str, workload: str) -> None:
    """trust.md 1, 9, 10, 13."""
    found = checked(session, kernel, workload)
    assert (found.verdict, reason in found.reason) == ("incorrect" if reason else "correct", True), found
    assert checked(session, "doubles", workload).verdict == "correct", "a kernel is not blamed for the one before it"


def raced(session: Session, *kernels: str, **policy: Any) -> FieldRaced:
    checked(session, "doubles")
    sources = tuple(map(program, kernels))
    answer = session.run(RaceField(sources, ((),) * len(sources), None, Policy(max_rounds=60, **policy))).answer
    assert isinstance(answer, FieldRaced), answer
    return answer


@pytest.mark.parametrize("l2", ["cold", "warm"])
@pytest.mark.parametrize("launch", ["graph", "eager"])
def test_the_faster_wins(session: Session, l2: str, launch: str) -> None:
    answer = raced(session, "doubles_slowly", "doubles", l2=l2, launch=launch)
    assert answer.race.winner == 1 and answer.after_timing is None
    assert answer.monitor["outputs"] == "poisoned before each launch"
    assert answer.monitor["alternating_share_of_inputs"] == {"x": 1.0}


@pytest.mark.parametrize("launch", ["graph", "eager"])
def test_no_timed_launch_finds_its_answer(session: Session, launch: Literal["graph", "eager"]) -> None:
    """trust.md 38. The first kernel would then be the faster one."""
    assert raced(session, "finds_its_answer", "doubles", launch=launch).race.winner == 1


@pytest.mark.parametrize("launch", ["graph", "eager"])
def test_a_wrong_winner_is_found_after_timing(session: Session, launch: Literal["graph", "eager"]) -> None:
    """trust.md 12."""
    answer = raced(session, "doubles_half", "doubles_slowly", launch=launch)
    assert answer.race.winner == 0 and "after timing: 'y'" in str(answer.after_timing)


def test_a_confirmation_loads_its_code_anew(session: Session) -> None:
    ready = session.run(PrepareInputs("small", 99, True)).answer
    assert ready is not None and ready.new
    step = TimeRounds((program("doubles"), program("doubles_slowly")), Budget(20, 60, 5), Policy(), 0, captures=4)
    answer = session.run(step).answer
    assert isinstance(answer, RoundsTimed) and answer.captures == (5,) * 4 and answer.after_timing is None
    fast, slow, copy = (sorted(samples)[len(samples) // 2] for samples in answer.samples_us)
    assert fast < slow and copy < slow


DOUBLED = """\
import triton
import triton.language as tl
import tilewright as tw

@triton.jit
def doubles(x, y, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, 2 * tl.load(x + place, mask=place < n), mask=place < n)

task = tw.Task(
    name="double", tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: 2 * x, flops=lambda N: N, workloads={"small": {"N": 2000}},
    launch=lambda x, y, N: tw.Launch(doubles, (triton.cdiv(N, 1024),), (x, y, N, 1024)),
    space=tw.Space(hints={"num_warps": (4, 8)}, shipped={"num_warps": 4}),
)
"""
DISPATCHED = """\
import json, sys, threading
import numpy as np
from tilewright.launching.cuda import DriverContext, Stream
from tilewright.runtime.dispatch.dispatcher import Dispatcher

class OnDevice:  # the device's memory is the host's
    def __init__(self, array):
        self.array, self.__cuda_array_interface__ = array, array.__array_interface__

double = Dispatcher(sys.argv[1], sys.argv[2])
def arrays(n):
    return {"x": OnDevice(np.arange(n, dtype=np.float32)), "y": OnDevice(np.zeros(n, np.float32))}
def right(given):
    found = (given["y"].array == 2 * given["x"].array).all()
    given["y"].array[:] = 0
    return bool(found)

given, said = arrays(2000), []
double(None, **given)
said.append(right(given))
thread = threading.Thread(target=double, kwargs=given)  # it has no context
thread.start()
thread.join()
said.append(right(given))
context = DriverContext()
stream = Stream()
graph = context.captured(stream, lambda: double(stream.handle, **given))
said.append(right(given))  # nothing was launched
for turn in range(2):
    given["x"].array += 1
    graph.replay()
    said.append(right(given))
print(json.dumps([said, *(double.chosen(**arrays(n)).match for n in (2000, 3000, 9000))]))
"""


def test_a_dispatcher_launches_and_is_captured(driver: Path, tmp_path: Path) -> None:
    """In a process of its own: the table was made in this one, for the GPU that the driver shows there."""
    file, made = tmp_path / "double.py", tmp_path / "double.json"
    file.write_text(DOUBLED)
    made.write_text(json.dumps(table(load_task(str(file)), {"small": {"num_warps": 8}})))
    words = [sys.executable, "-c", DISPATCHED, str(file), str(made)]
    environ = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[True, True, False, True, True], "exact", "nearest", "shipped"]
