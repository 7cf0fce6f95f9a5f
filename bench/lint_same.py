"""The findings and the time of `tilewright lint` before and after a change, for eighteen packages of PyPI.

    git archive COMMIT src | tar -x -C BEFORE
    python bench/lint_same.py BEFORE FOLDER OUT.json [--now AFTER] [--set-aside]

AFTER has other sources than this checkout: those with the rules of BEFORE, if a change of rules follows. FOLDER keeps
the unpacked wheels, as for `lint_packages.py`. Each package is linted by whole processes, in turn by the sources in
BEFORE and by those after the change. The time is the processor's, of the fastest process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import BENCH, lines_of, made_here, write
from lint_packages import fetched

SEEN = """
    flashinfer-python tilegym fla-core liger-kernel unsloth torchao deepspeed xformers axolotl geak-eval comfy-kitchen
    flash-mlm
""".split()  # noqa: SIM905 -- a literal list would have a line for each name
SET_ASIDE = "lint_set_aside.txt"


def linted(package: Path, sources: Path) -> tuple[list[str], int, float, float]:
    """Returns the findings as texts, the number of files, and the seconds of the processor and of the clock."""
    command = [sys.executable, "-m", "tilewright", "lint", "--json", str(package)]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(sources)})
    clock, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(done.stdout)
    words = ("code", "level", "file", "line", "column", "message")
    found = [" ".join(str(one[word]) for word in words) for one in report["findings"]]
    return found, report["files"], after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock


def compared(package: Path, before: Path, now: Path, rounds: int) -> dict[str, Any]:
    runs = [(linted(package, before), linted(package, now)) for _ in range(rounds)]
    old, new = (Counter(run[0]) for run in runs[0])
    return {
        "files": runs[0][1][1], "findings": sum(old.values()),
        "only before": sorted((old - new).elements()), "only after": sorted((new - old).elements()),
        "processor_s": [round(min(run[side][2] for run in runs), 2) for side in (0, 1)],
        "clock_s": [round(min(run[side][3] for run in runs), 2) for side in (0, 1)],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--now", type=Path, default=BENCH.parent)
    parser.add_argument("--set-aside", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in lines_of(BENCH / SET_ASIDE) if given.set_aside else SEEN:
        package = fetched(name, given.folder)
        sources = (given.before / "src", given.now / "src")
        rows[name] = compared(package, *sources, given.rounds) if isinstance(package, Path) else package
        said = {key: len(value) if key.startswith("only") else value for key, value in rows[name].items()}
        print(f"{name:20} {said}", flush=True)
    write(str(given.out), {**made_here(), "packages": rows})


if __name__ == "__main__":
    main()
