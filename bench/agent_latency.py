"""How long `tilewright route` and the planning of `tilewright agent` take: whole processes, as a user starts them.

    python bench/agent_latency.py [--rounds 21] [--out FILE.json]

`agent` is started without a terminal, so it plans and runs nothing. It plans for a copy of examples/slow_training in a
git repository, with a home of its own. The commands take turns, after one of each that does not count. ``python`` is
the time of an interpreter that does nothing: what no command can be below. At most 0.5 s is the goal. A busy machine
lengthens the wall time; the seconds of the processor are shown beside it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from common import EXAMPLES, made_here, write

from tilewright.race.stats import median_interval

ALLOWED_S = 0.5
"""Issue 15."""
TILEWRIGHT = (sys.executable, "-m", "tilewright")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "python": (sys.executable, "-c", "pass"),
    "route": (*TILEWRIGHT, "route", "Write a Triton kernel for fused SiLU-mul", "--json"),
    "route, a file": (*TILEWRIGHT, "route", "my kernel is slow", "kernels.py", "--json"),
    "agent, vague": (*TILEWRIGHT, "agent", "speed up train.py"),
    "agent, specific": (*TILEWRIGHT, "agent", "Enable FlashAttention for the attention in train.py"),
}


def folder_of_a_user(place: Path) -> Path:
    """A git repository with the slow training program."""
    tree = place / "program"
    shutil.copytree(EXAMPLES / "slow_training", tree, ignore=shutil.ignore_patterns("__pycache__", "*.md"))
    git = ("git", "-c", "user.name=bench", "-c", "user.email=bench@example.org")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "as it is")):
        subprocess.run([*git, *words], cwd=tree, check=True)
    return tree


@dataclass(frozen=True)
class Took:
    """Seconds of one process: from its start to its end, and of the processor, its own children included."""

    wall: float
    cpu: float


def took(words: Sequence[str], tree: Path, home: Path) -> Took:
    environment = {**os.environ, "TILEWRIGHT_HOME": str(home)}
    with tempfile.TemporaryFile("w+") as said:
        started = time.perf_counter()
        process = subprocess.Popen(words, cwd=tree, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if process.returncode != 0:
            sys.exit(f"{' '.join(words[1:])} ended with {process.returncode}: {said.read().strip()[-500:]}")
    return Took(seconds, used.ru_utime + used.ru_stime)


def measured(rounds: int, seed: int = 0) -> dict[str, list[Took]]:
    """Name → each process. The order within a round is drawn."""
    draw, samples = random.Random(seed), {name: [] for name in COMMANDS}  # type: dict[str, list[Took]]
    with tempfile.TemporaryDirectory(prefix="agent-latency-") as place:
        tree = folder_of_a_user(Path(place))
        for turn in range(rounds + 1):
            for name in draw.sample(list(COMMANDS), len(COMMANDS)):
                one = took(COMMANDS[name], tree, Path(place, "home"))
                if turn:
                    samples[name].append(one)
    return samples


def row(name: str, samples: Sequence[Took]) -> dict[str, Any]:
    found = median_interval([one.wall for one in samples])
    return {
        "command": name, "median_s": found.centre, "interval_s": [found.low, found.high],
        "processor_s": median(one.cpu for one in samples), "samples": [asdict(one) for one in samples],
        "within": name == "python" or found.centre <= ALLOWED_S,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out")
    given = parser.parse_args()
    rows = [row(name, samples) for name, samples in measured(given.rounds).items()]
    for each in rows:
        low, high = each["interval_s"]
        verdict = "" if each["within"] else f"  above {ALLOWED_S} s"
        cpu = f"processor {each['processor_s']:.3f} s"
        print(f"{each['command']:16} {each['median_s']:.3f} s ({low:.3f} to {high:.3f}), {cpu}{verdict}")
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}")
    words = {name: list(command[1:]) for name, command in COMMANDS.items()}
    write(given.out, {**made_here(), "cores": os.cpu_count(), "load": load, "commands": words, "rows": rows})
    sys.exit(0 if all(each["within"] for each in rows) else 1)


if __name__ == "__main__":
    main()
