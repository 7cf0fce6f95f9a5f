"""Checks on a GPU: the examples and the honest kernels are correct, every cheat is caught for the right reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.exploits import honest, tasks

from tilewright.hardware.architectures import board_for_gpu
from tilewright.hardware.gpu import detect
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.verify.check import check_on
from tilewright.verify.on_gpu import GpuEngine
from tilewright.verify.planning import Scope
from tilewright.verify.schedule import Compiling, Equipment
from tilewright.verify.trusted import Trusted
from tilewright.verify.verdict import Verdict

HERE = Path(__file__).parent
EXAMPLES = sorted((HERE.parent.parent / "examples").glob("*.py"))
EXPLOITS = HERE.parent / "exploits"


CHEATS, HONEST = tasks.CATALOGUE, honest.HONEST
SEEN = [name for name, cheat in CHEATS.items() if "gpu" in cheat.engines]


def checked(task: Task, *, trusted: bool = False, seconds: float = 60.0) -> Verdict:
    gpu = detect()
    assert gpu is not None
    compiling = Compiling(task, board_for_gpu(gpu.name, gpu.sms, gpu.memory_bytes, arch=gpu.arch), to_machine_code=True)
    engine = GpuEngine(task, silence=30.0)
    yardstick = Trusted(task, "cuda") if trusted and task.trusted is not None else None
    try:
        return check_on(task, Equipment(engine, yardstick, compiling), Scope(seconds=seconds))
    finally:
        engine.close()
        if yardstick is not None:
            yardstick.close()


def said(verdict: Verdict) -> str:
    reasons = [verdict.reason, *(result.reason for result in verdict.results if result.verdict == "incorrect")]
    return "\n".join([*reasons, *map(str, verdict.findings)])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_correct(example: Path) -> None:
    if example.stem == "cute_gemm":
        pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed: pip install 'tilewright[cutedsl]'")
    verdict = checked(load_task(str(example)), trusted=True, seconds=120.0)
    assert verdict.verdict == "correct", verdict.reason
    assert verdict.engine == "gpu"
    assert not [one for one in verdict.unverified if "which kernels ran" in one], "the profiler names the kernels"


@pytest.mark.parametrize("name", SEEN)
def test_a_cheat_is_caught(name: str) -> None:
    """Items 1 to 15, 20, 21 and 40 of trust.md; `CATALOGUE` says which."""
    cheat = CHEATS[name]
    verdict = checked(load_task(f"{EXPLOITS / 'tasks.py'}:{name}"), seconds=20.0)  # a crash costs a worker
    assert verdict.verdict == "incorrect", verdict.reason
    assert re.search(cheat.words, said(verdict)), said(verdict)


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_is_not(name: str) -> None:
    verdict = checked(load_task(f"{EXPLOITS / 'honest.py'}:{name}"))
    assert verdict.verdict == "correct", verdict.reason
    assert not [one for one in verdict.unverified if "not applicable" not in one], verdict.unverified
