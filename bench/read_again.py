"""Reads the machine code of a recording again, when the reader knows more than it did then. Needs no GPU.

    python bench/read_again.py RECORDING.json.gz [--jobs 2]

Compiles each recorded code once, and replaces what the recording says about it, where the hash of the code is the
same. Times stay as they are.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record import widened

from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware.architectures import board
from tilewright.ledger.codec import to_json
from tilewright.records import Configuration, Failed


def codes(recorded: dict[str, Any], jobs: int) -> dict[str, Any]:
    """What the reader says of each code of a kernel, by its hash."""
    on, units = board(recorded["machine"]["name"].removeprefix("NVIDIA ")), {}
    with tempfile.TemporaryDirectory() as folder:
        task = widened(recorded["kernel"], Path(folder))
        workloads = {workload.name: workload for workload in task.selected(None)}
        for workload, row in rows_of(recorded):
            units[row["code"]["code_hash"]] = Unit(workloads[workload], Configuration(row["config"].items()), on)
        compiled = compile_all(task, list(units.values()), seconds=60, jobs=jobs)
    return {one.code.code_hash: to_json(one.code) for one in compiled if not isinstance(one.code, Failed)}


def rows_of(recorded: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for workload in recorded["workloads"]:
        yield from ((workload["workload"], row) for row in workload["rows"] if "code" in row)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    with gzip.open(given.recording, "rt") as file:
        recording = json.load(file)
    for recorded in recording["tasks"]:
        found = codes(recorded, given.jobs)
        rows = [row for _, row in rows_of(recorded)]
        other = sum(row["code"]["code_hash"] not in found for row in rows)
        for row in rows:
            row["code"] = found.get(row["code"]["code_hash"], row["code"])
        print(f"{recorded['kernel']:20} {len(rows)} rows, {other} with another code now", flush=True)
    text = json.dumps(recording, separators=(",", ":"))
    with gzip.GzipFile(given.recording, "wb", mtime=0) as file:
        file.write(text.encode())


if __name__ == "__main__":
    main()
