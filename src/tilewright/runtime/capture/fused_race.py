"""Races a fused kernel against the two launches that it replaces, on this machine's GPU.

The race is made in a process of its own, since a kernel may hang or break the GPU's context. Both sides have the same
inputs and outputs and the clock of `tune`. The L2 is flushed before each side. So the second of the two launches may
find the intermediate array in the L2, as in the program.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.errors import MachineError
from tilewright.hardware.gpu import Monitor, detect
from tilewright.hardware.machine import target_of
from tilewright.ledger import codec
from tilewright.race.interval import Interval
from tilewright.race.protocol import Budget, Rounds, interleaved
from tilewright.race.rules import Policy
from tilewright.race.stats import ratio_interval
from tilewright.runtime.capture.reference import captured_of
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tools import child

BUDGET = Budget(rounds=200, seconds=10.0, fewest=20)
SECONDS = 120.0
"""Limit of processor time for the race, with the imports and the compilation."""


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
    """Returns the result of the race; or the reason, in words, why there is none."""
    with child.workplace() as folder:
        answer = folder / "answer.json"
        command = [sys.executable, "-m", "tilewright.runtime.capture.fused_race", str(task_file), str(answer)]
        try:
            ended = child.run(command, SECONDS, folder)
        except MachineError as error:
            return str(error)
        if not answer.is_file():
            return (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        try:
            return codec.from_json(RacedTimes, json.loads(answer.read_text()))
        except ValueError as error:  # the kernel's own code may have written to the folder
            return f"its answer cannot be read: {error}"


def _raced(task: Task) -> RacedTimes:
    """Times both sides in rounds, in a new random order each, and compares them round by round."""
    from tilewright.worker.process.bound import bound
    from tilewright.worker.process.buffers import Buffers, InputSets
    from tilewright.worker.process.clock import GpuClock
    from tilewright.worker.process.torch_backend import TorchBackend

    (workload, *_), board = task.selected(None), target_of(None, detect()).board
    buffers = Buffers(task, workload.dims, TorchBackend("cuda"))
    sets, tensors = InputSets(buffers, (1, 2)), buffers.tensors()
    fused = bound(task, task.space.shipped, workload.dims, board, tensors).launch
    apart, rounds = captured_of(task).runner(workload.dims, tensors), Rounds(2)
    with GpuClock([apart, fused], Policy(), Monitor(), sets, lambda index: None) as clock:
        interleaved(clock, rounds, BUDGET, np.random.default_rng(0), warmup=2)
    both, one = rounds.samples_us
    return RacedTimes(float(np.median(both)), float(np.median(one)), ratio_interval(both, one, 0.99))


def main() -> None:
    task_file, answer = sys.argv[1:]
    raced = _raced(load_task(task_file))
    Path(answer).write_text(json.dumps(codec.to_json(raced)))


if __name__ == "__main__":
    main()
