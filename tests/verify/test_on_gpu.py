"""The parent's side of running on a GPU, with a stand-in for the session: what is sent, and what a loss becomes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.records import Configuration
from tilewright.space.space import Space
from tilewright.task.task import Task
from tilewright.task.tensors import Output, Tensor
from tilewright.verify.engine import RunOptions
from tilewright.verify.images import images_for
from tilewright.verify.on_gpu import GpuEngine
from tilewright.worker.messages import ImagesRan, RunImages
from tilewright.worker.outcome import Outcome

CONFIG = Configuration.of({"TILE": 16})
DIMS = {"N": 9}
TASK = Task(
    name="double",
    tensors={"x": Tensor(("N",), "float32"), "y": Output(("N",), "float32", in_place_of="x")},
    reference=lambda x: 2 * x,
    launch=lambda x: None,  # type: ignore[arg-type,return-value]
    flops=lambda N: N,
    space=Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
    workloads={"only": DIMS},
)
ANSWER = ImagesRan((), ("double_Kt1",), "", "double_Kt1", 2)
SPOIL = replace(ANSWER, kernels_why="the worker loses a file")


class Scripted:
    """Answers as the worker would, after doubling the bytes' floats where it runs."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[RunImages] = []

    def run(self, step: RunImages, *, silence: float) -> Any:
        self.asked.append(step)
        answer = self.answers.pop(0)
        if isinstance(answer, ImagesRan):
            for one in step.images:
                raw = np.fromfile(one.file, np.uint8)
                raw[one.offset : one.offset + 4] = 7
                raw.tofile(one.file)
            if answer is SPOIL:
                Path(step.images[0].file).unlink()
        return answer if isinstance(answer, Outcome) else Outcome("PASSED", answer)

    def close(self, wait: bool = True) -> None:
        raise AssertionError("a session that was lent is not closed")


def engine(*answers: Any, **more: Any) -> tuple[GpuEngine, Scripted]:
    session = Scripted(*answers)
    return GpuEngine(TASK, session, **more), session  # type: ignore[arg-type]


def images() -> Any:
    return images_for(TASK, DIMS, {"x": np.ones(9, np.float32)}, "row-major", 0xFF)


def test_the_bytes_that_come_back_are_in_the_images() -> None:
    gpu, session = engine(ANSWER)
    one = images()
    ran = gpu.run(CONFIG, DIMS, one, RunOptions(launches=3))
    assert (ran.failed, ran.kernels, ran.declared, ran.touched_early) == (None, ("double_Kt1",), "double_Kt1", ())
    assert ran.uploads == 2
    assert one["y"].array.view(np.uint8)[:4].tolist() == [7, 7, 7, 7]
    request = session.asked[0]
    assert isinstance(request, RunImages) and (request.launches, request.outputs) == (3, ("y",))
    assert [image.name for image in request.images] == ["x", "y"]
    assert not Path(request.images[0].file).exists(), "the files are gone after the run"


def test_an_output_in_place_has_no_image_of_its_own() -> None:
    gpu, session = engine(ANSWER)
    one = images()
    poisoned = one["y"].raw.copy()
    gpu.run(CONFIG, DIMS, one, RunOptions(alias={"y": "x"}))
    assert [image.name for image in session.asked[0].images] == ["x"]
    assert session.asked[0].alias == {"y": "x"} and session.asked[0].outputs == ("y",)
    assert np.array_equal(one["y"].raw, poisoned)


def test_a_lost_worker_is_the_kernels_failure() -> None:
    """trust.md 14, 29."""
    gpu, _ = engine(Outcome("FAILED", reason="CUDA error: an illegal memory access was encountered"), ANSWER)
    one = images()
    before = one["y"].raw.copy()
    ran = gpu.run(CONFIG, DIMS, one)
    assert ran.failed is not None and (ran.failed.stage, "illegal memory" in ran.failed.reason) == ("launch", True)
    assert np.array_equal(one["y"].raw, before)
    assert gpu.run(CONFIG, DIMS, one).failed is None, "the next run has another worker"


def test_bytes_that_are_missing_fail_the_run() -> None:
    gpu, _ = engine(SPOIL)
    ran = gpu.run(CONFIG, DIMS, images())
    assert ran.failed is not None and "left 0 bytes for 'x'" in ran.failed.reason


@pytest.mark.parametrize("addresses", [0, 1])
def test_successive_runs_are_at_the_same_addresses_and_at_others(addresses: int) -> None:
    """trust.md 20: `examining` takes contents A, then B there, A elsewhere, a changed A there."""
    gpu, session = engine(*[ANSWER] * 4, addresses=addresses)
    for _ in range(4):
        gpu.run(CONFIG, DIMS, images())
    places = [request.place for request in session.asked]
    assert places == ([0, 0, 1, 1] if addresses == 0 else [0, 1, 1, 0])


def test_names_that_are_not_known_say_why() -> None:
    gpu, _ = engine(ImagesRan((), None, "torch.profiler does not start: no CUPTI", "double"))
    assert gpu.run(CONFIG, DIMS, images()).kernels is None
    assert "no CUPTI" in gpu.kernels_why


def test_a_session_that_was_lent_is_left_open() -> None:
    engine()[0].close()
