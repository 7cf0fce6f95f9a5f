"""bench/record.py on a GPU: one small kernel, twice; the second time its part is there."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_a_kernel_is_recorded_and_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "record.py"), "out.json.gz", "naive/softmax", "--parts", "parts"]
    command += ["--processes", "1", "--seconds", "1", "--rounds", "5"]
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert "compiled in" not in done.stdout
    with gzip.open(tmp_path / "out.json.gz", "rt") as file:
        (task,) = json.load(file)["tasks"]
    assert task["kernel"] == "naive/softmax"
    (first, *_) = task["workloads"]
    timed = [row for row in first["rows"] if "samples_us" in row]
    assert len(timed) > 1 and all(len(row["samples_us"]) == 5 and row["code"]["mix"] for row in timed)
