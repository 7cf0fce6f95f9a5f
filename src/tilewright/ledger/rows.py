"""Rows of the ledger's tables from its records, and back (`ledger.py`).

The samples of an iteration are not in its record but in a table of their own, one row for each version and workload;
reading puts them back.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence

from tilewright.ledger.codec import to_json
from tilewright.ledger.file import as_text, number, rebuilt
from tilewright.ledger.records import Iteration, RunRecord
from tilewright.records import Json, Value

Row = dict[str, Value]

SAMPLES = "samples_us"
TIMED = {"measured": "candidate", "incumbent": "incumbent", "baseline": "baseline"}
"""Field of a `WorkloadOutcome` → the version whose time it is."""


# Out of records


def of_iteration(run: str, iteration: Iteration) -> tuple[Row, list[Row], list[Row]]:
    """The rows of ``iterations`` (without ``at``), ``attempts`` and ``samples``."""
    data = to_json(iteration)
    samples: list[Row] = [
        {"run": run, "n": iteration.n, "version": version, "workload": workload, "us": as_text(time.pop(SAMPLES))}
        for version, workload, time in _times(data)
    ]
    records = _objects(data.pop("attempts"))
    attempts: list[Row] = [
        {
            "run": run,
            "n": iteration.n,
            "position": position,
            "value": attempt.value,
            "status": attempt.status,
            "reason": attempt.reason,
            "code_hash": attempt.code.code_hash if attempt.code else None,
            "record": as_text(record),
        }
        for position, (attempt, record) in enumerate(zip(iteration.attempts, records, strict=True))
    ]
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
        "latency_ms": number(iteration.latency_ms),
        "predicted_ms": number(iteration.predicted_ms),
        "gain": iteration.gain,
        "reason": iteration.reason,
        "record": as_text(data),
    }
    return row, attempts, samples


def _times(data: dict[str, Json]) -> Iterator[tuple[str, str, dict[str, Json]]]:
    """Version, workload and the JSON of every measured time of an iteration."""
    for outcome in _objects(data["outcomes"]):
        for field, version in TIMED.items():
            if isinstance(time := outcome.get(field), dict):
                yield version, str(outcome["workload"]), time
    for position, attempt in enumerate(_objects(data["attempts"])):
        measured = attempt.get("measured")
        for workload, time in measured.items() if isinstance(measured, dict) else ():
            if isinstance(time, dict):
                yield f"attempt {position}", workload, time


def _objects(data: Json) -> list[dict[str, Json]]:
    """The objects in a list of JSON."""
    return [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []


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
    us = {(sample["version"], sample["workload"]): sample["us"] for sample in samples}
    for version, workload, time in _times(data):
        time[SAMPLES] = json.loads(us[version, workload])
    return rebuilt(Iteration, data)
