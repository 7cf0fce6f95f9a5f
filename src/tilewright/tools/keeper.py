"""The process that cleans up after a Tilewright process that was killed: it ends its tools and removes their folders.

It reads lines such as ``+ kill 123`` and ``- remove /tmp/tilewright-x`` from its standard input, and does what still
stands when the process in its argument has ended. PR_SET_PDEATHSIG would not do: a tool's own children would stay, and
it is set between fork and exec, where a process with threads must not run Python.
"""

import os
import select
import shutil
import signal
import sys
from contextlib import suppress


def keep(parent: int) -> None:
    """Waits for the end of the process ``parent``, and cleans up."""
    ends, standing, rest = [0], dict[str, None](), b""
    with suppress(OSError):  # an old kernel; the end of the input then is the parent's end
        ends.append(os.pidfd_open(parent))
    while True:
        ready, _, _ = select.select(ends, [], [])
        said = os.read(0, 1 << 16) if 0 in ready else b""
        if not said:
            break
        *lines, rest = (rest + said).split(b"\n")
        for line in lines:
            sign, _, what = os.fsdecode(line).partition(" ")
            standing.update({what: None}) if sign == "+" else standing.pop(what, None)
    for verb, _, what in (item.partition(" ") for item in standing):
        if verb == "kill":
            with suppress(OSError):
                os.killpg(int(what), signal.SIGKILL)
    for verb, _, what in (item.partition(" ") for item in standing):
        if verb == "remove":
            shutil.rmtree(what, ignore_errors=True)


if __name__ == "__main__":
    if os.fork() == 0:  # a grandchild: the user's program may wait for all of its children
        keep(int(sys.argv[1]))
    os._exit(0)
