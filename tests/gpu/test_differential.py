"""The interpreter computes what the GPU computes: every case of `bench/differential.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "bench" / "differential.py"


def test_every_case_is_within_its_class(tmp_path: Path) -> None:
    out = tmp_path / "differential.json"
    command = [sys.executable, str(SCRIPT), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert out.is_file(), done.stderr[-2000:]
    cases = json.loads(out.read_text())["cases"]
    assert len(cases) >= 60
    assert [one for one in cases if not one["inside"]] == []
    assert done.returncode == 0
