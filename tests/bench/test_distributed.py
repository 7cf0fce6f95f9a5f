"""bench/distributed.py: parts that are done are not measured again, and parts without time are named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.bench.kit import bench_module

BENCH = bench_module("distributed")


def test_parts_are_kept_and_what_the_time_does_not_allow_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    out.write_text(json.dumps({"sweep": {"kept": 1}, "settings": {"failed": "a rank died"}, "left out": {}}))
    monkeypatch.setattr(sys, "argv", ["distributed.py", str(out), "--seconds", "0", "--backend", "gloo"])
    assert BENCH.main() == 1, "a part failed before, and could not be tried again"
    record = json.loads(out.read_text())
    assert record["sweep"] == {"kept": 1} and "date" in record
    assert record["left out"].keys() == {"training", "program", "settings", "judged"}
    assert record["left out"]["training"].endswith("s were left, and it takes about 15")
    assert capsys.readouterr().out.count("left out: ") == 4


def test_it_needs_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BENCH, "count", lambda: 1)
    monkeypatch.setattr(sys, "argv", ["distributed.py", str(tmp_path / "out.json")])
    with pytest.raises(SystemExit, match="this benchmark needs two GPUs of one host; --backend gloo rehearses it"):
        BENCH.main()
