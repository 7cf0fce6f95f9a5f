"""The runs of `tune` in the append-only ledger: every candidate of every workload.

    runs ─┬─ run_events                   started, resumed, finished
          └─ workloads ─── candidates     one row each, also for a failed candidate

* A workload is saved in one transaction as soon as it is done. If the process ends early, the ledger has only whole
  workloads, and `TuneLedger.resume` finds them.
* The records are rebuilt from the JSON columns. The plain columns (``status``, ``median_us``, ``predicted_us``,
  ``code_hash``) are for queries in SQL. Predicted and measured times have columns of their own.
* Two processes that tune the same task may share a run. If a workload has two rows, the newer one counts.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from tilewright import records
from tilewright.languages.kept_cubins import CubinsOfRun
from tilewright.ledger.codec import to_json
from tilewright.ledger.file import Rows, as_text, dump, insert, maybe, number, parse, rebuilt
from tilewright.ledger.records import TuneRun
from tilewright.ledger.runs import RunLedger, finish_of
from tilewright.records import Candidate, Configuration, Json, TuningResult, Value, Workload, WorkloadResult

_CURRENT = """FROM workloads AS new WHERE run = ?
    AND number = (SELECT max(number) FROM workloads WHERE run = new.run AND name = new.name)
    ORDER BY (SELECT min(number) FROM workloads WHERE run = new.run AND name = new.name)"""
"""The newest row of each workload, in the order in which the workloads were first saved."""


class TuneLedger(RunLedger[TuneRun, dict[str, WorkloadResult]]):
    """The runs of `tune`. `resume` returns the finished workloads by name."""

    command, record, part = "tune", TuneRun, "workload"
    parts_stored = "SELECT count(DISTINCT name) FROM workloads WHERE run = ?"
    _compiled: tuple[CubinsOfRun, ...] = ()

    def compiled_of(self, key: str) -> CubinsOfRun:
        """Returns the cubins of an unfinished run, beside the ledger. ``key``: that of the run."""
        cubins = CubinsOfRun(self.path.with_suffix(".compiled") / key[:16], self._make_folder)
        self._compiled = (*self._compiled, cubins)
        return cubins

    def compiled(self) -> int:
        return sum(each.count() for each in self._compiled)

    def begin(self, record: TuneRun) -> TuneRun:
        """Starts a run, and returns the record with its name and start time."""
        return self._begun(record, record.task)

    def save(self, run: str, result: WorkloadResult) -> None:
        """Saves one workload with all its candidates in one transaction."""
        workload = _workload_row(run, result)
        candidates = [_candidate_row(candidate) for candidate in result.candidates]
        with self._writing() as connection:
            self._require_open(connection, run)
            saved = insert(connection, "workloads", workload)
            for position, row in enumerate(candidates):
                insert(connection, "candidates", row | {"workload": saved, "position": position})

    def finish(self, run: str, seconds: Mapping[str, float]) -> None:
        """Marks the run as finished, with the wall seconds of each stage. Does nothing if it is already finished."""
        event: dict[str, Value] = {"run": run, "event": "finished", "at": self._now(), "seconds": dump(seconds)}
        with self._writing() as connection:
            self._require_open(connection, run)
            if finish_of(connection, run) is None:
                insert(connection, "run_events", event)

    def load(self, run: str) -> TuningResult:
        """Returns the result of a run. If the run is unfinished, the result has only the finished workloads. Damaged
        workloads and candidates are left out."""
        record = self.run(run)
        with self._reading() as connection, self._leaving_out() as rows:
            results = tuple(self._parts(connection, record.run, rows).values())
        return TuningResult(record.task, record.machine, record.measured, results, record.run, record.seconds)

    def _end(self, finish: sqlite3.Row) -> dict[str, Json]:
        return {"seconds": json.loads(finish["seconds"])}

    def _parts(self, connection: sqlite3.Connection, run: str, rows: Rows) -> dict[str, WorkloadResult]:
        candidates = "SELECT * FROM candidates WHERE workload = ? ORDER BY position"

        def result(row: sqlite3.Row) -> WorkloadResult:
            tried = rows.read(
                connection.execute(candidates, (row["number"],)), lambda each: (each["position"], _candidate(each)),
                lambda each: f"candidate {each['position']} of workload {row['name']} of run {run}",
            )  # fmt: skip
            return _result(row, dict(tried))

        found = connection.execute(f"SELECT * {_CURRENT}", (run,)).fetchall()
        results = rows.read(found, result, lambda row: f"workload {row['name']} of run {run}")
        return {result.workload.name: result for result in results}


# Rows


def _workload_row(run: str, result: WorkloadResult) -> dict[str, Value]:
    best, candidates = result.best, result.candidates
    if best is not None and best not in candidates:
        raise ValueError(f"{result.workload}: the best, {best.configuration}, is not among the candidates")
    row: dict[str, Value] = {name: dump(getattr(result, name)) for name in ("bound", "tied", "shipped", "race")}
    row |= {"run": run, "name": result.workload.name, "dims": dump(result.workload.dims), "reason": result.reason}
    row["searched"] = dump(result.searched) if result.searched else None
    return row | {"best": None if best is None else candidates.index(best)}


def _candidate_row(candidate: Candidate) -> dict[str, Value]:
    code, predicted, measured = candidate.code, candidate.predicted, candidate.measured
    time: dict[str, Json] | None = to_json(measured) if measured else None
    samples = time.pop("samples_us") if time else None
    names = ("configuration", "code", "predicted", "checked")
    row: dict[str, Value] = {name: dump(getattr(candidate, name)) for name in names}
    row |= {"status": candidate.status, "reason": candidate.reason, "code_hash": code.code_hash if code else None}
    row |= {"predicted_us": number(predicted.us) if predicted else None, "measured": as_text(time)}
    row |= {"median_us": number(measured.us) if measured else None, "samples": as_text(samples)}
    return row | {"compile_seconds": number(candidate.compile_seconds)}


def _result(row: sqlite3.Row, candidates: Mapping[int, Candidate]) -> WorkloadResult:
    """``candidates``: by position. A workload whose best candidate is missing is damaged."""
    return WorkloadResult(
        workload=Workload(row["name"], parse(dict[str, Value], row["dims"])),
        bound=parse(records.Bound, row["bound"]),
        best=None if row["best"] is None else candidates[row["best"]],
        tied=parse(tuple[Configuration, ...], row["tied"]),
        candidates=tuple(candidates.values()),
        shipped=parse(Configuration, row["shipped"]),
        reason=row["reason"],
        race=maybe(dict[str, Json], row["race"]),
        searched=maybe(records.Searched, row["searched"]),
    )


def _candidate(row: sqlite3.Row) -> Candidate:
    measured = None
    if row["measured"] is not None:
        time = json.loads(row["measured"]) | {"samples_us": json.loads(row["samples"])}
        measured = rebuilt(records.MeasuredTime, time)
    return Candidate(
        configuration=parse(Configuration, row["configuration"]), status=row["status"], reason=row["reason"],
        code=maybe(records.MachineCode, row["code"]), compile_seconds=row["compile_seconds"],
        predicted=maybe(records.PredictedTime, row["predicted"]), measured=measured,
        checked=maybe(records.Checked, row["checked"]),
    )  # fmt: skip
