"""Runs a benchmark of this folder on another machine, and brings back what it writes.

    python bench/elsewhere.py ssh:HOST bench/against_torch.py --out bench/recorded/against_torch.json

Files to write have to be in this repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tilewright.errors import TilewrightError
from tilewright.executors import executor_on


def main() -> int:
    where, *words = sys.argv[1:] or [""]
    if not words or not words[0].endswith(".py") or not Path(words[0]).is_file():
        sys.exit("name a machine and a benchmark: python bench/elsewhere.py ssh:HOST bench/against_torch.py --out FILE")
    try:
        with executor_on(where) as executor:
            executor.say = lambda remark: print(f"note: {remark}", file=sys.stderr)
            return executor.command(words, None, [Path(words[0])])
    except TilewrightError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    sys.exit(main())
