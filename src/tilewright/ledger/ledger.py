"""The runs of `optimize`: every iteration of every run, in the append-only ledger that Tilewright alone writes.

    runs ─┬─ run_events                 started, resumed, finished
          └─ iterations ─┬─ attempts    every value that was tried; what failed is a row too
                         └─ samples     the times behind it, µs, by version and workload

* An iteration is appended in one transaction, with its samples, environment, diff and codes, also when it was
  reverted or crashed. `kill -9` at any moment loses at most the iteration that runs; `resume` finds the rest.
* SQLite refuses to change or delete a row (`tables.py`), so a number cannot be improved afterwards.
* Two processes may write, each its own run. Where both append to one run, the second is refused.
* ``perf_results.md`` (`perf_results.py`), JSON Lines (`runs.write_jsonl`) and the report are views of it.

The file is ``ledger.db``; what belongs to a run lies in ``runs/RUN/`` beside it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilewright.ledger import rows
from tilewright.ledger.file import Unusable, dump, insert
from tilewright.ledger.records import EntryHistory, Iteration, Metrics, RunRecord
from tilewright.ledger.runs import LedgerFile, finish_of, insert_run, row_of, run_row, unfinished
from tilewright.race.stats import geometric_mean


class Ledger(LedgerFile):
    """The runs of `optimize` in the ledger."""

    command = "optimize"

    # Writing

    def begin(self, record: RunRecord) -> RunRecord:
        """Start a run; the record comes back with its ``started``, and with a ``run`` where it had none."""
        begun = replace(record, run=record.run or self.new_name(), started=self._now())
        with self._writing() as connection:
            insert_run(connection, run_row(begun, self.command, begun.kernel, begun.kind))
        return begun

    def append(self, run: str, iteration: Iteration) -> None:
        """Record one iteration with all that belongs to it, or nothing of it."""
        at = self._now()
        row, attempts, samples = rows.of_iteration(run, iteration)
        with self._writing() as connection:
            _require_open(connection, run)
            _require_next(connection, run, iteration.n)
            insert(connection, "iterations", row | {"at": at})
            for attempt in attempts:
                insert(connection, "attempts", attempt)
            for sample in samples:
                insert(connection, "samples", sample)

    def finish(self, run: str, stop_reason: str, final: tuple[Metrics, ...], patch: str = "") -> None:
        """Close the run: why it stopped, and the metrics of its last version on each workload.

        patch: unified, from the baseline to what the run ends with.
        """
        at = self._now()
        row = {"run": run, "event": "finished", "at": at, "stop_reason": stop_reason}
        with self._writing() as connection:
            _require_open(connection, run)
            insert(connection, "run_events", row | {"final": dump(final), "patch": patch})

    # Reading

    def resume(self, key: str) -> tuple[RunRecord, tuple[Iteration, ...]] | None:
        """The newest run of ``key`` that has not finished, with its iterations; None where there is none."""
        with self._reading() as connection:
            row = unfinished(connection, key, self.command)
            if row is None:
                return None
            record, iterations = rows.run(row, None), tuple(_iterations(connection, row["id"]))
        with self._writing() as connection:
            _require_open(connection, record.run)
            insert(connection, "run_events", {"run": record.run, "event": "resumed", "at": self._now()})
        return record, iterations

    def run(self, name: str) -> RunRecord:
        """The run of that name, of that beginning where only one has it, or the newest for ``latest``."""
        with self._reading() as connection:
            row = row_of(connection, name, self.command)
            return rows.run(row, finish_of(connection, row["id"]))

    def iterations(self, run: str) -> tuple[Iteration, ...]:
        """The iterations of a run, with their attempts and samples, in order."""
        with self._reading() as connection:
            return tuple(_iterations(connection, row_of(connection, run, self.command)["id"]))

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
        return {entry: _history(entry, tried, gains.get(entry, [])) for entry, tried in tries.items()}


def _iterations(connection: sqlite3.Connection, run: str) -> Iterator[Iteration]:
    attempts = "SELECT * FROM attempts WHERE run = ? AND n = ? ORDER BY position"
    samples = "SELECT * FROM samples WHERE run = ? AND n = ?"
    for row in connection.execute("SELECT * FROM iterations WHERE run = ? ORDER BY n", (run,)).fetchall():
        key = (run, row["n"])
        yield rows.iteration(
            row, connection.execute(attempts, key).fetchall(), connection.execute(samples, key).fetchall()
        )


def _require_open(connection: sqlite3.Connection, run: str) -> None:
    row_of(connection, run, whole=True)
    if finish_of(connection, run) is not None:
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
