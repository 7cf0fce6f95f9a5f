"""A command that tunes on another machine. Tests run it as a process that they may kill.

python -m tests.remote.tuning TASK FOLDER LEDGER LINGER
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tilewright.cli import exit_codes
from tilewright.cli.interruption import Signalled, interruptible
from tilewright.errors import TilewrightError
from tilewright.executors.base import Executor
from tilewright.executors.ssh import Ssh
from tilewright.hardware.gpu import Gpu
from tilewright.hardware.machine import OtherMachine
from tilewright.ledger.tunings import TuneLedger
from tilewright.race.rules import Policy
from tilewright.tune.tune import tune

WORKER = str(Path(__file__).with_name("worker.py"))
H200 = Gpu("NVIDIA H200", "sm_90", 132, 141 << 30, 50 << 20, "13.0")


class SimulatedSsh(Ssh):
    """The other side has a GPU that is simulated."""

    def place(self, task: str) -> OtherMachine:
        return replace(super().place(task), gpu=H200, driver="580.0")

    @staticmethod
    def say(remark: str) -> None:
        print(f"note: {remark}", file=sys.stderr, flush=True)


def executor(folder: Path, linger: float = 60.0, host: str = "loop") -> SimulatedSsh:
    return SimulatedSsh(host, (sys.executable, WORKER, str(folder)), linger)


def tuned(task: str, executor: Executor, ledger: str, workloads: str | None = None) -> int:
    """Tunes on an executor, prints the winners, and returns the exit code."""
    try:
        with interruptible([]), TuneLedger(Path(ledger)) as store:
            result = tune(
                task, executor=executor, policy=Policy(max_rounds=60), store=store, top=3, workloads=workloads
            )
    except TilewrightError as error:
        return exit_codes.error(str(error), error.exit_code, False)
    except Signalled as signalled:
        print(signalled, file=sys.stderr)
        return signalled.code
    for workload in result.workloads:
        print(workload.workload.name, workload.best.configuration if workload.best else None, flush=True)
    return 0


def run(executor: Callable[[Path, float], Executor], words: Sequence[str]) -> int:
    """``words``: TASK FOLDER LEDGER LINGER."""
    task, folder, ledger, linger = words
    return tuned(task, executor(Path(folder), float(linger)), ledger, "even")


if __name__ == "__main__":
    sys.exit(run(executor, sys.argv[1:]))
