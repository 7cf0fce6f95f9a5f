"""Times the launch of a captured task against the launches that it replaces, in a process of its own.

Both sides have the same inputs and outputs and the clock of a race. The L2 is flushed before each side. So the second
of two launches may find in the L2 what the first wrote, as in the program.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Protocol

import numpy as np

from tilewright.hardware.gpu import Monitor, detect
from tilewright.hardware.machine import target_of
from tilewright.race.protocol import Budget, Rounds, interleaved
from tilewright.race.rules import Policy
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.task.tensors import Dims
from tilewright.worker.process.backends import Runner
from tilewright.worker.process.bound import Tensors, bound
from tilewright.worker.process.buffers import Buffers, InputSets
from tilewright.worker.process.clock import GpuClock
from tilewright.worker.process.torch_backend import TorchBackend

BUDGET = Budget(rounds=200, seconds=10.0, fewest=20)
WARMUP = 2


class ReplacedLaunches(Protocol):
    """The captured launches (`runtime.capture.reference.Captured`)."""

    def runner(self, dims: Dims, tensors: Tensors) -> Runner:
        """Returns a function that makes the launches once."""


def side_by_side(task: Task) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the times of the captured launches and of the task's launch in µs, paired by round."""
    (workload, *_), board = task.selected(None), target_of(None, detect()).board
    replaced: ReplacedLaunches = getattr(task.reference, "__self__")  # noqa: B009  (its type is that of any reference)
    buffers = Buffers(task, workload.dims, TorchBackend("cuda"))
    sets, tensors = InputSets(buffers, (1, 2)), buffers.tensors()
    launched = bound(task, task.space.shipped, workload.dims, board, tensors).launch
    runners, rounds = [replaced.runner(workload.dims, tensors), launched], Rounds(2)
    with GpuClock(runners, Policy(), Monitor(), sets, lambda index: None) as clock:
        interleaved(clock, rounds, BUDGET, np.random.default_rng(0), warmup=WARMUP)
    before, now = rounds.samples_us
    return before, now


def main() -> None:
    task_file, answer = sys.argv[1:]
    Path(answer).write_text(json.dumps(side_by_side(load_task(task_file))))


if __name__ == "__main__":
    main()
