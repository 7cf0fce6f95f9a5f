"""How many kernels of two Triton libraries become tasks when they are captured, and how many of these check.

    python bench/triton_captured.py FOLDER OUT [--set-aside] [--only PART] [--jobs N]

FOLDER is as for `bench/triton_corpus.py`, whose operations are captured here. OUT gets the record, a task file for the
first launch of each kernel, and ``result.json``. Each task is written by `tilewright captured task` and checked by
`tilewright check --quick`, as a user does it. Rows that OUT has already are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from triton_corpus import run_all, without_a_gpu

from tilewright.runtime.capture import record as capture_record
from tilewright.runtime.capture.capture import capturing

SECONDS = 600


def recorded(root: Path, record: Path, set_aside: bool, only: str) -> None:
    """Runs the operations, and records their launches."""
    sys.path.insert(0, str(root))
    without_a_gpu()
    torch.cuda.is_current_stream_capturing = lambda: False
    from triton_corpus_cases import CASES
    from triton_corpus_launches import Launches

    cases = CASES
    if set_aside:
        from triton_corpus_set_aside import CASES as cases
    launches = Launches(root)
    with launches.installed(), capturing(record):
        launches.installed = nullcontext  # here already, beneath the recorder
        run_all([case for case in cases if only in case.file], launches)


def said(words: list[str], root: Path) -> tuple[int, str]:
    """Runs a command of Tilewright. Returns its exit code and what it printed."""
    path = os.pathsep.join((str(root), os.environ.get("PYTHONPATH", "")))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tilewright", *words], env={**os.environ, "PYTHONPATH": path}, text=True,
            capture_output=True, timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"not done after {SECONDS} s"
    return done.returncode, done.stdout or done.stderr


def row(number: int, name: str, out: Path, root: Path) -> dict[str, Any]:
    """Writes and checks the task of one row of the record."""
    task, kept = out / f"{name}.py", out / f"{name}.json"
    if kept.exists():
        done: dict[str, Any] = json.loads(kept.read_text())
        return done
    result: dict[str, Any] = {"kernel": name, "verdict": "", "reason": ""}
    code, text = said(
        ["captured", "task", str(number), str(task), "--record", str(out / "capture.json"), "--force"], root
    )
    if code:
        result.update(verdict="no task", reason=text.strip())
    else:
        code, text = said(["check", str(task), "--engine", "interpreter", "--quick", "--json"], root)
        try:
            (found, *_) = [each for workload in [json.loads(text)] for each in results(workload)]
            result.update(verdict=found["verdict"], reason=found.get("reason", ""))
        except (ValueError, KeyError):
            result.update(verdict="failed", reason=text[-2000:])
    kept.write_text(json.dumps(result, indent=1))
    print(f"{name:60} {result['verdict']} {result['reason'][:150]}", flush=True)
    return result


def results(checked: Any) -> list[dict[str, Any]]:
    """The verdicts in what `tilewright check --json` prints."""
    if isinstance(checked, list):
        return [found for each in checked for found in results(each)]
    if isinstance(checked, dict) and "verdict" in checked:
        return [checked]
    return [found for each in checked.values() for found in results(each)] if isinstance(checked, dict) else []


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set-aside", action="store_true", help="the files that were set aside, not the others")
    parser.add_argument("--only", default="", metavar="PART", help="files with this in their name")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    root, out = options.folder.resolve(), options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    record = out / "capture.json"
    if not record.exists():
        recorded(root, record, options.set_aside, options.only)
    first: dict[str, int] = {}
    for number, kind in enumerate(capture_record.read(record).launches(), 1):
        file = Path(kind.launch.file).relative_to(root).with_suffix("")
        first.setdefault(".".join((*file.parts, kind.launch.kernel)).replace(".", "_"), number)
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda one: row(one[1], one[0], out, root), first.items()))
    counts = Counter(each["verdict"] for each in rows)
    print(len(rows), "kernels:", dict(counts))
    (out / "result.json").write_text(json.dumps({"kernels": len(rows), **counts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
