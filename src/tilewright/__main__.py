"""``tilewright`` and ``python -m tilewright``."""

import gc
import sys

from tilewright.cli.interruption import Signalled, interruptible

COLLECT_AFTER = 100_000
"""Objects. Python's default of 700 costs a tenth of the time of imports and front ends, and frees next to nothing."""


def main() -> int:
    """The command line, imported here so that Ctrl-C or SIGTERM in that tenth of a second is one line as well."""
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


if __name__ == "__main__":
    sys.exit(main())
