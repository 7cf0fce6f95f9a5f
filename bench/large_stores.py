"""Seconds of processor time and MiB of memory to list and verify a store of 20,000 winners, and to report from a ledger
of 100,000 attempts: in runs of 200, and in one run.

    python bench/large_stores.py [--winners 20000] [--attempts 100000] [--out FILE.json]

Each command is a process of its own. The limits are 2 s for the store and 3 s for the ledger; memory is compared with
that of a store and a ledger of a tenth of the size.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common import made_here, write

from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Attempt, Iteration, RunRecord
from tilewright.records import Machine
from tilewright.runtime.key import digest
from tilewright.runtime.store.winners import Winner, Winners

COMMANDS = {
    "list": ("tuned", "list"),
    "list --json": ("tuned", "list", "--json"),
    "verify": ("tuned", "verify"),
    "verify --json": ("tuned", "verify", "--json"),
    "report": ("report", "latest", "--markdown", "-"),
    "report --list": ("report", "--list"),
    "report of one run": ("report", "latest", "--markdown", "-", "--home", "{folder}/one run"),
    "page of one run": ("report", "latest", "--html", "-", "--home", "{folder}/one run"),
}
ATTEMPTS_OF_A_RUN = 200


def winners(folder: Path, count: int) -> None:
    rows = []
    for number in range(count):
        array = {"dtype": "bfloat16", "shape": [number + 1, 1024], "strides": [1024, 1], "alignment": 0}
        parts: dict[str, Any] = {"kernel": f"kernel{number % 50}", "board": "NVIDIA H200 sm_90", "arrays": {"x": array}}
        config = {"TILE": 128}
        launch = {"kernel": parts["kernel"], "module": "nowhere", "qualname": parts["kernel"], "file": "/nowhere.py",
                  "source": "", "grid": [1, 1, 1], "arguments": [], "text": "0"}  # fmt: skip
        outcomes = tuple({"label": f"TILE={size}", "status": "timed", "us": 1.0} for size in (64, 128))
        rows.append(Winner(digest(parts), str(parts["kernel"]), parts, config, 1, "TILE=128", {"TILE": 64}, "wrapper",
                           {"board": parts["board"]}, None, outcomes, {"winner": launch}))  # fmt: skip
    Winners(folder / "tuned.db", strict=True).put_all(rows)


def one_run(folder: Path, count: int) -> None:
    (folder / "one run").mkdir()
    attempts(folder / "one run", count, runs=1)


def attempts(folder: Path, count: int, runs: int = 0) -> None:
    """Makes a ledger. ``runs``: 0 makes one for each iteration."""
    machine = Machine("sm_90", None, None, "here", {})
    each = tuple(Attempt(value="64", status="failed", reason="it spills") for _ in range(ATTEMPTS_OF_A_RUN))
    with Ledger(folder / "ledger.db") as ledger:
        ledger._opened().execute("PRAGMA synchronous = OFF")
        for number in range(count // ATTEMPTS_OF_A_RUN):
            if not number or not runs:
                run = ledger.begin(RunRecord(key=f"key {number}", task="task", machine=machine, measured=False,
                                             kernel="kernel", baseline=())).run  # fmt: skip
            ledger.append(
                run,
                Iteration(n=number if runs else 0, optimization="baseline", correctness="PASS", status="keep",
                          reason="", attempts=each),
            )  # fmt: skip


def measured(command: Sequence[str], folder: Path) -> dict[str, float]:
    environment = {**os.environ, "TILEWRIGHT_TUNED": str(folder), "TILEWRIGHT_HOME": str(folder)}
    started = time.monotonic()
    words = [word.format(folder=folder) for word in command]
    process = subprocess.Popen([sys.executable, "-m", "tilewright", *words], env=environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {"code": process.returncode, "wall_s": time.monotonic() - started, "cpu_s": used.ru_utime + used.ru_stime,
            "mib": used.ru_maxrss / 1024}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--winners", type=int, default=20_000)
    parser.add_argument("--attempts", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    for size, part in (("a tenth", 10), ("whole", 1)):
        with tempfile.TemporaryDirectory() as name:
            # In processes of their own: the memory of this one would count as that of the commands.
            for make, count in ((winners, asked.winners), (attempts, asked.attempts), (one_run, asked.attempts)):
                process = get_context("spawn").Process(target=make, args=(Path(name), count // part))
                process.start()
                process.join()
            found[size] = {title: measured(command, Path(name)) for title, command in COMMANDS.items()}
            for title, each in found[size].items():
                print(f"{size}: {title}: {each['cpu_s']:.2f} s of processor, {each['mib']:.0f} MiB", flush=True)
    write(
        asked.out and str(asked.out),
        {**made_here(), "winners": asked.winners, "attempts": asked.attempts, "found": found},
    )


if __name__ == "__main__":
    main()
