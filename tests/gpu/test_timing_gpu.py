"""The clock on a GPU: what stands in the buffers when a launch is timed, and cheats that gain nothing from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.gpu import timing_tasks

from tilewright.hardware.gpu import Monitor
from tilewright.race.rules import Policy
from tilewright.records import WorkloadResult
from tilewright.task.task import Task
from tilewright.task.tensors import Output, Tensor
from tilewright.tune.tune import tune

torch = pytest.importorskip("torch", reason="the worker keeps its memory in torch")

EXAMPLES = Path(__file__).parents[2] / "examples"
TASKS = Path(timing_tasks.__file__)
L2, MODE = ["cold", "warm"], ["graph", "eager"]
N = 4096


def doubling(shape: tuple[str, ...] = ("N",), **more: Any) -> Task:
    return Task(
        name="double",
        tensors={"x": Tensor(shape, "float32"), "y": Output(shape, "float32", **more)},
        reference=lambda x: 2 * x,
        launch=lambda x: None,  # type: ignore[arg-type,return-value]
        flops=lambda N: N,
        space=timing_tasks.task.space,
        workloads={"only": {"N": N}},
    )


@pytest.mark.parametrize("l2", L2)
@pytest.mark.parametrize("mode", MODE)
def test_each_launch_finds_poison_and_each_round_other_inputs(
    l2: Literal["cold", "warm"], mode: Literal["graph", "eager"]
) -> None:
    """trust.md 38. The candidates: one doubles, one looks whether the output holds a number, one does nothing."""
    from tilewright.worker.process.buffers import Buffers, InputSets
    from tilewright.worker.process.clock import GpuClock
    from tilewright.worker.process.torch_backend import TorchBackend

    buffers = Buffers(doubling(), {"N": N}, TorchBackend("cuda"))
    sets, found = InputSets(buffers, (1, 2)), torch.zeros(1, device="cuda")
    x, y = buffers.tensors()["x"], buffers.tensors()["y"]
    kept = [part["x"].view(torch.float32).clone() for part in sets._sets]

    def looks(stream: int | None) -> None:
        found.add_((y == y).any())
        y.copy_(x)

    runners: list[Callable[[int | None], None]] = [lambda stream: y.copy_(2 * x), looks, lambda stream: None]
    with GpuClock(runners, Policy(l2=l2, launch=mode), Monitor(), sets, lambda index: None) as clock:
        found.zero_()
        torch.cuda.synchronize()
        for turn in range(6):
            clock.round([1, 2, 0])
            assert torch.equal(x, kept[turn % 2]) and torch.equal(y, 2 * kept[turn % 2])
        clock.round([0, 2])
        assert y.isnan().all(), "the answer of the launch before is gone"
    assert found.item() == 0, "no launch found a number in the output"


def test_an_output_that_updates_begins_with_the_inputs_of_the_round() -> None:
    from tilewright.worker.process.buffers import Buffers, InputSets
    from tilewright.worker.process.clock import GpuClock
    from tilewright.worker.process.torch_backend import TorchBackend

    buffers = Buffers(doubling(updates="x"), {"N": N}, TorchBackend("cuda"))
    sets, tensors = InputSets(buffers, (1, 2)), buffers.tensors()
    with GpuClock([lambda s: tensors["y"].mul_(2)], Policy(), Monitor(), sets, lambda index: None) as clock:
        for _ in range(3):
            clock.round([0])
            assert torch.equal(tensors["y"], 2 * tensors["x"])


def tuned(task: str | Path, workload: str, **more: Any) -> WorkloadResult:
    return tune(str(task), workloads=[workload], store=False, seed=5, policy=Policy(max_rounds=100, **more)).workloads[
        0
    ]


@pytest.mark.parametrize("l2", L2)
@pytest.mark.parametrize("mode", MODE)
def test_an_answer_that_is_already_there_saves_no_time(l2: str, mode: str) -> None:
    """trust.md 38: without poison it takes a small share of the time."""
    result = tuned(TASKS, "even", l2=l2, launch=mode)
    us = {one.configuration.KERNEL: one.measured.us for one in result.candidates if one.measured}
    assert set(us) == {"works", "already_there"}
    assert us["already_there"] > 0.9 * us["works"], us
    assert result.race is not None
    monitor: Any = result.race["monitor"]
    assert monitor["outputs"] == "poisoned before each launch"
    assert monitor["alternating_share_of_inputs"] == {"x": 1.0}


@pytest.mark.parametrize(
    ("example", "workload", "l2"),
    [("rms_norm.py", "2048x4096", "cold"), ("rms_norm.py", "2048x4096", "warm"), ("rms_norm.py", "16384x4096", "cold"),
     ("naive/matmul.py", "4096", "cold"), ("naive/softmax.py", "16384x4096", "cold"),
     ("naive/rope.py", "prefill", "cold")],
)  # fmt: skip
def test_no_honest_time_is_refused(example: str, workload: str, l2: str) -> None:
    """trust.md 23."""
    result = tuned(EXAMPLES / example, workload, l2=l2)
    assert result.best is not None and result.best.measured is not None
    assert not [one.reason for one in result.candidates if one.status == "wrong"]
