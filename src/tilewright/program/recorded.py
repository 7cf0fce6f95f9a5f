"""Runs a program once, and records its operations. This run is slower than others, so it is never timed or compared."""

from __future__ import annotations

import os

from tilewright.program.copies import ProgramCopy
from tilewright.program.early import Meanwhile, turn_after
from tilewright.program.findings.record import RecordedRun
from tilewright.program.run import ENDLESS, PLAIN, ProgramFailed, started_program
from tilewright.runtime.operations.recording import VARIABLE


def recorded_run(copy: ProgramCopy, seconds: float, meanwhile: Meanwhile | None = None) -> RecordedRun | ProgramFailed:
    """Returns the record of a program's operations.

    seconds: the time limit of the run. The record of the process with the most operations is returned.
    meanwhile: called after the start, as in `run_program`.
    """
    wanted = {**PLAIN, "steps": ENDLESS, "seconds": 0.9 * seconds}
    variables = {VARIABLE: str(copy.root), "TORCHDYNAMO_DISABLE": "1"}
    with turn_after(meanwhile) as (turn, give_turn), started_program(copy, wanted, {**variables, **turn}) as started:
        give_turn()
        if isinstance(started, ProgramFailed):
            return started
        ended = started.result(seconds)
        if isinstance(ended, ProgramFailed):
            return ended
        files = sorted(started.folder.glob("operations*.json"), key=os.path.getsize)
        if not files:
            return ProgramFailed("exit", "the program left no record of its operations")
        return RecordedRun.read(files[-1], copy.root)
