"""Rows of the ledger's tables from its records, and back (`ledger.py`).

The samples of an iteration are taken out of its record and stand in a table of their own, one row for each
version and workload; reading puts them back.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.ledger.codec import to_json
from tilewright.ledger.file import as_text, rebuilt
from tilewright.ledger.records import Iteration, RunOverview, RunRecord, Standing
from tilewright.records import Value

Row = dict[str, Value]

SAMPLES = "samples_us"
TIMED = {"measured": "candidate", "incumbent": "incumbent", "baseline": "baseline"}
"""Field of a `WorkloadOutcome` → the version whose time it is."""

LATER = ("finished", "stop_reason", "final", "patch")
"""Fields of a `RunRecord` that `run_events` has."""


def as_data(record: Any) -> dict[str, Any]:
    """The record as JSON data."""
    data: dict[str, Any] = to_json(record)
    return data


# Out of records


def of_run(run: RunRecord) -> Row:
    """The row of ``runs``."""
    data = {name: value for name, value in as_data(run).items() if name not in LATER}
    return {
        "id": run.run,
        "key": run.key,
        "task": run.task,
        "kernel": run.kernel,
        "measured": bool(run.measured),
        "arch": run.machine.arch,
        "gpu": run.machine.gpu,
        "kind": run.kind,
        "started": run.started,
        "record": as_text(data),
    }


def of_final(final: tuple[Standing, ...]) -> str:
    """The column ``final`` of ``run_events``."""
    return json.dumps(to_json(final), allow_nan=False, separators=(",", ":"))


def of_iteration(run: str, iteration: Iteration) -> tuple[Row, list[Row], list[Row]]:
    """The rows of ``iterations`` (without ``at``), ``attempts`` and ``samples``."""
    data = as_data(iteration)
    samples: list[Row] = [
        {"run": run, "n": iteration.n, "version": version, "workload": workload, "us": as_text(time.pop(SAMPLES))}
        for version, workload, time in _times(data)
    ]
    attempts = [_of_attempt(run, iteration.n, *item) for item in enumerate(data.pop("attempts"))]
    row: Row = {
        "run": run,
        "n": iteration.n,
        "entry": iteration.entry,
        "optimization": iteration.optimization,
        "site": iteration.site,
        "value": iteration.value,
        "correctness": iteration.correctness,
        "status": iteration.status,
        "risk": iteration.risk,
        "latency_ms": _number(iteration.latency_ms),
        "predicted_ms": _number(iteration.predicted_ms),
        "gain": iteration.gain,
        "reason": iteration.reason,
        "record": as_text(data),
    }
    return row, attempts, samples


def _number(value: float | None) -> float | None:
    """A Python float, also of NumPy's numbers."""
    return None if value is None else float(value)


def _of_attempt(run: str, n: int, position: int, data: dict[str, Any]) -> Row:
    code = data["code"]
    return {
        "run": run,
        "n": n,
        "position": position,
        "value": data["value"],
        "status": data["status"],
        "reason": data["reason"],
        "code_hash": code["code_hash"] if code else None,
        "record": as_text(data),
    }


def _times(data: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Version, workload and the JSON of every measured time of an iteration."""
    for outcome in data["outcomes"]:
        for field, version in TIMED.items():
            if outcome.get(field) is not None:
                yield version, outcome["workload"], outcome[field]
    for position, attempt in enumerate(data["attempts"]):
        for workload, time in attempt.get("measured", {}).items():
            yield f"attempt {position}", workload, time


# Back into records


def run(row: sqlite3.Row, finish: sqlite3.Row | None) -> RunRecord:
    """The run, with its end where ``finish`` is that event."""
    data = json.loads(row["record"])
    if finish is not None:
        end = {"finished": finish["at"], "stop_reason": finish["stop_reason"]}
        data |= end | {"final": json.loads(finish["final"]), "patch": finish["patch"]}
    return rebuilt(RunRecord, data)


def iteration(row: sqlite3.Row, attempts: Sequence[sqlite3.Row], samples: Sequence[sqlite3.Row]) -> Iteration:
    """The iteration with its attempts, and every time with its samples."""
    data = json.loads(row["record"])
    data["attempts"] = [json.loads(attempt["record"]) for attempt in attempts]
    found = {(sample["version"], sample["workload"]): sample["us"] for sample in samples}
    for version, workload, time in _times(data):
        time[SAMPLES] = json.loads(found[version, workload])
    return rebuilt(Iteration, data)


def overview(row: sqlite3.Row) -> RunOverview:
    """One line about a run."""
    return RunOverview(
        run=row["id"],
        task=row["task"],
        kernel=row["kernel"],
        arch=row["arch"],
        gpu=row["gpu"],
        measured=bool(row["measured"]),
        started=row["started"],
        finished=row["finished"],
        stop_reason=row["stop_reason"],
        iterations=row["iterations"],
        kept=row["kept"],
    )
