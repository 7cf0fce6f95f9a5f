"""The store: every attempt of every run, in one SQLite file that Tilewright alone writes.

    runs ─┬─ workloads ─── candidates        one row each; what failed is a row too

* A workload is saved in one transaction as soon as it is done. Whatever ends the process (Ctrl-C,
  a kill, a full disk), the store holds whole workloads only, and `resume` finds them.
* JSON columns are what `codec.to_json` writes, and the records are rebuilt from them. The plain
  columns beside them (``status``, ``median_us``, ``predicted_us``, ``code_hash``, ``arch``, ``gpu``)
  are for whoever asks with SQL. Predicted and measured times never share a column.
* Several processes may write: SQLite's write-ahead log, and `database.BUSY_SECONDS` of patience. Two
  processes that tune the same thing at once may share a run; the later save of a workload replaces
  the earlier.
* Nothing is opened before the first call, and a call that only reads creates no file.
* The file itself, and how its errors become a `StorageError`, is `database.py`; its tables are
  `store_tables.py`.

A `Store` belongs to one thread of one process; another process opens its own.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tilewright.errors import UnknownChoice
from tilewright.ledger.codec import to_json
from tilewright.ledger.file import DatabaseFile, as_text, dump, home, insert, maybe, parse, text_of, utc_now
from tilewright.ledger.results_tables import RESULTS
from tilewright.records import (
    Bound,
    Candidate,
    Checked,
    Configuration,
    Machine,
    MachineCode,
    MeasuredTime,
    PredictedTime,
    TuningResult,
    Value,
    Workload,
    WorkloadResult,
)


@dataclass(frozen=True)
class RunSummary:
    """One line about a run. Times are ISO 8601 in UTC; ``finished`` is None while it can be resumed."""

    run: str
    task: str
    key: str
    started: str
    finished: str | None
    measured: bool
    arch: str
    gpu: str | None
    workloads: tuple[str, ...]
    """Names of the workloads that are done, in the order in which they were."""


def default_path() -> Path:
    """``results.db`` in ``$TILEWRIGHT_HOME``, or else in ``.tilewright/`` here."""
    return home() / "results.db"


def key_of(parts: Mapping[str, Any]) -> str:
    """SHA-256 of the parts that make two runs the same; their order does not matter."""
    text = json.dumps(to_json(parts), allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Store(DatabaseFile):
    """The results at ``path`` (default: `default_path`), as a context manager or with `close`.

    Every method may raise `StorageError`; those that take a run, `UnknownChoice`.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        clock: Callable[[], datetime] = utc_now,
        token: Callable[[int], str] = secrets.token_hex,
    ):
        super().__init__(Path(path or default_path()), RESULTS, clock, token)

    # Writing

    def begin(self, task: str, key: str, machine: Machine, measured: bool) -> str:
        """Start a run and return its identifier, which sorts by time. ``key``: see `key_of`."""
        now = self._clock()
        run = self._named(now)
        row: dict[str, Value] = {
            "id": run,
            "task": task,
            "key": key,
            "measured": bool(measured),
            "started": text_of(now),
        }
        with self._writing() as connection:
            insert(connection, "runs", row | _machine_row(machine) | {"seconds": "{}"})
        return run

    def save(self, run: str, result: WorkloadResult) -> None:
        """Store one workload with all its candidates, or nothing of it."""
        key = (run, result.workload.name)
        workload = _workload_row(run, result)
        candidates = [_candidate_row(*key, *item) for item in enumerate(result.candidates)]
        with self._writing() as connection:
            _require(connection, run)
            position = _position(connection, *key)
            connection.execute("DELETE FROM candidates WHERE run = ? AND workload = ?", key)
            connection.execute("DELETE FROM workloads WHERE run = ? AND name = ?", key)
            insert(connection, "workloads", workload | {"position": position})
            for row in candidates:
                insert(connection, "candidates", row)

    def finish(self, run: str, seconds: Mapping[str, float]) -> None:
        """Mark the run as complete, with the wall seconds of each stage."""
        row = (text_of(self._clock()), dump(seconds), run)
        with self._writing() as connection:
            _require(connection, run)
            connection.execute("UPDATE runs SET finished = ?, seconds = ? WHERE id = ?", row)

    # Reading

    def resume(self, key: str) -> tuple[str, dict[str, WorkloadResult]] | None:
        """The newest run of ``key`` that did not finish, and its workloads by name; None without one."""
        query = "SELECT id FROM runs WHERE key = ? AND finished IS NULL ORDER BY number DESC LIMIT 1"
        with self._reading() as connection:
            found = connection.execute(query, (key,)).fetchone()
            if found is None:
                return None
            run = str(found["id"])
            return run, {result.workload.name: result for result in _results(connection, run)}

    def load(self, run: str) -> TuningResult:
        """The run as `tune` returned it; of an unfinished run, the workloads that are done."""
        with self._reading() as connection:
            row = _require(connection, run)
            return TuningResult(
                task=row["task"],
                machine=_machine(row),
                measured=bool(row["measured"]),
                workloads=tuple(_results(connection, run)),
                run=run,
                seconds=parse(dict[str, float], row["seconds"]),
            )

    def runs(self, task: str | None = None) -> tuple[RunSummary, ...]:
        """The runs, of one task or of all, newest first."""
        query = "SELECT * FROM runs WHERE ? IN (task, '') ORDER BY number DESC"
        names = "SELECT name FROM workloads WHERE run = ? ORDER BY position"
        with self._reading() as connection:
            return tuple(
                _summary(row, [name for (name,) in connection.execute(names, (row["id"],))])
                for row in connection.execute(query, (task or "",)).fetchall()
            )


