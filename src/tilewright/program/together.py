"""Makes runs of programs at the same time, of which nothing is timed.

A short run is mostly imports and start-up, so a few at once take little longer than one. A run that fails beside
others may lack memory, or a port that another has. This says nothing about the program, so it is made again alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TypeVar

from tilewright.program.command import ProgramCommand
from tilewright.program.run import ProgramFailed
from tilewright.tools.child import ToolPool, kill_all

T = TypeVar("T")
LOW = 0.15
"""If less than this share of the host's memory is free, the runs are ended, and made one after another."""
LOOK_SECONDS = 0.5
"""The time between two looks at the free memory."""


def may_overlap(command: ProgramCommand) -> bool:
    """Returns whether several runs may be made at once: not on one processor, nor if the command is a job of several
    processes, which may meet at a fixed port.
    """
    return (os.cpu_count() or 1) > 1 and not command.launches and int(os.environ.get("WORLD_SIZE", "1")) == 1


def together(runs: Sequence[Callable[[], T | ProgramFailed]], *, overlap: bool = True) -> list[T | ProgramFailed]:
    """Makes the runs at the same time. Returns their results in the same order.

    Those that failed are made again, one after another. If the first fails alone, too, the others are not made again.
    overlap: False: each is made only alone.
    """
    found: list[T | ProgramFailed] = [ProgramFailed("start", "not started") for _ in runs]
    if overlap:
        with ToolPool(len(runs), "runs") as pool:
            futures = [pool.submit(run) for run in runs]
            _watch_memory(futures)
            found = [future.result() for future in futures]
    for n, run in enumerate(runs):
        if isinstance(found[n], ProgramFailed):
            found[n] = run()
            if n == 0 and isinstance(found[0], ProgramFailed):
                break
    return found


def _watch_memory(futures: Sequence[Future[T]]) -> None:
    """Waits for the end of all runs. Ends them if the host's memory gets low."""
    while wait(futures, LOOK_SECONDS).not_done:
        if memory()["MemAvailable"] < LOW * memory()["MemTotal"]:
            kill_all()


def memory() -> dict[str, int]:
    """Returns the numbers of bytes in ``/proc/meminfo``, by name."""
    rows = (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return {name: 1024 * int(value.split()[0]) for name, value in rows}
