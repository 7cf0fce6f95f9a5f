"""``tilewright`` and ``python -m tilewright``."""

import sys

from tilewright.cli.interruption import Signalled, interruptible


def main() -> int:
    """The command line, imported here so that Ctrl-C or SIGTERM in that tenth of a second is one line as well."""
    try:
        with interruptible([]):
            from tilewright.cli import main as cli

            return cli.main()
    except Signalled as signalled:
        print(signalled, file=sys.stderr)
        return signalled.code


if __name__ == "__main__":
    sys.exit(main())
