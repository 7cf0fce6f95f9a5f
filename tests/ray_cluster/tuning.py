"""A command that tunes on a Ray cluster whose GPUs are simulated. Tests run it as a process that they may kill.

python -m tests.ray_cluster.tuning ADDRESS TASK FOLDER LEDGER
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tests.remote.tuning import H200, WORKER

from tilewright.cli import exit_codes
from tilewright.cli.interruption import Signalled, interruptible
from tilewright.errors import TilewrightError
from tilewright.executors.ray import Ray
from tilewright.hardware.machine import OtherMachine
from tilewright.ledger.tunings import TuneLedger
from tilewright.race.rules import Policy
from tilewright.tune.tune import tune


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
    try:
        with interruptible([]), TuneLedger(Path(ledger)) as store:
            result = tune(task, executor=run, policy=Policy(max_rounds=60), store=store, top=3)
    except TilewrightError as error:
        return exit_codes.error(str(error), error.exit_code, False)
    except Signalled as signalled:
        print(signalled, file=sys.stderr)
        return signalled.code
    for workload in result.workloads:
        print(workload.workload.name, workload.best.configuration if workload.best else None, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
