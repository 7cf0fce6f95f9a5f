"""The runs of `tune`: every candidate of every workload, in the append-only ledger.

    runs ─┬─ run_events                   started, resumed, finished
          └─ workloads ─── candidates     one row each; what failed is a row too

* A workload is saved in one transaction as soon as it is done. Whatever ends the process (Ctrl-C, a kill, a full
  disk), the ledger holds whole workloads only, and `TuneLedger.resume` finds them.
* JSON columns are what `codec.to_json` writes, and the records are rebuilt from them. The plain columns beside them
  (``status``, ``median_us``, ``predicted_us``, ``code_hash``) are for questions in SQL. Predicted and measured
  times never share a column.
* Several processes may write. Two that tune the same thing at once may share a run: of two rows of a workload the
  newer counts, and the older stays.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from tilewright.ledger.codec import to_json
from tilewright.ledger.file import as_text, dump, insert, maybe, number, parse, rebuilt
from tilewright.ledger.records import TuneRun
from tilewright.ledger.runs import RunLedger, finish_of
from tilewright.records import (
    Bound,
    Candidate,
    Checked,
    Configuration,
    Json,
    MachineCode,
    MeasuredTime,
    PredictedTime,
    TuningResult,
    Value,
    Workload,
    WorkloadResult,
)

_CURRENT = """FROM workloads AS new WHERE run = ?
    AND number = (SELECT max(number) FROM workloads WHERE run = new.run AND name = new.name)
    ORDER BY (SELECT min(number) FROM workloads WHERE run = new.run AND name = new.name)"""
"""The rows that count, in the order in which the workloads were first saved."""


class TuneLedger(RunLedger[TuneRun, dict[str, WorkloadResult]]):
    """The runs of `tune` in the ledger. `resume` gives the workloads that are done, by name."""

    command, record = "tune", TuneRun

    def begin(self, record: TuneRun) -> TuneRun:
        """Start a run; the record comes back with its name and the moment of its start."""
        return self._begun(record, record.task)

    def save(self, run: str, result: WorkloadResult) -> None:
        """Store one workload with all its candidates, or nothing of it."""
        workload = _workload_row(run, result)
        candidates = [_candidate_row(candidate) for candidate in result.candidates]
        with self._writing() as connection:
            self._require_open(connection, run)
            saved = insert(connection, "workloads", workload)
            for position, row in enumerate(candidates):
                insert(connection, "candidates", row | {"workload": saved, "position": position})

    def finish(self, run: str, seconds: Mapping[str, float]) -> None:
        """Mark the run as complete, with the wall seconds of each stage. Of two processes the first one counts."""
        event: dict[str, Value] = {"run": run, "event": "finished", "at": self._now(), "seconds": dump(seconds)}
        with self._writing() as connection:
            self._require_open(connection, run)
            if finish_of(connection, run) is None:
                insert(connection, "run_events", event)

    def load(self, run: str) -> TuningResult:
        """The run as `tune` returned it; of an unfinished run, the workloads that are done."""
        record = self.run(run)
        with self._reading() as connection:
            results = tuple(self._parts(connection, record.run).values())
        return TuningResult(record.task, record.machine, record.measured, results, record.run, record.seconds)

    def _end(self, finish: sqlite3.Row) -> dict[str, Json]:
        return {"seconds": json.loads(finish["seconds"])}

    def _parts(self, connection: sqlite3.Connection, run: str) -> dict[str, WorkloadResult]:
        candidates = "SELECT * FROM candidates WHERE workload = ? ORDER BY position"
        rows = connection.execute(f"SELECT * {_CURRENT}", (run,)).fetchall()
        return {row["name"]: _result(row, connection.execute(candidates, (row["number"],)).fetchall()) for row in rows}


# Rows


def _workload_row(run: str, result: WorkloadResult) -> dict[str, Value]:
    best, candidates = result.best, result.candidates
    if best is not None and best not in candidates:
        raise ValueError(f"{result.workload}: the best, {best.configuration}, is not among the candidates")
    return {
        "run": run,
        "name": result.workload.name,
        "dims": dump(result.workload.dims),
        "bound": dump(result.bound),
        "best": None if best is None else candidates.index(best),
        "tied": dump(result.tied),
        "shipped": dump(result.shipped),
        "reason": result.reason,
        "race": dump(result.race),
    }


def _candidate_row(candidate: Candidate) -> dict[str, Value]:
    code, predicted, measured = candidate.code, candidate.predicted, candidate.measured
    clocked: dict[str, Json] | None = to_json(measured) if measured else None
    samples = clocked.pop("samples_us") if clocked else None
    return {
        "configuration": dump(candidate.configuration),
        "status": candidate.status,
        "reason": candidate.reason,
        "code_hash": code.code_hash if code else None,
        "code": dump(code),
        "compile_seconds": number(candidate.compile_seconds),
        "predicted_us": number(predicted.us) if predicted else None,
        "predicted": dump(predicted),
        "median_us": number(measured.us) if measured else None,
        "measured": as_text(clocked),
        "samples": as_text(samples),
        "checked": dump(candidate.checked),
    }


def _result(row: sqlite3.Row, rows: list[sqlite3.Row]) -> WorkloadResult:
    candidates = tuple(map(_candidate, rows))
    return WorkloadResult(
        workload=Workload(row["name"], parse(dict[str, Value], row["dims"])),
        bound=parse(Bound, row["bound"]),
        best=None if row["best"] is None else candidates[row["best"]],
        tied=parse(tuple[Configuration, ...], row["tied"]),
        candidates=candidates,
        shipped=parse(Configuration, row["shipped"]),
        reason=row["reason"],
        race=maybe(dict[str, Json], row["race"]),
    )


def _candidate(row: sqlite3.Row) -> Candidate:
    measured = None
    if row["measured"] is not None:
        clocked = json.loads(row["measured"]) | {"samples_us": json.loads(row["samples"])}
        measured = rebuilt(MeasuredTime, clocked)
    return Candidate(
        configuration=parse(Configuration, row["configuration"]),
        status=row["status"],
        reason=row["reason"],
        code=maybe(MachineCode, row["code"]),
        compile_seconds=row["compile_seconds"],
        predicted=maybe(PredictedTime, row["predicted"]),
        measured=measured,
        checked=maybe(Checked, row["checked"]),
    )
