"""Starts the command line, for ``tilewright`` and ``python -m tilewright``."""

import atexit
import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

from tilewright.cli.interruption import Signalled, interruptible

COLLECT_AFTER = 400_000
"""Objects between two garbage collections. With Python's default of 700, collecting takes a tenth of the time of
imports and front ends, and frees almost nothing."""


def main() -> int:
    """Runs the command line and returns the exit code.

    The command line is imported inside the ``try`` block: Ctrl-C or SIGTERM during the import also prints one line.
    """
    try:
        with interruptible([]):
            from tilewright.worker import early

            early.begin(sys.argv[1:])
            gc.set_threshold(COLLECT_AFTER)
            from tilewright.cli import main as cli

            return cli.main()
    except Signalled as signalled:
        print(signalled, file=sys.stderr)
        return signalled.code


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
