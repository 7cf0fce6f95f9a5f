"""A command that tunes on a Ray cluster whose GPUs are simulated. Tests run it as a process that they may kill.

python -m tests.ray_cluster.tuning ADDRESS TASK FOLDER LEDGER
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tests.remote.tuning import H200, WORKER, tuned

from tilewright.executors.ray import Ray
from tilewright.hardware.machine import OtherMachine


class SimulatedRay(Ray):
    """The cluster's GPUs are simulated."""

    def place(self, task: str) -> OtherMachine:
        return replace(super().place(task), gpu=H200, driver="580.0")


def executor(address: str, folder: Path) -> SimulatedRay:
    return SimulatedRay(address, (sys.executable, WORKER, str(folder)))


def main() -> int:
    address, task, folder, ledger = sys.argv[1:]
    run = executor(address, Path(folder))
    run.say = lambda remark: print(f"note: {remark}", file=sys.stderr, flush=True)
    return tuned(task, run, ledger)


if __name__ == "__main__":
    sys.exit(main())
