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
* The file itself, and how its errors become a `StorageError`, is `database.py`.

A `Store` belongs to one thread of one process; another process opens its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tilewright.codec import from_json, to_json
from tilewright.database import Unusable, connect, storage, transaction
from tilewright.errors import UnknownChoice
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

Decoded = TypeVar("Decoded")


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
    return Path(os.environ.get("TILEWRIGHT_HOME") or ".tilewright").expanduser() / "results.db"


def key_of(parts: Mapping[str, Any]) -> str:
    """SHA-256 of the parts that make two runs the same; their order does not matter."""
    text = json.dumps(to_json(parts), allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _now() -> datetime:
    return datetime.now(timezone.utc)


class Store:
    """The results at ``path`` (default: `default_path`), as a context manager or with `close`.

    Every method may raise `StorageError`; those that take a run, `UnknownChoice`.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        clock: Callable[[], datetime] = _now,
        token: Callable[[int], str] = secrets.token_hex,
    ):
        self.path = Path(path or default_path()).absolute()
        self._clock = clock
        self._token = token
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; the next call opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Writing

    def begin(self, task: str, key: str, machine: Machine, measured: bool) -> str:
        """Start a run and return its identifier, which sorts by time. ``key``: see `key_of`."""
        now = self._clock()
        run = f"{now:%Y%m%d-%H%M%S}-{now.microsecond:06d}-{self._token(3)}"
        row: dict[str, Value] = {
            "id": run,
            "task": task,
            "key": key,
            "measured": bool(measured),
            "started": _text_of(now),
        }
        with self._writing() as connection:
            _insert(connection, "runs", row | _machine_row(machine) | {"seconds": "{}"})
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
            _insert(connection, "workloads", workload | {"position": position})
            for row in candidates:
                _insert(connection, "candidates", row)

    def finish(self, run: str, seconds: Mapping[str, float]) -> None:
        """Mark the run as complete, with the wall seconds of each stage."""
        row = (_text_of(self._clock()), _dump(seconds), run)
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
                seconds=_parse(dict[str, float], row["seconds"]),
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

    # The connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with storage(self.path):
            if self._connection is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = self._opened()
            with transaction(connection, "IMMEDIATE"):
                yield connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view; of an empty store where there is no file, and without creating it."""
        with storage(self.path):
            there = self._connection is not None or self.path.exists()
            opened = nullcontext(self._opened()) if there else closing(connect(":memory:"))
            with opened as connection, transaction(connection, "DEFERRED"):
                yield connection

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self.path)
        return self._connection


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


def _insert(connection: sqlite3.Connection, table: str, row: Mapping[str, Value]) -> None:
    marks = ", ".join("?" * len(row))
    values = [_storable(value) if isinstance(value, str) else value for value in row.values()]
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", values)


def _storable(text: str) -> str:
    """Without the lone surrogates that undecodable compiler output leaves, which SQLite refuses."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _number(value: float | None) -> float | None:
    """A Python float, also of NumPy's numbers. SQLite turns NaN into NULL."""
    return None if value is None else float(value)


def _machine_row(machine: Machine) -> dict[str, Value]:
    data = to_json(machine)
    versions = data.pop("versions")
    return {"arch": machine.arch, "gpu": machine.gpu, "machine": _json(data), "versions": _json(versions)}


def _workload_row(run: str, result: WorkloadResult) -> dict[str, Value]:
    return {
        "run": run,
        "name": result.workload.name,
        "dims": _dump(result.workload.dims),
        "bound": _dump(result.bound),
        "best": None if result.best is None else _place_of_best(result.best, result),
        "tied": _dump(result.tied),
        "shipped": _dump(result.shipped),
        "reason": result.reason,
        "race": _dump(result.race),
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
        "configuration": _dump(candidate.configuration),
        "status": candidate.status,
        "reason": candidate.reason,
        "code_hash": code.code_hash if code else None,
        "code": _dump(code),
        "compile_seconds": _number(candidate.compile_seconds),
        "predicted_us": _number(predicted.us) if predicted else None,
        "predicted": _dump(predicted),
        "median_us": _number(measured.us) if measured else None,
        "measured": _json(clocked),
        "samples": _json(samples),
        "checked": _dump(candidate.checked),
    }


def _results(connection: sqlite3.Connection, run: str) -> Iterator[WorkloadResult]:
    workloads = "SELECT * FROM workloads WHERE run = ? ORDER BY position"
    candidates = "SELECT * FROM candidates WHERE run = ? AND workload = ? ORDER BY position"
    for row in connection.execute(workloads, (run,)).fetchall():
        yield _result(row, connection.execute(candidates, (run, row["name"])).fetchall())


def _result(row: sqlite3.Row, rows: list[sqlite3.Row]) -> WorkloadResult:
    candidates = tuple(_candidate(each) for each in rows)
    return WorkloadResult(
        workload=Workload(row["name"], _parse(dict[str, Value], row["dims"])),
        bound=_parse(Bound, row["bound"]),
        best=None if row["best"] is None else candidates[row["best"]],
        tied=_parse(tuple[Configuration, ...], row["tied"]),
        candidates=candidates,
        shipped=_parse(Configuration, row["shipped"]),
        reason=row["reason"],
        race=_maybe(dict[str, Any], row["race"]),
    )


def _candidate(row: sqlite3.Row) -> Candidate:
    measured = row["measured"]
    if measured is not None:
        measured = json.dumps(json.loads(measured) | {"samples_us": json.loads(row["samples"])})
    return Candidate(
        configuration=_parse(Configuration, row["configuration"]),
        status=row["status"],
        reason=row["reason"],
        code=_maybe(MachineCode, row["code"]),
        compile_seconds=row["compile_seconds"],
        predicted=_maybe(PredictedTime, row["predicted"]),
        measured=_maybe(MeasuredTime, measured),
        checked=_maybe(Checked, row["checked"]),
    )


def _machine(row: sqlite3.Row) -> Machine:
    data = json.loads(row["machine"]) | {"versions": json.loads(row["versions"])}
    return _parse(Machine, json.dumps(data))


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


def _dump(value: Any) -> str | None:
    """The record as JSON text, or NULL for None."""
    return _json(to_json(value))


def _json(data: Any) -> str | None:
    """What `to_json` made, as text, or NULL for None."""
    return None if data is None else json.dumps(data, allow_nan=False, separators=(",", ":"))


def _parse(kind: type[Decoded], text: str) -> Decoded:
    """The record; fields that it gained since it was written take their defaults."""
    try:
        return from_json(kind, json.loads(text), defaults=True)
    except ValueError as error:
        raise Unusable(
            f"holds a result that this Tilewright cannot read ({error}); "
            "fix: use the Tilewright that wrote it, or move the file away"
        ) from error


def _maybe(kind: type[Decoded], text: str | None) -> Decoded | None:
    return None if text is None else _parse(kind, text)


def _text_of(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")
