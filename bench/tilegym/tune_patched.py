"""Tunes the kernels that `optimize` patched: one configuration for each workload.

    python bench/tilegym/tune_patched.py PATCHES [--only NAME …] [--out FILE.json]

PATCHES is a folder with ``<task>.patch`` files, as `run.py` leaves it. Use it after `run.py`, to learn what `tune` adds
to `optimize`: `optimize` keeps one configuration for all workloads of a task, but a user may launch one for each, as
TileGym's searches do. Each patch is applied to a copy of the installed package, and `tilewright tune` runs on the copy.
The speedup is over the configuration that `optimize` kept, in the same race. For patched against unpatched, use
`confirm.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

from common import made_here, need_gpu, write
from confirm import arguments, patched_copy, patched_tasks
from operations import EAGER


def tuned(where: str, operation: str, patch: Path) -> list[dict[str, Any]]:
    """One row for each workload of the task ``where``; one row with ``failed`` if `tune` fails."""
    launched = ("--launch", "eager") if operation in EAGER else ()
    command = [sys.executable, "-m", "tilewright", "tune", where, "--json", "--no-store", *launched]
    with tempfile.TemporaryDirectory(prefix="tilegym-") as name:
        path = os.pathsep.join(filter(None, (str(patched_copy(patch, Path(name))), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode:
        failed = {"operation": operation, "failed": done.stderr[-2000:], "returncode": done.returncode}
        print(f"{operation} failed ({done.returncode}): {failed['failed']}", flush=True)
        return [failed]
    found = []
    for result in json.loads(done.stdout)["workloads"]:
        best = result["best"] or {}
        row = {
            "operation": operation, "workload": result["workload"],
            "kept": result["shipped"], "kept_us": result["shipped_us"],
            "best": best.get("config"), "best_us": best.get("measured_us"),
            "speedup": result["speedup_over_shipped"], "reason": result["reason"],
        }  # fmt: skip
        print(
            f"{operation} {row['workload']}: {row['kept_us']} -> {row['best_us']} µs, {row['speedup']}x, {row['best']}",
            flush=True,
        )
        found.append(row)
    return found


def main() -> None:
    given = arguments(__doc__)
    need_gpu()
    record: dict[str, Any] = {**made_here(), "rows": []}
    write(given.out, record)
    for operation, where, _, patch in patched_tasks(given.patches, given.only):
        record["rows"] += tuned(where, operation, patch)
        write(given.out, record)


if __name__ == "__main__":
    main()
