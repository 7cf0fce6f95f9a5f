"""The typed replies: what they say of a result, and that a client gets them as they were made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.made_runs import baseline_iteration, raced, run_record, tuned_workload

from tilewright.doctor.probes import Probe
from tilewright.doctor.probes import to_json as of_probes
from tilewright.ledger.codec import to_json
from tilewright.mcp import results
from tilewright.mcp.jobs import write
from tilewright.mcp.replies import JobReply, OptimizeReply, TuneReply
from tilewright.optimize.optimized import Optimized
from tilewright.optimize.optimized import to_json as of_optimized
from tilewright.records import TuningResult
from tilewright.tune.as_json import to_json as of_tuned


def tuning(measured: bool) -> TuneReply:
    workload = tuned_workload("4096x4096", measured=measured)
    machine = run_record(measured=measured).machine
    return results.tuned(of_tuned(TuningResult("rms_norm", machine, measured, (workload,), "a-run", {"total": 1.0})))


def optimizing() -> OptimizeReply:
    iterations = (baseline_iteration(), raced(1, 15.0, 20.0, keep=True), raced(2, 16.0, 15.0, keep=False))
    record = run_record()
    return results.optimized(of_optimized(Optimized(record, iterations, "--- a", Path("folder"))), "--- a")


def test_a_measured_time_is_no_predicted_one() -> None:
    (measured,), (predicted,) = tuning(True).workloads, tuning(False).workloads
    assert measured.best and predicted.best and measured.shipped
    assert measured.best.measured_us and predicted.best.measured_us is None and predicted.best.predicted_us
    assert tuning(False).note == "predicted, not measured" and tuning(True).note is None
    assert measured.shipped.config["TILE"] == 64 and measured.shipped.measured_us > measured.best.measured_us  # type: ignore[operator]
    assert measured.candidates == 8 and len(measured.tied) == 2


def test_what_was_reverted_is_not_kept() -> None:
    reply = optimizing()
    assert reply.kept == ("gather of a row → tile load",) and reply.patch == "--- a"
    assert [(each.n, each.status) for each in reply.iterations] == [(0, "keep"), (1, "keep"), (2, "revert")]


REPLIES: Mapping[str, JobReply] = {
    "tune": tuning(True),
    "optimize": optimizing(),
    "doctor": results.examined(of_probes([Probe("torch", None, "not needed", required=False)])),
}


@pytest.mark.parametrize("verb", REPLIES)
def test_a_client_gets_the_reply_that_the_job_wrote(verb: str) -> None:
    pytest.importorskip("mcp")
    from tests.mcp.test_server import called

    folder = Path(os.environ["TILEWRIGHT_HOME"]) / "jobs" / f"{verb}-1"
    folder.mkdir(parents=True)
    (folder / "running").touch()
    write(folder / "request.json", {"verb": verb, "arguments": {}, "started": 0.0})
    write(folder / "outcome.json", {"state": "done", "ended": 2.0, "reply": to_json(REPLIES[verb])})
    job = called("job_wait").structured_content
    assert job and (job["job"], job["seconds"], job["error"]) == (f"{verb}-1", 2.0, None)
    assert job["result"] == plain(asdict(REPLIES[verb]))


def plain(value: Any) -> Any:
    """The value with lists in place of tuples, as JSON has it."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
