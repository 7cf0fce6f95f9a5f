"""Rebuilds the versions of a recorded run of bench/naive.py, to predict their times and compare with those measured.

    python bench/naive_codes.py OUT.json.gz [--recorded bench/recorded/h200-naive-2026-11-21.json] [KERNEL …]

The recording has the patch of each kernel and, for each workload, the measured time of the baseline and of the last
version. Both are compiled here, for the recorded board. No GPU is needed. The result has the form of bench/record.py's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import EXAMPLES

from tilewright.compile.compile import Unit, compile_all, launch_of
from tilewright.hardware.architectures import board
from tilewright.ledger.codec import to_json
from tilewright.records import Failed
from tilewright.task.loading import load_task

RECORDED = Path(__file__).parent / "recorded" / "h200-naive-2026-11-21.json"
COMMIT = "c573d74"
"""The state of examples/naive to which the patches fit."""
VERSIONS = ("baseline", "final")


def rebuilt(recorded: dict[str, Any], on: Any) -> dict[str, Any]:
    """One kernel: each workload with a row for the baseline and one for the last version."""
    name, workloads = recorded["kernel"], {}
    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, f"{name}.py")
            source = f"{COMMIT}:examples/naive/{name}.py"
            shown = subprocess.run(["git", "show", source], cwd=EXAMPLES, capture_output=True, check=True)
            file.write_bytes(shown.stdout)
            if version == "final":
                subprocess.run(["git", "apply", "-p1", "-"], input=recorded["patch"], text=True, cwd=folder, check=True)
            task = load_task(str(file.rename(file.with_stem(f"{name}_{version}"))))
            selected = task.selected(None)
            compiled = compile_all(task, [Unit(each, task.space.shipped, on) for each in selected], seconds=60)
            for workload, one in zip(selected, compiled, strict=True):
                if isinstance(one.code, Failed):
                    sys.exit(f"{name} {version} {workload}: {one.code.reason}")
                row = {"config": {"version": version}, "grid": launch_of(task, one.unit)[0].grid}
                row |= {"code": to_json(one.code), "us": recorded["workloads"][workload.name][version]["us"]}
                found = workloads.setdefault(workload.name, {"workload": workload.name, "dims": dict(workload.dims)})
                found.setdefault("rows", []).append(row)
    print(f"{name}: {len(workloads)} workloads", flush=True)
    machine = {"name": f"NVIDIA {on.name}"}
    return {"kernel": f"naive/{name}", "task": task.name, "machine": machine, "workloads": list(workloads.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("kernels", nargs="*", help="by default all that were recorded")
    parser.add_argument("--recorded", type=Path, default=RECORDED)
    given = parser.parse_args()
    recorded = json.loads(given.recorded.read_text())
    rows = [row for row in recorded["rows"] if not given.kernels or row["kernel"] in given.kernels]
    tasks = [rebuilt(row, board("H200")) for row in rows]
    with gzip.GzipFile(given.out, "wb", mtime=0) as file:
        record = {"command": "python " + " ".join(sys.argv), "times": given.recorded.name, "tasks": tasks}
        file.write(json.dumps(record, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
