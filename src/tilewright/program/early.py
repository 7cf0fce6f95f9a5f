"""Starts programs early, while others still run: a short run is mostly imports and start-up.

    p starts · q starts · r starts and makes its steps · q makes its steps · p makes its steps

Each makes its steps alone, so its times and its outputs are those of a program that runs alone. If one fails, it may
have lacked memory, or a port that another has. That says nothing about the program, so it is made again alone.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from tilewright.program.command import ProgramCommand
from tilewright.program.reading.reach import reached_modules
from tilewright.runtime.turns import VARIABLE
from tilewright.tools.child import kill_all, workplace

Meanwhile: TypeAlias = Callable[[], None]
"""What is done between the start of a program and its turn."""
MEETS = re.compile(r"\b(init_process_group|MASTER_PORT)\b")
"""Matches the source of a program whose processes meet at a port."""
FIXED = re.compile(r"\bMASTER_PORT\b|tcp://")
"""Matches the source of a program that chooses the port."""
MANY = 4096
"""The most processes of a program that get a turn."""
LOW = 0.15
"""If less than this share of the host's memory is free, the programs are ended."""
LOOK_SECONDS = 0.5
"""The time between two looks at the free memory."""


def may_start_early(command: ProgramCommand) -> bool:
    """Returns whether several runs may exist at once: not on one processor, nor if the program may be a job of several
    processes. They may meet at a fixed port, where those of another run would join them.
    """
    if (os.cpu_count() or 1) < 2 or command.launches or "WORLD_SIZE" in os.environ:
        return False
    return not any(MEETS.search(module.text) for module in reached_modules(command.script, command.root))


def meets_apart(command: ProgramCommand) -> bool:
    """Returns whether several runs of a launched program may exist at once: ``torchrun --standalone`` gives each run a
    port of its own, unless the source chooses one.
    """
    if not command.launches or "--standalone" not in command.words:
        return False
    return not any(FIXED.search(module.text) for module in reached_modules(command.script, command.root))


@contextmanager
def turn_after(meanwhile: Meanwhile | None) -> Iterator[tuple[Mapping[str, str], Callable[[], None]]]:
    """Yields the environment variables of a program that waits for its turn, and what gives it: that does
    ``meanwhile`` first. If there is nothing to do meanwhile, the program does not wait.
    """
    if meanwhile is None:
        yield {}, lambda: None
        return
    with workplace() as folder:
        os.mkfifo(folder / "turn")
        pipe = os.open(folder / "turn", os.O_RDWR)  # opened for both directions, it does not wait for the other end

        def give() -> None:
            meanwhile()
            os.write(pipe, b"x" * MANY)

        try:
            yield {VARIABLE: str(folder / "turn")}, give
        finally:
            os.close(pipe)


@contextmanager
def enough_memory() -> Iterator[None]:
    """Kills all programs that were started in the ``with`` block if the host's memory gets low."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            now = memory()
            if now["MemAvailable"] < LOW * now["MemTotal"]:
                kill_all()

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()


def memory() -> dict[str, int]:
    """Returns the numbers of bytes in ``/proc/meminfo``, by name."""
    rows = (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return {name: 1024 * int(value.split()[0]) for name, value in rows}
