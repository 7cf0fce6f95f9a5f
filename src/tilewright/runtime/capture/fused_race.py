"""The measured times of a fused kernel and of the two launches that it replaces, on this machine's GPU.

They are timed in a process of its own (`worker.process.side_by_side`), since a kernel may hang or break the GPU's
context.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.errors import MachineError
from tilewright.race.interval import Interval
from tilewright.race.stats import ratio_interval
from tilewright.tools import child

SECONDS = 120.0
"""Limit of processor time for the timing, with the imports and the compilation."""
CONFIDENCE = 0.99


@dataclass(frozen=True)
class RacedTimes:
    """The median times, and the interval of the time of both launches / time of the fused kernel."""

    apart_us: float
    fused_us: float
    speedup: Interval

    def __str__(self) -> str:
        faster = "faster" if self.speedup.low > 1 else "slower" if self.speedup.high < 1 else "not shown to be faster"
        ratio = f"{self.speedup.centre:.2f}×, {self.speedup}"
        return f"measured: {self.fused_us:.1f} µs, the two launches {self.apart_us:.1f} µs ({ratio}): {faster}"


def raced_times(task_file: Path) -> RacedTimes | str:
    """Times both on this machine's GPU. Returns the reason, in words, if that is not possible."""
    with child.workplace() as folder:
        answer = folder / "answer.json"
        command = [sys.executable, "-m", "tilewright.worker.process.side_by_side", str(task_file), str(answer)]
        try:
            ended = child.run(command, SECONDS, folder)
        except MachineError as error:
            return str(error)
        if not answer.is_file():
            return (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        try:
            return compared(*json.loads(answer.read_text()))
        except (TypeError, ValueError) as error:  # the kernel's own code may have written to the folder
            return f"its answer cannot be read: {error}"


def compared(apart: list[float], fused: list[float]) -> RacedTimes:
    """Compares the times of both in each round."""
    return RacedTimes(float(np.median(apart)), float(np.median(fused)), ratio_interval(apart, fused, CONFIDENCE))
