"""The worker process of tests of remote runs: a clock that is simulated, and steps that wait for a file."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.race import protocol
from tilewright.records import Checked
from tilewright.task.loading import load_task
from tilewright.testing.simulated import SimulatedClock
from tilewright.worker import messages as ask
from tilewright.worker.messages import private_stdout, receive, send


def us_of(source: ask.Source) -> float:
    """The true time of a candidate: shorter for larger tiles."""
    assert isinstance(source, ask.Program)
    return 10.0 + source.grid[0] / 10


def main() -> None:
    folder, out = Path(sys.argv[1]), private_stdout()
    opened = receive(sys.stdin)
    assert isinstance(opened, ask.OpenTask)
    try:
        load_task(opened.where, dict(opened.files))
    except TilewrightError as error:
        return send(out, ask.Refused(str(error)))
    send(out, ask.Started())
    while (step := receive(sys.stdin)) is not None:
        with (folder / "steps").open("a") as steps:
            steps.write(f"{type(step).__name__}\n")
        if isinstance(step, ask.Hello):
            send(out, ask.Advanced(1))
            send(out, ask.Greeting("simulated", "13.0"))
        elif isinstance(step, ask.PrepareInputs):
            if step.workload == "deadly":
                sys.exit("killed by a kernel")
            if step.workload == "hangs":
                time.sleep(3600)
            send(out, ask.InputsReady((), new=True))
        elif isinstance(step, ask.CheckOutputs):
            send(out, ask.OutputsChecked(Checked("correct", "simulated")))
        elif isinstance(step, ask.RaceField):
            while (folder / "hold").exists():
                send(out, ask.Advanced(0))
                time.sleep(0.02)
            clock = SimulatedClock([us_of(source) for source in step.sources], seed=1)
            race = protocol.race(
                len(step.sources), clock, step.policy, cost=step.costs, shipped=step.shipped,
                rng=np.random.default_rng(0),
            )  # fmt: skip
            send(out, ask.FieldRaced(race, {}, None))


if __name__ == "__main__":
    main()
