"""``tilewright`` and ``python -m tilewright``."""

import signal
import sys
from types import FrameType


def main() -> int:
    """The command line, imported here so that Ctrl-C or SIGTERM in that tenth of a second is one line as well."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        from tilewright.cli import main as cli
    except KeyboardInterrupt as interruption:
        print("terminated" if interruption.args else "interrupted", file=sys.stderr)
        return 128 + (signal.SIGTERM if interruption.args else signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
    return cli.main()


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
