"""Runs in a program that is raced: after each slice of some steps, the program waits for its next turn.

The parent process gives turns through two named pipes. It writes a byte to `GO` for each slice. The program writes
lines to `DONE`: first the unit of a step and the device, then the time of each slice. When the parent is gone, the
program ends.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

GO, DONE = "go", "done"
"""The names of the pipes."""


class Slices:
    """Waits after the first step of a run, and then after every ``steps`` steps."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.steps, self._left, self._began = steps, 1, 0
        self._go, self._done = os.open(folder / GO, os.O_RDONLY), os.open(folder / DONE, os.O_WRONLY)

    def stepped(self, unit: str, device: str) -> None:
        """Counts a step. At the end of a slice it waits for the GPU, reports the slice, and waits for the next turn."""
        self._left -= 1
        if self._left:
            return
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        us = (time.perf_counter_ns() - self._began) / 1e3 / self.steps
        told = {"us": us} if self._began else {"unit": unit, "device": device}
        os.write(self._done, f"{json.dumps(told)}\n".encode())
        if not os.read(self._go, 1):
            os._exit(0)
        self._left, self._began = self.steps, time.perf_counter_ns()
