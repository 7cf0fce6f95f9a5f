"""The worker on a GPU with and without torch: the same verdicts, the same times, and no torch where none is needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.gpu import torchless_tasks

from tilewright.compile.compile import Unit, compile_all
from tilewright.executors.local import Local
from tilewright.hardware.gpu import detect
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.records import Configuration
from tilewright.task.loading import load_task
from tilewright.tune.tune import tune
from tilewright.worker.messages import CheckOutputs, PrepareInputs, Program, RaceField, TimeRounds
from tilewright.worker.programs import program_of
from tilewright.worker.session import Session

TASKS = str(Path(torchless_tasks.__file__))
RUN = 'import runpy; runpy.run_module("tilewright.worker.process.worker", run_name="__main__")'
WITHOUT = f'import sys; sys.modules["torch"] = None; {RUN}'
WITH = f"from tilewright.worker.process import choosing; choosing.HOST_ELEMENTS = -1; {RUN}"
NOTED = f"""\
import sys
{RUN}
open({{file!r}}, "w").write(str("torch" in sys.modules))
"""
DTYPES = ["bf16", "fp16", "fp32", "fp8"]


def command(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


@pytest.fixture(params=[WITHOUT, WITH], ids=["without torch", "with torch"])
def code(request: pytest.FixtureRequest) -> str:
    if request.param == WITH:
        pytest.importorskip("torch")
    return str(request.param)


def programs(name: str, workload: str, configurations: Sequence[dict[str, int]]) -> list[Program]:
    task, gpu = load_task(f"{TASKS}:{name}"), detect()
    assert gpu is not None
    units = [Unit(task.workload(workload), Configuration.of(one), gpu.board) for one in configurations]
    return [program_of(task, compiled) for compiled in compile_all(task, units, seconds=60)]


def verdicts(session: Session, workload: str, sources: Sequence[Program]) -> list[tuple[str, str]]:
    ready = session.run(PrepareInputs(workload, 5), silence=180).answer
    assert ready is not None and not ready.unverified, ready
    answers: list[Any] = [session.run(CheckOutputs(source)).answer for source in sources]
    return [(answer.checked.verdict, answer.checked.reason) for answer in answers]


@pytest.mark.parametrize("workload", ["small", "large"])
@pytest.mark.parametrize("name", DTYPES)
def test_wrong_is_incorrect_and_right_is_correct(name: str, workload: str, code: str) -> None:
    """In each format, also behind a wrong kernel."""
    right, wrong = {"TILE": 4, "FACTOR": 2}, {"TILE": 8, "FACTOR": 3}
    with Session(f"{TASKS}:{name}", command(code)) as session:
        found = verdicts(session, workload, programs(name, workload, [right, wrong, right]))
        assert [verdict for verdict, _ in found] == ["correct", "incorrect", "correct"], found
        assert session.losses == 0


@pytest.mark.parametrize("name", DTYPES)
def test_a_write_outside_is_seen(name: str, code: str) -> None:
    """trust.md 9. The program writes 16 rows more than the buffers of the workload have."""
    (longer,) = programs(name, "longer", [{"TILE": 4, "FACTOR": 2}])
    (right,) = programs(name, "small", [{"TILE": 4, "FACTOR": 2}])
    with Session(f"{TASKS}:{name}", command(code)) as session:
        (outside, why), (inside, _) = verdicts(session, "small", [longer, right])
        assert outside == "incorrect" and "wrote outside the buffer of y" in why
        assert inside == "correct", "the guards are mended"


def test_a_program_that_breaks_the_context_is_lost_and_the_next_is_right(code: str) -> None:
    (right,) = programs("bf16", "small", [{"TILE": 4, "FACTOR": 2}])
    (far,) = programs("bf16", "large", [{"TILE": 4, "FACTOR": 2}])  # 32 MiB behind a buffer of 32 KiB
    with Session(f"{TASKS}:bf16", command(code)) as session:
        assert session.run(PrepareInputs("small", 5), silence=180).answer
        answer = session.run(CheckOutputs(far)).answer
        assert answer is None or answer.checked.verdict == "incorrect"
        assert verdicts(session, "small", [right])[0][0] == "correct"


@pytest.mark.parametrize("launch", ["graph", "eager"])
@pytest.mark.parametrize("l2", ["cold", "warm"])
def test_times_are_the_same(l2: Any, launch: Any) -> None:
    """Medians of a kernel bound by memory, measured twice by each: with torch and without, in turn."""
    pytest.importorskip("torch")
    sources = tuple(programs("fp32", "large", [{"TILE": 4, "FACTOR": 2}, {"TILE": 8, "FACTOR": 2}]))
    found: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    for code in (WITHOUT, WITH) * 2:
        with Session(f"{TASKS}:fp32", command(code)) as session:
            verdicts(session, "large", sources)
            step = TimeRounds(sources, Budget(300, 60, 100), Policy(l2=l2, launch=launch), 0, captures=3)
            answer = session.run(step, silence=180).answer
            assert answer is not None
            assert answer.after_timing is None
            found[code].append(median(answer.samples_us[0]))
    print(f"{l2} {launch}: µs without torch {found[WITHOUT]}, with torch {found[WITH]}")
    assert min(found[WITHOUT]) == pytest.approx(min(found[WITH]), rel=0.1), found


def test_a_race_finds_the_wrong_winner_after_timing(code: str) -> None:
    """trust.md 12."""
    sources = tuple(programs("bf16", "small", [{"TILE": 4, "FACTOR": 3}]))
    with Session(f"{TASKS}:bf16", command(code)) as session:
        assert session.run(PrepareInputs("small", 5), silence=180).answer
        answer: Any = session.run(RaceField(sources, ((),), None, Policy(max_rounds=60)), silence=180).answer
        assert "after timing: 'y'" in answer.after_timing


class Ending(Local):
    """Lets the worker end by itself."""

    def close(self, wait: bool = True) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(60)
        super().close(wait)


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    return tmp_path / "torch"


def tuned(name: str, file: Path, **more: Any) -> Any:
    with Ending(command=command(NOTED.format(file=str(file)))) as executor:
        result = tune(f"{TASKS}:{name}", store=False, seed=5, executor=executor, **more)
    return result


def test_tune_loads_no_torch(noted: Path) -> None:
    result = tuned("bf16", noted)
    assert noted.read_text() == "False", "torch is not among the worker's modules"
    for one in result.workloads:
        assert one.best is not None and one.best.measured is not None and one.best.configuration["FACTOR"] == 2
        assert {each.configuration["FACTOR"] for each in one.candidates if each.status == "wrong"} <= {3}


@pytest.mark.parametrize(("name", "launch"), [("bf16", "eager"), ("in_place", "graph")])
def test_a_launch_by_the_language_gets_torchs_tensors(name: str, launch: Any, noted: Path) -> None:
    """cuda-tile's own launch takes torch's tensors, in the driver's memory."""
    pytest.importorskip("torch")
    result = tuned(name, noted, workloads="large", policy=Policy(launch=launch, max_rounds=100))
    assert noted.read_text() == "True"
    best = result.workloads[0].best
    assert best is not None and best.measured is not None and best.configuration["FACTOR"] == 2
