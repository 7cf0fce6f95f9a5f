"""The ledger: every iteration of every run of the loop, in one append-only file that Tilewright alone writes.

    runs ─┬─ run_events                 started, resumed, finished
          └─ iterations ─┬─ attempts    every value that was tried; what failed is a row too
                         └─ samples     the times behind it, µs, by version and workload

* An iteration is appended in one transaction, with its samples, environment, diff and codes, also when it was
  reverted or crashed. `kill -9` at any moment loses at most the iteration that runs; `resume` finds the rest.
* SQLite refuses to change or delete a row (`tables.py`), so a number cannot be improved afterwards.
* Two processes may write, each its own run. Where both append to one run, the second is refused.
* ``perf_results.md`` (`perf_results.py`), JSON Lines (`Ledger.export_jsonl`) and the report are views of it.

The file is ``ledger.db``, beside the results of `store.py`; what belongs to a run lies in ``runs/RUN/``.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TextIO

from tilewright.errors import RequestError, UnknownChoice
from tilewright.ledger import rows
from tilewright.ledger.file import DatabaseFile, Unusable, home, insert, make_private, text_of, utc_now
from tilewright.ledger.records import EntryHistory, Iteration, RunOverview, RunRecord, Standing
from tilewright.ledger.tables import LEDGER
from tilewright.race.stats import geometric_mean

LATEST = "latest"
"""The name by which a person asks for the newest run."""

SHOWN_RUNS = 5


def default_path() -> Path:
    """``ledger.db`` in ``$TILEWRIGHT_HOME``, or else in ``.tilewright/`` here."""
    return home() / "ledger.db"


class Ledger(DatabaseFile):
    """The ledger at ``path`` (default: `default_path`), as a context manager or with `close`.

    Every method may raise `StorageError`; those that take a run, `UnknownChoice`.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        clock: Callable[[], datetime] = utc_now,
        token: Callable[[int], str] = secrets.token_hex,
    ):
        super().__init__(Path(path or default_path()), LEDGER, clock, token)

    def folder(self, run: str) -> Path:
        """Where the views of a run lie; whoever writes the first makes it, with `database.make_private`."""
        return self.path.parent / "runs" / run

    def _make_folder(self) -> None:
        make_private(self.path.parent)

    # Writing

    def new_name(self) -> str:
        """A name for a run that has not begun; names sort by time."""
        return self._named(self._clock())

    def begin(self, record: RunRecord) -> RunRecord:
        """Start a run; the record comes back with its ``started``, and with a ``run`` where it had none."""
        name = record.run or self.new_name()
        begun = replace(record, run=name, started=text_of(self._clock()))
        with self._writing() as connection:
            insert(connection, "runs", rows.of_run(begun))
            insert(connection, "run_events", {"run": name, "event": "started", "at": begun.started})
        return begun

    def append(self, run: str, iteration: Iteration) -> None:
        """Record one iteration with all that belongs to it, or nothing of it."""
        at = text_of(self._clock())
        row, attempts, samples = rows.of_iteration(run, iteration)
        with self._writing() as connection:
            _require_open(connection, run)
            _require_next(connection, run, iteration.n)
            insert(connection, "iterations", row | {"at": at})
            for attempt in attempts:
                insert(connection, "attempts", attempt)
            for sample in samples:
                insert(connection, "samples", sample)

    def finish(self, run: str, stop_reason: str, final: tuple[Standing, ...], patch: str = "") -> None:
        """Close the run: why it stopped, and how what it ends with stands on each workload.

        patch: unified, from the baseline to what the run ends with.
        """
        at = text_of(self._clock())
        row = {"run": run, "event": "finished", "at": at, "stop_reason": stop_reason}
        with self._writing() as connection:
            _require_open(connection, run)
            insert(connection, "run_events", row | {"final": rows.of_final(final), "patch": patch})

    # Reading

    def resume(self, key: str) -> tuple[RunRecord, tuple[Iteration, ...]] | None:
        """The newest run of ``key`` that has not finished, with its iterations; None where there is none."""
        query = """SELECT * FROM runs WHERE key = ? AND NOT EXISTS
            (SELECT 1 FROM run_events WHERE run = runs.id AND event = 'finished') ORDER BY number DESC LIMIT 1"""
        with self._reading() as connection:
            row = connection.execute(query, (key,)).fetchone()
            if row is None:
                return None
            found = rows.run(row, None), tuple(_iterations(connection, row["id"]))
        with self._writing() as connection:
            _require_open(connection, row["id"])
            at = text_of(self._clock())
            insert(connection, "run_events", {"run": row["id"], "event": "resumed", "at": at})
        return found

    def runs(self) -> tuple[RunOverview, ...]:
        """One line about each run, the newest first."""
        query = """SELECT runs.*, finish.at AS finished, finish.stop_reason AS stop_reason,
                (SELECT count(*) FROM iterations WHERE run = runs.id) AS iterations,
                (SELECT count(*) FROM iterations WHERE run = runs.id AND status = 'keep' AND n > 0) AS kept
            FROM runs LEFT JOIN run_events AS finish ON finish.run = runs.id AND finish.event = 'finished'
            ORDER BY runs.number DESC"""
        with self._reading() as connection:
            return tuple(rows.overview(row) for row in connection.execute(query).fetchall())

    def run(self, name: str) -> RunRecord:
        """The run of that name, of that beginning where only one has it, or the newest for ``latest``."""
        with self._reading() as connection:
            row = _found(connection, name)
            return rows.run(row, _finish(connection, row["id"]))

    def iterations(self, run: str) -> tuple[Iteration, ...]:
        """The iterations of a run, with their attempts and samples, in order."""
        with self._reading() as connection:
            return tuple(_iterations(connection, _found(connection, run)["id"]))

    def history(
        self, *, measured: bool, arch: str | None = None, kind: str | None = None, without: str | None = None
    ) -> Mapping[str, EntryHistory]:
        """What the runs say about each entry of the playbook, by its id.

        Only measured runs, or only predicted ones: the two never mix. ``kind`` is `RunRecord.kind`;
        ``without`` leaves out one run, so that a run that is resumed chooses as it did before.
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
                gain = row["gain"] if measured else _ratio(incumbent, row["predicted_ms"])
                incumbent = row["predicted_ms"]
                if row["entry"] and gain is not None:
                    gains.setdefault(row["entry"], []).append(gain)
        return {entry: _history(entry, found, gains.get(entry, [])) for entry, found in tries.items()}

    def export_jsonl(self, run: str, stream: TextIO) -> None:
        """The run as JSON Lines: the run itself, then each iteration with everything (X-12)."""
        record, iterations = self.run(run), self.iterations(run)
        for name, value in (("run", record), *(("iteration", one) for one in iterations)):
            line = {"record": name, **rows.as_data(value)}
            stream.write(json.dumps(line, ensure_ascii=True, allow_nan=False) + "\n")


def _iterations(connection: sqlite3.Connection, run: str) -> Iterator[Iteration]:
    attempts = "SELECT * FROM attempts WHERE run = ? AND n = ? ORDER BY position"
    samples = "SELECT * FROM samples WHERE run = ? AND n = ?"
    for row in connection.execute("SELECT * FROM iterations WHERE run = ? ORDER BY n", (run,)).fetchall():
        key = (run, row["n"])
        yield rows.iteration(
            row, connection.execute(attempts, key).fetchall(), connection.execute(samples, key).fetchall()
        )


def _found(connection: sqlite3.Connection, name: str) -> sqlite3.Row:
    """The row of the run; `UnknownChoice` names the newest, an ambiguous beginning those that have it."""
    query = "SELECT * FROM runs ORDER BY number DESC"
    runs = connection.execute(query).fetchall()
    found = [row for row in runs if row["id"].startswith(name)] if name else []
    found = [row for row in found if row["id"] == name] or found
    if name == LATEST:
        found = runs[:1]
    if not found:
        known = [str(row["id"]) for row in runs[:SHOWN_RUNS]]
        raise UnknownChoice("run", name, known + ["…"] * (len(runs) > SHOWN_RUNS))
    if len(found) > 1:
        named = ", ".join(row["id"] for row in found[:SHOWN_RUNS])
        raise RequestError(f"run '{name}' is one of {len(found)}; write more of its name: {named}")
    row: sqlite3.Row = found[0]
    return row


def _finish(connection: sqlite3.Connection, run: str) -> sqlite3.Row | None:
    query = "SELECT * FROM run_events WHERE run = ? AND event = 'finished'"
    row: sqlite3.Row | None = connection.execute(query, (run,)).fetchone()
    return row


def _require_open(connection: sqlite3.Connection, run: str) -> None:
    """By its whole name: what writes does not guess."""
    if _found(connection, run)["id"] != run:
        raise ValueError(f"'{run}' is the beginning of a run's name")
    if _finish(connection, run) is not None:
        raise Unusable(f"holds run {run} as finished, and a finished run takes nothing more; fix: start a run")


def _require_next(connection: sqlite3.Connection, run: str, n: int) -> None:
    (expected,) = connection.execute("SELECT count(*) FROM iterations WHERE run = ?", (run,)).fetchone()
    if n < expected:
        raise Unusable(
            f"holds iteration {n} of run {run} already: another process works on that run; fix: let one of the two end"
        )
    if n > expected:
        raise ValueError(f"iteration {n} of run {run} before iteration {expected}")


def _ratio(before: float | None, after: float | None) -> float | None:
    return before / after if before and after else None


def _history(entry: str, tries: list[sqlite3.Row], gains: list[float]) -> EntryHistory:
    keeps = sum(row["status"] == "keep" for row in tries)
    return EntryHistory(entry, len(tries), keeps, geometric_mean(gains))
