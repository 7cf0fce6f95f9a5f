"""Probes another machine: what is set up to reach it, then the probes of that machine itself."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout

from tilewright.doctor.probes import Probe
from tilewright.errors import MachineError
from tilewright.executors.base import Executor


def examine_at(executor: Executor) -> tuple[Probe, ...]:
    """Sets up what a run there needs, and runs all probes there. A failure is the last probe."""
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            executor.command(["doctor", "--json"], None, files=False)
        theirs = [Probe(**each) for each in json.loads(out.getvalue())["checks"]]
    except MachineError as error:
        stage, _ = executor.set_up()
        what, _, fix = str(error).partition("; fix: ")
        theirs = [Probe(stage, False, what, fix)]
    except (ValueError, KeyError, TypeError):
        said = out.getvalue().strip().splitlines()
        theirs = [Probe("doctor there", False, f"no answer: {said[-1] if said else 'nothing was printed'}")]
    return (*(Probe(name, True, detail) for name, detail in executor.set_up()[1]), *theirs)
