"""A fused kernel is timed against the two launches that it replaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime import fused_kernels as kernels

from tilewright.runtime.capture import capture, fuse
from tilewright.runtime.capture import record as capture_record
from tilewright.runtime.capture.fused_race import RacedTimes
from tilewright.runtime.capture.pairs import pairs
from tilewright.task.loading import load_task
from tilewright.verify.check import check

torch = pytest.importorskip("torch")
ct = pytest.importorskip("cuda.tile")


def test_addition_and_softmax_are_one_kernel_and_faster(tmp_path: Path) -> None:
    """The two launches move five arrays of 64 MiB, the fused kernel three."""
    x, y, between, out = (torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    stream = torch.cuda.current_stream()
    with capture.capturing(tmp_path / "c.json"):
        for _ in range(4):
            ct.launch(stream, (8192,), kernels.add, (x, y, between, 4096))
            ct.launch(stream, (8192,), kernels.softmax, (between, out, 4096))
    torch.cuda.synchronize()
    recorded = capture_record.read(tmp_path / "c.json")
    (pair,) = pairs(recorded).found
    made = fuse.fused_task(recorded, pair.producer, pair.consumer, tmp_path / "task.py")
    assert isinstance(made.raced, RacedTimes), made.raced
    assert made.raced.speedup.low > 1.2, made.raced
    (tmp_path / "task.py").write_text(made.task)
    (verdict,) = check(load_task(str(tmp_path / "task.py")), quick=True)
    assert verdict.verdict == "correct", verdict.reason
