"""Cleans up after a Tilewright process that was killed: kills its tools and removes their folders.

The keeper is a process of its own. It reads duties from its standard input: ``+ kill 123`` adds a duty, ``- kill 123``
removes it. A duty is ``kill GROUP``, ``sweep FOLDER`` or ``remove FOLDER``. When the Tilewright process has ended, the
keeper carries out the remaining duties. PR_SET_PDEATHSIG cannot replace the keeper, because it does not end the
children of a tool. Also, a process with threads cannot set it safely between fork and exec.
"""

import os
import select
import shutil
import signal
import sys
import time
from contextlib import suppress

TRIES, SECONDS = 100, 0.05


def keep(parent: int) -> None:
    """Waits until the process with the id ``parent`` has ended, and cleans up."""
    ends, duties, rest = [0], dict[str, None](), b""
    with suppress(OSError):  # an old Linux has no pidfd: there the end of the input shows that the parent has ended
        ends.append(os.pidfd_open(parent))
    while True:
        ready, _, _ = select.select(ends, [], [])
        said = os.read(0, 1 << 16) if 0 in ready else b""
        if not said:
            break
        *lines, rest = (rest + said).split(b"\n")
        for line in lines:
            sign, _, duty = os.fsdecode(line).partition(" ")
            duties.update({duty: None}) if sign == "+" else duties.pop(duty, None)
    for verb, _, what in (duty.partition(" ") for duty in duties):
        if verb == "kill":
            with suppress(OSError):
                os.killpg(int(what), signal.SIGKILL)
        elif verb == "sweep":
            sweep(what)
    for verb, _, what in (duty.partition(" ") for duty in duties):
        if verb == "remove":
            _remove(what)


def sweep(folder: str) -> None:
    """Kills the processes whose ``TMPDIR`` is ``folder``: those of a tool that left the tool's process group."""
    mark = os.fsencode(f"TMPDIR={folder}")
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or belongs to another user
            with open(f"/proc/{process}/environ", "rb") as file:
                marked = mark in file.read().split(b"\0")
            if marked:
                os.kill(int(process), signal.SIGKILL)


def _remove(folder: str) -> None:
    """Removes a folder. A tool that is about to end, such as git, may still write into it."""
    for _ in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(SECONDS)


if __name__ == "__main__":
    if os.fork() == 0:  # the keeper is a grandchild, because the user's program may wait for all of its children
        keep(int(sys.argv[1]))
    os._exit(0)
