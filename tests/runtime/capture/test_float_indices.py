"""Kernels that compute addresses from floating-point numbers: of arguments, and of arrays."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.runtime import guessed_kernels
from tests.runtime.capture.test_task_file import task_of, verdict_of

from tilewright.errors import RequestError
from tilewright.runtime.capture.described import described
from tilewright.runtime.capture.record import Recorded
from tilewright.runtime.capture.task_file import task_text
from tilewright.task.loading import load_task

torch = pytest.importorskip("torch")


def test_an_index_from_an_argument(tmp_path: Path) -> None:
    task = task_of(tmp_path, guessed_kernels.resized, (64,), torch.zeros(160, 32), torch.zeros(64, 32), 2.5, 32)
    assert verdict_of(task).startswith("correct")


def test_indices_from_an_array_whose_numbers_are_not_known(tmp_path: Path) -> None:
    """A task would draw rows outside the table."""
    arrays = torch.rand(64), torch.zeros(256, 32), torch.zeros(64, 32)
    with pytest.raises(RequestError) as error:
        task_of(tmp_path, guessed_kernels.looked_up, (64,), *arrays, 255.0, 32)
    assert str(error.value).endswith(
        "; the kernel computes addresses from the numbers in 'x', which are not known, so others were tried: "
        "capture with --data, so that their range is known"
    )


def test_indices_from_an_array_whose_numbers_were_stored(tmp_path: Path) -> None:
    x = torch.linspace(0.25, 0.75, 64)
    np.save(tmp_path / "x.npy", x.numpy())
    launch = described(guessed_kernels.looked_up, (64,), (x, torch.zeros(256, 32), torch.zeros(64, 32), 255.0, 32))
    (tmp_path / "captured.py").write_text(task_text(Recorded(launch, 1, data={"x": str(tmp_path / "x.npy")}), tmp_path))
    task = load_task(str(tmp_path / "captured.py"))
    how = task.inputs["x"].distribution
    assert (how.kind, how.a, how.b) == ("uniform", 0.25, 0.75)
    assert "addresses from numbers in x, so checks draw from the captured range" in (task.file or tmp_path).read_text()
    assert verdict_of(task).startswith("correct")


def test_an_infinite_argument(tmp_path: Path) -> None:
    """`inf` is no name in a task file."""
    arrays = torch.zeros(64, 32), torch.zeros(64, 32)
    task = task_of(tmp_path, guessed_kernels.kept_below, (64,), *arrays, 32, 0, math.inf)
    assert verdict_of(task) == "correct"
