"""``tilewright`` and ``python -m tilewright``."""

import sys


def main() -> int:
    """The command line. It is imported here, so that Ctrl-C in that tenth of a second is one line as well."""
    try:
        from tilewright.cli import main as cli
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
