"""Merges the runs of other ledgers into a ledger, for example those of several machines.

The name of a run has its time to the microsecond and a random token, so equal names mean the same run. All its rows are
copied, without the numbers that each ledger gives. A run that is there already gets the rows that were added since, so
merging again, or in another order, changes nothing. An own run of the ledger is never changed, and no copied run is
resumed.

A run with a damaged row, and a run whose rows differ from those that were copied before, is left out with the reason.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.errors import StorageError
from tilewright.ledger.agent_runs import AgentLedger
from tilewright.ledger.file import Unusable, insert
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.runs import LedgerFile, RunLedger
from tilewright.ledger.tunings import TuneLedger
from tilewright.records import Value

LEDGERS: Mapping[str, type[RunLedger]] = {  # type: ignore[type-arg]
    each.command: each for each in (TuneLedger, Ledger, AgentLedger)
}
TABLES = (
    "runs", "run_events", "iterations", "attempts", "samples", "workloads", "agent_measurements", "agent_findings",
    "agent_items", "agent_changes", "agent_steps", "agent_ends", "loads",
)  # fmt: skip
"""The tables with the rows of a run, each after those to which it refers."""
RUN_OF = {"runs": "id"}
"""The column with the name of the run; ``run`` in other tables."""
OWN = "number"
"""The column with the number that each ledger gives."""
CANDIDATES = "candidates"
"""The table whose rows belong to a row of ``workloads``."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

RunMerge: TypeAlias = Literal["added", "extended", "same", "left out"]
Row: TypeAlias = dict[str, Value]
Rows: TypeAlias = dict[str, list[tuple[Row, tuple[Row, ...]]]]
"""For each table the rows of one run, in the order in which they were stored, each with its candidates."""


@dataclass(frozen=True)
class MergedRun:
    """What became of a run of another ledger. ``why``: the reason if it was left out."""

    run: str
    ledger: str
    outcome: RunMerge
    why: str = ""


def merged(
    into: LedgerFile, other: LedgerFile, translated: Callable[[str], str] = lambda text: text
) -> Iterator[MergedRun]:
    """Copies the runs of ``other``, each in one transaction. Yields what became of each.

    translated: applied to all texts, such as names of folders that are other ones here.
    Raises StorageError if one of the files cannot be used.
    """
    for run in sorted(other.names()):
        try:
            rows = _translated(_readable(other, run), translated)
        except (Unusable, StorageError) as error:
            yield MergedRun(run, str(other.path), "left out", str(error))
            continue
        try:
            yield _copied(into, run, rows, str(other.path))
        except StorageError as error:
            if not isinstance(error.__cause__, sqlite3.IntegrityError):
                raise
            yield MergedRun(run, str(other.path), "left out", f"its rows belong to no run ({error.__cause__})")


def _readable(other: LedgerFile, run: str) -> Rows:
    """Returns the rows of a run. Raises Unusable if one of them is damaged, or if its name is no name of a folder."""
    if not NAME.fullmatch(run):
        raise Unusable("its name is none that Tilewright gives")
    with other._reading() as connection:
        command = connection.execute("SELECT command FROM runs WHERE id = ?", (run,)).fetchone()["command"]
        rows = _rows(connection, run, _columns(connection))
    if (kind := LEDGERS.get(command)) is None:
        raise Unusable(f"it is of the unknown command '{command}'; known: {', '.join(LEDGERS)}")
    with kind(other.path) as ledger:
        if damaged := ledger.damaged(run):
            more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            raise Unusable(f"{damaged[0]} cannot be read{more}; fix: restore a copy of {other.path}")
    return rows


def _translated(rows: Rows, translated: Callable[[str], str]) -> Rows:
    def new(row: Row) -> Row:
        return {name: translated(value) if isinstance(value, str) else value for name, value in row.items()}

    return {table: [(new(row), tuple(map(new, parts))) for row, parts in found] for table, found in rows.items()}


def _copied(into: LedgerFile, run: str, rows: Rows, ledger: str) -> MergedRun:
    with into._writing() as connection:
        columns = _columns(connection)
        there = _rows(connection, run, columns)
        mine = {table: [({name: row[name] for name in row if name in columns[table]}, parts) for row, parts in found]
                for table, found in rows.items()}  # fmt: skip
        new = not there["runs"]
        if not new and all(_begins(there[table], mine[table]) for table in TABLES):
            return MergedRun(run, ledger, "same")
        if not new and connection.execute("SELECT 1 FROM merged WHERE run = ?", (run,)).fetchone() is None:
            return MergedRun(run, ledger, "left out", "it is a run of this ledger, which has other rows of it")
        if not all(_begins(mine[table], there[table]) for table in TABLES):
            return MergedRun(run, ledger, "left out", "its rows differ from those that were copied before")
        for table in TABLES:
            for row, parts in mine[table][len(there[table]) :]:
                number = insert(connection, table, row)
                for part in parts:
                    insert(connection, CANDIDATES, {**part, "workload": number})
        if new:
            insert(connection, "merged", {"run": run, "ledger": ledger, "at": into._now()})
        return MergedRun(run, ledger, "added" if new else "extended")


def _begins(whole: Sequence[object], start: Sequence[object]) -> bool:
    return list(whole[: len(start)]) == list(start)


def _columns(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """Returns the columns of each table, without the numbers that a ledger gives."""
    names = (*TABLES, CANDIDATES)
    found = {table: {row["name"] for row in connection.execute(f"PRAGMA table_info({table})")} for table in names}
    return {table: frozenset(columns - {OWN}) for table, columns in found.items()}


def _rows(connection: sqlite3.Connection, run: str, columns: Mapping[str, frozenset[str]]) -> Rows:
    rows: Rows = {}
    for table in TABLES:
        query = f"SELECT rowid AS place, * FROM {table} WHERE {RUN_OF.get(table, 'run')} = ? ORDER BY rowid"
        found = connection.execute(query, (run,)).fetchall()
        rows[table] = [(_row(row, columns[table]), _candidates(connection, table, row, columns)) for row in found]
    return rows


def _candidates(
    connection: sqlite3.Connection, table: str, row: sqlite3.Row, columns: Mapping[str, frozenset[str]]
) -> tuple[Row, ...]:
    if table != "workloads":
        return ()
    found = connection.execute(f"SELECT * FROM {CANDIDATES} WHERE workload = ? ORDER BY position", (row["place"],))
    return tuple(_row(each, columns[CANDIDATES] - {"workload"}) for each in found)


def _row(row: sqlite3.Row, columns: frozenset[str]) -> Row:
    return {name: row[name] for name in row.keys() if name in columns}  # noqa: SIM118  (a row has no items)
