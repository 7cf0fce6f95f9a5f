"""A command that tunes on a cluster. Tests run it as a process that they may kill.

python -m tests.slurm.tuning TASK FOLDER LEDGER LINGER
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tests.remote.tuning import H200, WORKER, run

from tilewright.executors.slurm import Slurm
from tilewright.hardware.machine import OtherMachine
from tilewright.remote import job_spec


class SimulatedSlurm(Slurm):
    """The compute nodes have a GPU that is simulated."""

    def place(self, task: str) -> OtherMachine:
        return replace(super().place(task), gpu=H200, driver="580.0")

    @staticmethod
    def say(remark: str) -> None:
        print(f"note: {remark}", file=sys.stderr, flush=True)


def executor(folder: Path, linger: float = 60.0, frozen: float = 60.0) -> SimulatedSlurm:
    """Returns an executor with the ``job_spec.json`` that the environment names."""
    return SimulatedSlurm(job_spec.read(), (sys.executable, WORKER, str(folder)), linger, frozen)


if __name__ == "__main__":
    sys.exit(run(executor, sys.argv[1:]))
