"""Starts the command line, for ``tilewright`` and ``python -m tilewright``."""

import gc
import sys

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

            code = cli.main()
            if "triton" not in sys.modules:  # triton's objects that are not freed at the end print a warning each
                gc.freeze()  # otherwise Python searches all objects for cycles when it ends, which takes 0.15 s
            return code
    except Signalled as signalled:
        print(signalled, file=sys.stderr)
        return signalled.code


if __name__ == "__main__":
    sys.exit(main())
