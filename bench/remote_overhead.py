"""What a step costs beyond ssh: the time of a message to the resident worker of `--on ssh:HOST`, and of ssh alone.

    python bench/remote_overhead.py HOST --out bench/recorded/remote_overhead.json

A line goes to the other machine and comes back: through one open connection of ssh and ``cat``; and as a step through
the ssh executor, its resident process and a worker process that answers at once. Both take turns. The worker is a
stand-in, so that what a GPU does in a step is left out. It is also asked on this machine. A small step has 200 bytes, a
large one 200 kB, as machine code in a race. A step should take at most 20 ms more than ssh's own round trip.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common import made_here, write

from tilewright.executors.base import Executor
from tilewright.executors.local import Local
from tilewright.executors.ssh import Ssh
from tilewright.remote.connection import OPTIONS, ssh_command
from tilewright.worker.messages import PrepareInputs

LIMIT_MS = 20.0
WORKER = """\
import sys
from tilewright.worker.messages import *
receive(sys.stdin)
send(sys.stdout, Started())
while receive(sys.stdin) is not None:
    send(sys.stdout, InputsReady((), False))
"""
SIZES = {"small": 200, "large": 200_000}
"""Bytes of a step."""


def ms(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - started)


def asking(executor: Executor, size: int) -> Callable[[], None]:
    step = PrepareInputs("x" * size, 1)

    def ask() -> None:
        outcome = executor.run(step)
        if outcome.status != "PASSED":
            sys.exit(f"the worker did not answer: {outcome.reason}")

    return ask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host")
    parser.add_argument("--out")
    parser.add_argument("--times", type=int, default=300)
    given = parser.parse_args()
    worker, pipe = (sys.executable, "-c", WORKER), subprocess.PIPE
    command = [*ssh_command(), *OPTIONS, given.host, "exec cat"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdin=pipe, stdout=pipe) as cat,
        Ssh(given.host, worker) as there,
        Local(command=worker) as here,
    ):
        task = Path(folder, "task.py")
        task.touch()
        assert cat.stdin is not None and cat.stdout is not None
        sent, received = cat.stdin, cat.stdout

        def echo(size: int) -> Callable[[], None]:
            line = b"x" * size + b"\n"

            def send() -> None:
                sent.write(line)
                sent.flush()
                received.readline()

            return send

        for executor in (there, here):
            executor.open(str(task))
        found = {}
        for kind, size in SIZES.items():
            asked = {"ssh alone": echo(size), "step over ssh": asking(there, size), "step here": asking(here, size)}
            found[kind] = measured(asked, given.times)
            print(f"{kind}: {', '.join(f'{name} {each:.2f} ms' for name, each in found[kind]['median_ms'].items())}; "
                  f"{found[kind]['beyond_ssh_ms']:.2f} ms beyond ssh, at most {LIMIT_MS:g}")  # fmt: skip
        sent.close()
    write(given.out, {**made_here(), "steps": given.times, "limit_ms": LIMIT_MS, **found})


def measured(asked: Mapping[str, Callable[[], None]], times: int) -> dict[str, Any]:
    """Returns median and spread of each, and the median of what a step takes beyond ssh in the same turn, in ms."""
    for work in asked.values():  # connections and processes start
        work()
    rows = {name: [] for name in asked}  # type: dict[str, list[float]]
    for _ in range(times):
        for name, work in asked.items():
            rows[name].append(ms(work))
    parts = {name: statistics.quantiles(each, n=20) for name, each in rows.items()}
    turns = zip(rows["step over ssh"], rows["ssh alone"], strict=True)
    return {
        "median_ms": {name: statistics.median(each) for name, each in rows.items()},
        "from_5_to_95_percent_ms": {name: [each[0], each[-1]] for name, each in parts.items()},
        "beyond_ssh_ms": statistics.median(step - alone for step, alone in turns),
    }


if __name__ == "__main__":
    main()
