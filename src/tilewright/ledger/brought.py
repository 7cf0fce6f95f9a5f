"""Copies runs from another ledger, such as that of a command that ran on another machine.

A run is known by its name. Rows that are here already are not copied again, so a run may arrive in parts. All tables
are append-only here and there, so the rows that are here must be the first ones there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from tilewright.ledger.file import connect, insert, transaction
from tilewright.ledger.runs import LedgerFile
from tilewright.ledger.tables import LEDGER
from tilewright.records import Value

TABLES = (
    "runs", "run_events", "iterations", "attempts", "samples", "workloads", "agent_measurements", "agent_findings",
    "agent_items", "agent_changes", "agent_steps", "agent_ends", "loads",
)  # fmt: skip
"""The tables with rows of runs. A row refers only to rows of tables before its own."""
Translated = Callable[[str], str]


class BroughtRuns(LedgerFile):
    """The ledger here."""

    def add(self, source: Path, translated: Translated = str) -> tuple[str, ...]:
        """Copies all runs of the ledger at ``source``. Returns the names of the runs of which something was new.

        translated: applied to all texts, such as names of folders that are other ones here.
        A run that went on here and there is left as it is here; a note says so.
        """
        new = []
        with closing(connect(source, LEDGER)) as theirs, transaction(theirs, "DEFERRED"), self._writing() as ours:
            for (run,) in theirs.execute("SELECT id FROM runs ORDER BY number").fetchall():
                copies = [_Copy(theirs, ours, table, run, translated) for table in TABLES]
                if any(not each.fits for each in copies):
                    self.note(f"run {run} went on here and elsewhere; {self.path} keeps what happened here")
                elif sum(each.add() for each in copies):
                    new.append(run)
        return tuple(new)


class _Copy:
    """The rows of one run in one table."""

    def __init__(
        self, theirs: sqlite3.Connection, ours: sqlite3.Connection, table: str, run: str, translated: Translated
    ) -> None:
        self.theirs, self.ours, self.table, self.translated = theirs, ours, table, translated
        self.here, self.there = _rows(ours, table, run), _rows(theirs, table, run)

    @property
    def fits(self) -> bool:
        """Whether the rows here are the first ones there."""
        known = zip(self.here, self.there, strict=False)
        return len(self.here) <= len(self.there) and all(_values(one) == self._new(other) for one, other in known)

    def add(self) -> int:
        """Adds the rows that are missing here. Returns their number."""
        missing = self.there[len(self.here) :]
        for row in missing:
            number = insert(self.ours, self.table, self._new(row))
            if self.table == "workloads":
                self._candidates(row["number"], number)
        return len(missing)

    def _candidates(self, theirs: int, ours: int | None) -> None:
        rows = self.theirs.execute("SELECT * FROM candidates WHERE workload = ? ORDER BY position", (theirs,))
        for row in rows.fetchall():
            insert(self.ours, "candidates", self._new(row) | {"workload": ours})

    def _new(self, row: sqlite3.Row) -> dict[str, Value]:
        values = _values(row).items()
        return {name: self.translated(value) if isinstance(value, str) else value for name, value in values}


def _rows(connection: sqlite3.Connection, table: str, run: str) -> Sequence[sqlite3.Row]:
    column = "id" if table == "runs" else "run"
    rows: list[sqlite3.Row] = connection.execute(
        f"SELECT * FROM {table} WHERE {column} = ? ORDER BY rowid", (run,)
    ).fetchall()
    return rows


def _values(row: sqlite3.Row) -> dict[str, Value]:
    """Returns a row without its number, which is another one in another ledger."""
    return {name: row[name] for name in row.keys() if name != "number"}  # noqa: SIM118  (a row is no mapping)
