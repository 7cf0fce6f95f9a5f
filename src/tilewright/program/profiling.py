"""Profiles a copy of a user's program in one traced run, like `tilewright profile -- PROGRAM`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tilewright.errors import ToolFailed
from tilewright.profile.figures import Profile
from tilewright.profile.profile import profile
from tilewright.program.copies import ProgramCopy
from tilewright.program.early import Meanwhile, turn_after
from tilewright.program.places import located
from tilewright.program.run import kill_tree
from tilewright.runtime.started import SECONDS, STEPS, recorded, trace_folder, traced
from tilewright.tools.child import running

TIMED = 20
"""The number of steps after the trace, whose times show how the profiler slows the program."""


def profile_of(copy: ProgramCopy, seconds: float, meanwhile: Meanwhile | None = None) -> Profile:
    """Profiles the program on its GPUs. Raises like `traces_of`."""
    traces, times = traces_of(copy, seconds, meanwhile)
    found = profile(*traces, steps=STEPS, command=copy.original.words, steps_us=times)
    return located(found, copy.script)


def traces_of(
    copy: ProgramCopy, seconds: float, meanwhile: Meanwhile | None = None
) -> tuple[Sequence[Path], Sequence[float]]:
    """Traces the program on its GPUs. Returns the traces of its processes, and the times of steps without the profiler.

    Raises NoGpu without a GPU, RequestError if the program leaves no trace, and ToolFailed if it takes longer than
    ``seconds``. The program is ended after `TIMED` steps without the profiler.

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
                kill_tree(process.pid)
                raise ToolFailed(f"{copy} did not end within {seconds:.0f} s while it was traced") from None
    return recorded(folder, code)
