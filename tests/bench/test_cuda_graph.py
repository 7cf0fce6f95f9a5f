"""bench/cuda_graph.py: what counts as reached, what is left out when time is short, and its table."""

from __future__ import annotations

from typing import Any

import pytest
from tests.bench.kit import bench_module

BENCH = bench_module("cuda_graph")


def row(high: float = 0.3, within: int = 20, after: float = 400.0) -> dict[str, Any]:
    trial = {"captured": True, "replays": 20, "equal": within, "within rounding": within, "eager, µs": 1000.0,
             "replay, µs": 300.0, "ratio": {"low": 0.2, "high": high}, "places": [], "note": ""}  # fmt: skip
    judged = {"kept": True, "reason": "faster", "values": {"step before, µs": 1000.0, "step after, µs": after},
              "samples_us": {"before": [1000.0], "after": [after]}}  # fmt: skip
    return {"program": "serve.py, batch 1", "trial": trial, "judged": judged}


def test_the_goal_needs_equal_replays_and_half_the_time_in_both_measurements() -> None:
    assert BENCH.gains(row())
    assert not any(map(BENCH.gains, (row(high=0.6), row(within=19), row(after=501.0))))
    assert not BENCH.gains({"trial": {"failed": "the program ended"}})
    assert not BENCH.gains({"trial": row()["trial"], "judged": {"failed": "the run was too long"}})


def test_what_the_time_does_not_allow_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    rows = BENCH.measured(0.0)
    assert len(rows) == len(BENCH.PROGRAMS)
    assert all("left out" in each["trial"] for each in rows) and not BENCH.gains(rows[0])
    capsys.readouterr()
    BENCH.shown([row(), *rows])
    first, *others = capsys.readouterr().out.splitlines()[2:]
    assert " ".join(first.split()) == "serve.py, batch 1 20 / 20 1000µs 300µs 3.33× 1000 → 400 µs; faster"
    assert len(others) == len(rows) and all("s were left" in line for line in others)
