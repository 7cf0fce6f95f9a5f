"""Starts the command line, for ``tilewright`` and ``python -m tilewright``."""

import atexit
import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from tilewright.cli.interruption import Signalled, interruptible

COLLECT_AFTER = 400_000
"""Objects between two garbage collections. With Python's default of 700, collecting takes a tenth of the time of
imports and front ends, and frees almost nothing."""

COMPILING = ("tune", "optimize", "check", "inspect", "compare", "route", "doctor")
"""Commands that load cuda.tile in their own process, and start no program of the user."""


def main() -> int:
    """Runs the command line and returns the exit code.

    The command line is imported inside the ``try`` block: Ctrl-C or SIGTERM during the import also prints one line.
    """
    try:
        with interruptible([]):
            from tilewright.worker import early

            remove = _named_folder_of_cutile(sys.argv[1:])
            early.begin(sys.argv[1:])
            gc.set_threshold(COLLECT_AFTER)
            from tilewright.cli import main as cli

            try:
                return cli.main()
            finally:
                remove()
    except Signalled as signalled:
        print(signalled, file=sys.stderr)
        return signalled.code


def _named_folder_of_cutile(words: Sequence[str]) -> Callable[[], None]:
    """Names a temporary folder for cuda.tile, and returns what removes it."""
    if not words or words[0] not in COMPILING:
        return lambda: None
    from tilewright.tools import child

    child.name_folder_of_cutile()
    return child.remove_folder_of_cutile


def run() -> NoReturn:
    """Runs the command line, and ends this process with its exit code. This is the console script."""
    codes: list[int] = []
    atexit.register(_leave, codes)  # registered first, so Python calls it last
    codes.append(main())
    sys.exit(codes[0])


def _leave(codes: list[int]) -> None:
    """Ends the process without the rest of Python's shutdown, if `main` has returned a code.

    The rest would stop each daemon thread in the middle of a call. If that call is C++ code that must not throw, as in
    torch and in a task's own modules, the whole process aborts. It also takes 0.15 s.
    """
    if codes:
        with suppress(OSError, ValueError):  # a closed stdout: Python's own shutdown reports it
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(codes[0])


if __name__ == "__main__":
    run()