# Rows


def _require(connection: sqlite3.Connection, run: str) -> sqlite3.Row:
    row: sqlite3.Row | None = connection.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchone()
    if row is None:
        newest = connection.execute("SELECT id FROM runs ORDER BY number DESC LIMIT 6").fetchall()
        known = [str(name) for (name,) in newest]
        raise UnknownChoice("run", run, known[:5] + ["…"] * (len(known) > 5))
    return row


def _position(connection: sqlite3.Connection, run: str, workload: str) -> int:
    """Place of the workload in its run: the one it has, or else the next."""
    query = """SELECT coalesce(max(CASE WHEN name = ? THEN position END), max(position) + 1, 0)
               FROM workloads WHERE run = ?"""
    return int(connection.execute(query, (workload, run)).fetchone()[0])


def _number(value: float | None) -> float | None:
    """A Python float, also of NumPy's numbers. SQLite turns NaN into NULL."""
    return None if value is None else float(value)


def _machine_row(machine: Machine) -> dict[str, Value]:
    data = to_json(machine)
    versions = data.pop("versions")
    return {"arch": machine.arch, "gpu": machine.gpu, "machine": as_text(data), "versions": as_text(versions)}


def _workload_row(run: str, result: WorkloadResult) -> dict[str, Value]:
    return {
        "run": run,
        "name": result.workload.name,
        "dims": dump(result.workload.dims),
        "bound": dump(result.bound),
        "best": None if result.best is None else _place_of_best(result.best, result),
        "tied": dump(result.tied),
        "shipped": dump(result.shipped),
        "reason": result.reason,
        "race": dump(result.race),
    }


def _place_of_best(best: Candidate, result: WorkloadResult) -> int:
    if best not in result.candidates:
        raise ValueError(f"{result.workload}: the best, {best.configuration}, is not among the candidates")
    return result.candidates.index(best)


def _candidate_row(run: str, workload: str, position: int, candidate: Candidate) -> dict[str, Value]:
    code, predicted, measured = candidate.code, candidate.predicted, candidate.measured
    clocked = to_json(measured)
    samples = clocked.pop("samples_us") if clocked else None
    return {
        "run": run,
        "workload": workload,
        "position": position,
        "configuration": dump(candidate.configuration),
        "status": candidate.status,
        "reason": candidate.reason,
        "code_hash": code.code_hash if code else None,
        "code": dump(code),
        "compile_seconds": _number(candidate.compile_seconds),
        "predicted_us": _number(predicted.us) if predicted else None,
        "predicted": dump(predicted),
        "median_us": _number(measured.us) if measured else None,
        "measured": as_text(clocked),
        "samples": as_text(samples),
        "checked": dump(candidate.checked),
    }


def _results(connection: sqlite3.Connection, run: str) -> Iterator[WorkloadResult]:
    workloads = "SELECT * FROM workloads WHERE run = ? ORDER BY position"
    candidates = "SELECT * FROM candidates WHERE run = ? AND workload = ? ORDER BY position"
    for row in connection.execute(workloads, (run,)).fetchall():
        yield _result(row, connection.execute(candidates, (run, row["name"])).fetchall())


def _result(row: sqlite3.Row, rows: list[sqlite3.Row]) -> WorkloadResult:
    candidates = tuple(_candidate(each) for each in rows)
    return WorkloadResult(
        workload=Workload(row["name"], parse(dict[str, Value], row["dims"])),
        bound=parse(Bound, row["bound"]),
        best=None if row["best"] is None else candidates[row["best"]],
        tied=parse(tuple[Configuration, ...], row["tied"]),
        candidates=candidates,
        shipped=parse(Configuration, row["shipped"]),
        reason=row["reason"],
        race=maybe(dict[str, Any], row["race"]),
    )


def _candidate(row: sqlite3.Row) -> Candidate:
    measured = row["measured"]
    if measured is not None:
        measured = json.dumps(json.loads(measured) | {"samples_us": json.loads(row["samples"])})
    return Candidate(
        configuration=parse(Configuration, row["configuration"]),
        status=row["status"],
        reason=row["reason"],
        code=maybe(MachineCode, row["code"]),
        compile_seconds=row["compile_seconds"],
        predicted=maybe(PredictedTime, row["predicted"]),
        measured=maybe(MeasuredTime, measured),
        checked=maybe(Checked, row["checked"]),
    )


def _machine(row: sqlite3.Row) -> Machine:
    data = json.loads(row["machine"]) | {"versions": json.loads(row["versions"])}
    return parse(Machine, json.dumps(data))


def _summary(row: sqlite3.Row, workloads: list[str]) -> RunSummary:
    return RunSummary(
        run=row["id"],
        task=row["task"],
        key=row["key"],
        started=row["started"],
        finished=row["finished"],
        measured=bool(row["measured"]),
        arch=row["arch"],
        gpu=row["gpu"],
        workloads=tuple(workloads),
    )
