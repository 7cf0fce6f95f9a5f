"""Profiles a copy of a user's program in one traced run, like `tilewright profile -- PROGRAM`."""

from __future__ import annotations

import subprocess

from tilewright.errors import ToolFailed
from tilewright.profile.figures import Profile
from tilewright.profile.profile import profile
from tilewright.program.copies import ProgramCopy
from tilewright.program.early import Meanwhile, turn_after
from tilewright.program.places import located
from tilewright.runtime.started import SECONDS, STEPS, recorded, trace_folder, traced
from tilewright.tools.child import running

TIMED = 20
"""The number of steps after the trace, whose times show how the profiler slows the program."""


def profile_of(copy: ProgramCopy, seconds: float, meanwhile: Meanwhile | None = None) -> Profile:
    """Traces the program on its GPUs. Raises NoGpu without one, RequestError if the program leaves no trace, and
    ToolFailed if it takes longer than ``seconds``. The program is ended after `TIMED` steps without the profiler.

    meanwhile: called after the start. The program waits for its end before it uses a GPU.
    """
    folder = trace_folder()
    environment = traced(copy.environment(), folder, STEPS[1], SECONDS, STEPS[1] + TIMED)
    with turn_after(meanwhile) as (turn, give_turn):
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            copy.words, cwd=copy.cwd, env={**environment, **turn}, stdin=quiet, stdout=quiet, stderr=quiet,
            start_new_session=True,
        )  # fmt: skip
        with running(process.pid):
            give_turn()
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                raise ToolFailed(f"{copy} did not end within {seconds:.0f} s while it was traced") from None
    traces, times = recorded(folder, code)
    found = profile(*traces, steps=STEPS, command=copy.original.words, steps_us=times)
    return located(found, copy.script)
