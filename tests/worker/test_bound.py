"""Scratch of a launch that a language makes itself, on torch's tensors."""

from __future__ import annotations

import pytest

from tilewright.task.task import Launch
from tilewright.task.tensors import scratch
from tilewright.worker.process.bound import _with_scratch, _zeroing

torch = pytest.importorskip("torch")


def test_each_launch_finds_zeros_in_its_scratch() -> None:
    x = torch.ones(3)
    launch, zeroed = _with_scratch(Launch("sums", (1,), (x, scratch("arrived", (4,), "int32"), 8)), {"x": x})
    assert launch.args == (x, zeroed[0], 8) and zeroed[0].dtype == torch.int32
    found = []

    def runner(stream: int | None) -> None:
        found.append(zeroed[0].tolist())
        zeroed[0].fill_(7)

    run = _zeroing(runner, zeroed)
    run(None)
    run(None)
    assert found == [[0] * 4] * 2
    assert _zeroing(runner, []) is runner
