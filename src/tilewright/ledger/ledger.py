"""The runs of `optimize` in the append-only ledger: every iteration of every run.

    runs ─┬─ run_events                 started, resumed, finished
          ├─ loads                      each loading of a version: its start and its end
          └─ iterations ─┬─ attempts    every value that was tried, also those that failed
                         └─ samples     the measured times in µs, by version and workload

* An iteration is appended in one transaction with all its data, even if it was reverted or crashed. `kill -9` loses at
  most the running iteration; `resume` finds the others.
* The loading of a version is recorded before the loading starts. A version that was being loaded when the process was
  killed is not loaded again. If several were being loaded, each of them is loaded once more, alone.
* SQLite refuses to change or delete a row (`tables.py`).
* Two processes may write different runs. If both append to one run, the second process is refused.
* ``perf_results.md`` (`perf_results.py`), JSON Lines (`runs.write_jsonl`) and the report are made from the ledger.

The file is ``ledger.db``. The files of a run are in ``runs/RUN/`` in the same folder.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from tilewright.errors import TaskError
from tilewright.ledger.codec import to_json
from tilewright.ledger.file import Rows, Unusable, as_text, dump, insert, number, rebuilt
from tilewright.ledger.records import Attempt, EntryHistory, Iteration, Metrics, RunRecord
from tilewright.ledger.runs import RunLedger, finish_of, row_of
from tilewright.race.interval import geometric_mean
from tilewright.records import Json, Value

Row = dict[str, Value]

SAMPLES = "samples_us"
TIMED = {"measured": "candidate", "incumbent": "incumbent", "baseline": "baseline"}
"""Maps a field of a `WorkloadOutcome` to the name of the version whose times it has."""
_COLUMNS = ("n", "entry", "optimization", "site", "value", "correctness", "status", "risk", "gain", "reason")
"""Fields of an `Iteration` that are columns of the same name."""

_SHOWN = "(position < ? OR status = 'tampering')"
"""Of a large run, the attempts that reports show."""


class Ledger(RunLedger[RunRecord, tuple[Iteration, ...]]):
    """The runs of `optimize`. `resume` returns the iterations."""

    command, record, part = "optimize", RunRecord, "iteration"
    parts_stored = "SELECT count(*) FROM iterations WHERE run = ? AND n > 0"

    def begin(self, record: RunRecord) -> RunRecord:
        """Starts a run, and returns the record with its name and start time."""
        return self._begun(replace(record, run=record.run or self.new_name()), record.kernel, record.kind)

    @contextmanager
    def loading(self, run: str, version: str, together: bool = False) -> Iterator[None]:
        """Records that a version is loaded: the start before the block, and the end after it, also if it failed.

        version: a digest of the version's code.
        together: whether other versions may be loaded at the same time.
        Raises TaskError, and does not run the block, if an earlier loading of this version has no end, and no other
        version was loaded at that time.
        """
        query = "SELECT event, together, at FROM loads WHERE run = ? AND version = ? ORDER BY number DESC LIMIT 1"
        with self._writing() as connection:
            self._require_open(connection, run)
            last = connection.execute(query, (run, version)).fetchone()
            if last is not None and last["event"] == "loading" and not last["together"]:
                raise TaskError(f"the process was killed while it loaded this version ({last['at']})")
            self._insert_load(connection, run, version, "loading", together)
        try:
            yield
        finally:
            with self._writing() as connection:
                self._insert_load(connection, run, version, "ended", together)

    def suspects(self, run: str) -> frozenset[str]:
        """Returns the versions of which one may have killed the process: they were being loaded at the same time."""
        query = """SELECT version FROM loads AS last WHERE run = ? AND event = 'loading' AND together
            AND number = (SELECT max(number) FROM loads WHERE run = last.run AND version = last.version)"""
        with self._reading() as connection:
            return frozenset(row["version"] for row in connection.execute(query, (run,)))

    def _insert_load(self, connection: sqlite3.Connection, run: str, version: str, event: str, together: bool) -> None:
        row: Row = {"run": run, "version": version, "event": event, "at": self._now(), "together": int(together)}
        insert(connection, "loads", row)

    def append(self, run: str, iteration: Iteration) -> None:
        """Appends one iteration with all its rows in one transaction."""
        at = self._now()
        row, attempts, samples = _rows(run, iteration)
        with self._writing() as connection:
            self._require_open(connection, run)
            _require_next(connection, run, iteration.n)
            insert(connection, "iterations", row | {"at": at})
            for attempt in attempts:
                insert(connection, "attempts", attempt)
            for sample in samples:
                insert(connection, "samples", sample)

    def finish(self, run: str, stop_reason: str, final: tuple[Metrics, ...], patch: str = "") -> None:
        """Marks the run as finished.

        final: the metrics of the last version on each workload.
        patch: all changes from the baseline to the last version.
        """
        at = self._now()
        row = {"run": run, "event": "finished", "at": at, "stop_reason": stop_reason}
        with self._writing() as connection:
            self._require_open(connection, run)
            insert(connection, "run_events", row | {"final": dump(final), "patch": patch})

    def iterations(self, run: str, most: int | None = None) -> tuple[Iteration, ...]:
        """Returns the iterations of a run in order, with their attempts and samples. Damaged ones are left out.

        most: the most attempts of each iteration to return; None: all. Attempts to tamper are always returned.
        """
        with self._reading() as connection, self._leaving_out() as rows:
            return self._parts(connection, row_of(connection, run, self.command)["id"], rows, most)

    def attempts(self, run: str, after: int = 0) -> dict[int, dict[str, int]]:
        """Maps each iteration of a run to the number of its attempts by status, without those that `iterations` returns
        for ``most=after``."""
        query = f"""SELECT n, status, count(*) AS attempts FROM attempts WHERE run = ? AND NOT {_SHOWN}
            GROUP BY n, status ORDER BY n, status"""
        counts: dict[int, dict[str, int]] = {}
        with self._reading() as connection:
            for row in connection.execute(query, (row_of(connection, run, self.command)["id"], after)):
                counts.setdefault(row["n"], {})[str(row["status"])] = row["attempts"]
        return counts

    def history(
        self, *, measured: bool, arch: str | None = None, kind: str | None = None, without: str | None = None
    ) -> Mapping[str, EntryHistory]:
        """Maps the name of a playbook entry to its success in earlier runs.

        measured: uses the measured runs; if False, the predicted runs.
        kind: uses only runs whose workloads have this bound (`RunRecord.kind`); None: all runs.
        without: a run to leave out, so that a resumed run makes the same choices.
        """
        query = """SELECT i.* FROM iterations AS i JOIN runs AS r ON r.id = i.run
            WHERE r.measured = :measured AND (:arch IS NULL OR r.arch = :arch)
            AND (:kind IS NULL OR r.kind = :kind) AND (:without IS NULL OR r.id <> :without)
            ORDER BY r.number, i.n"""
        names = {"measured": measured, "arch": arch, "kind": kind, "without": without}
        tries: dict[str, list[sqlite3.Row]] = {}
        gains: dict[str, list[float]] = {}
        incumbent: float | None = None
        with self._reading() as connection:
            for row in connection.execute(query, names).fetchall():
                if row["entry"]:
                    tries.setdefault(row["entry"], []).append(row)
                if row["status"] != "keep":
                    continue
                before, incumbent = incumbent, row["predicted_ms"]
                gain = row["gain"] if measured else before / incumbent if before and incumbent else None
                if row["entry"] and gain is not None:
                    gains.setdefault(row["entry"], []).append(gain)
        kept = {entry: sum(row["status"] == "keep" for row in tried) for entry, tried in tries.items()}
        return {
            entry: EntryHistory(entry, len(tried), kept[entry], geometric_mean(gains.get(entry, [])))
            for entry, tried in tries.items()
        }

    def _end(self, finish: sqlite3.Row) -> dict[str, Json]:
        final, patch = json.loads(finish["final"]), finish["patch"]
        without_branch: dict[str, Json] = {} if patch else {"branch": None}
        return {"stop_reason": finish["stop_reason"], "final": final, "patch": patch} | without_branch

    def _parts(
        self, connection: sqlite3.Connection, run: str, rows: Rows, most: int | None = None
    ) -> tuple[Iteration, ...]:
        shown = "" if most is None else f"AND {_SHOWN}"
        attempts = f"SELECT * FROM attempts WHERE run = ? AND n = ? {shown} ORDER BY position"
        samples = "SELECT * FROM samples WHERE run = ? AND n = ?"

        def iteration(row: sqlite3.Row) -> Iteration:
            of = (run, row["n"])
            limit = () if most is None else (most,)
            us = {(each["version"], each["workload"]): each["us"] for each in connection.execute(samples, of)}
            tried = rows.read(
                connection.execute(attempts, (*of, *limit)), lambda each: _attempt(each, us),
                lambda each: f"attempt {each['position']} of iteration {row['n']} of run {run}",
            )  # fmt: skip
            return replace(_iteration(row, us), attempts=tuple(tried))

        found = connection.execute("SELECT * FROM iterations WHERE run = ? ORDER BY n", (run,)).fetchall()
        return tuple(rows.read(found, iteration, lambda row: f"iteration {row['n']} of run {run}"))

    def _require_open(self, connection: sqlite3.Connection, run: str) -> None:
        super()._require_open(connection, run)
        if finish_of(connection, run) is not None:
            raise Unusable(f"holds run {run} as finished, and a finished run is not changed; fix: start a new run")


def _require_next(connection: sqlite3.Connection, run: str, n: int) -> None:
    (expected,) = connection.execute("SELECT count(*) FROM iterations WHERE run = ?", (run,)).fetchone()
    if n < expected:
        raise Unusable(
            f"holds iteration {n} of run {run} already: another process works on that run; fix: let one of the two end"
        )
    if n > expected:
        raise ValueError(f"iteration {n} of run {run} before iteration {expected}")


# Rows. Writing moves the samples from the records to their own table; reading puts them back.


def _rows(run: str, iteration: Iteration) -> tuple[Row, list[Row], list[Row]]:
    """Returns the rows of ``iterations`` (without ``at``), ``attempts`` and ``samples``."""
    data = to_json(iteration)
    samples: list[Row] = [
        {"run": run, "n": iteration.n, "version": version, "workload": workload, "us": as_text(time.pop(SAMPLES))}
        for version, workload, time in _times(data)
    ]
    attempts: list[Row] = []
    for position, (attempt, record) in enumerate(zip(iteration.attempts, _objects(data.pop("attempts")), strict=True)):
        key: Row = {"run": run, "n": iteration.n, "position": position}
        outcome = {"value": attempt.value, "status": attempt.status, "reason": attempt.reason}
        code_hash = attempt.code.code_hash if attempt.code else None
        attempts.append({**key, **outcome, "code_hash": code_hash, "record": as_text(record)})
    row: Row = {"run": run} | {name: getattr(iteration, name) for name in _COLUMNS}
    row |= {"latency_ms": number(iteration.latency_ms), "predicted_ms": number(iteration.predicted_ms)}
    row["record"] = as_text(data)
    return row, attempts, samples


def _times(data: dict[str, Json]) -> Iterator[tuple[str, str, dict[str, Json]]]:
    """Yields version, workload and JSON of every measured time of an iteration."""
    for outcome in _objects(data["outcomes"]):
        for field, version in TIMED.items():
            if isinstance(time := outcome.get(field), dict):
                yield version, str(outcome["workload"]), time
    for position, attempt in enumerate(_objects(data["attempts"])):
        for workload, time in _attempt_times(attempt):
            yield f"attempt {position}", workload, time


def _attempt_times(attempt: Mapping[str, Json]) -> Iterator[tuple[str, dict[str, Json]]]:
    measured = attempt.get("measured")
    for workload, time in measured.items() if isinstance(measured, dict) else ():
        if isinstance(time, dict):
            yield workload, time


def _objects(data: Json) -> list[dict[str, Json]]:
    """Returns the objects in a JSON list."""
    return [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []


Samples: TypeAlias = Mapping[tuple[str, str], str]
"""The times of each version and workload, as JSON."""


def _iteration(row: sqlite3.Row, samples: Samples) -> Iteration:
    """Rebuilds an iteration without its attempts."""
    data = json.loads(row["record"]) | {"attempts": []}
    for version, workload, time in _times(data):
        time[SAMPLES] = json.loads(samples[version, workload])
    return rebuilt(Iteration, data)


def _attempt(row: sqlite3.Row, samples: Samples) -> Attempt:
    data = json.loads(row["record"])
    for workload, time in _attempt_times(data):
        time[SAMPLES] = json.loads(samples[f"attempt {row['position']}", workload])
    return rebuilt(Attempt, data)
