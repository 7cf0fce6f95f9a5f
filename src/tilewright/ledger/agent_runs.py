"""The runs of `agent` in the append-only ledger.

    runs ─┬─ run_events            started, resumed, finished
          ├─ agent_measurements    every number; its id is RUN/mN
          ├─ agent_findings        what each finding became
          ├─ agent_items ─ agent_ends
          └─ agent_changes ─ agent_steps

Each row is stored in its own transaction, at once: `kill -9` loses at most the work of one step. SQLite refuses steps
that are out of order, and `finish` refuses a run with an item that has not ended.

    with AgentLedger() as ledger:
        run, parts = ledger.load("latest")      # AgentRun and AgentParts: all that reports need
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

from tilewright.ledger.agent_records import (
    STEPS,
    AgentChange,
    AgentEnd,
    AgentFinding,
    AgentItem,
    AgentMeasurement,
    AgentParts,
    AgentRun,
    AgentStep,
)
from tilewright.ledger.codec import Dataclass
from tilewright.ledger.file import Decoded, Rows, Unusable, WholeRows, dump, insert, number, parse
from tilewright.ledger.runs import RunLedger, finish_of
from tilewright.records import Json, Value

Row = dict[str, Value]


class AgentLedger(RunLedger[AgentRun, AgentParts]):
    """The runs of `agent`. `resume` returns all stored parts of a run."""

    command, record, part = "agent", AgentRun, "item"
    parts_stored = "SELECT count(*) FROM agent_ends WHERE run = ?"

    def begin(self, record: AgentRun) -> AgentRun:
        """Starts a run, and returns the record with its name and start time."""
        return self._begun(record, "", record.mode)

    def measured(self, run: str, measurement: AgentMeasurement) -> AgentMeasurement:
        """Appends a measurement, and returns it with its id."""
        with self._writing() as connection:
            self._require_open(connection, run)
            (n,) = connection.execute("SELECT count(*) FROM agent_measurements WHERE run = ?", (run,)).fetchone()
            stored = replace(measurement, id=f"{run}/m{n}")
            ratio = number(stored.ratio.centre) if stored.ratio is not None else None
            row: Row = {"n": n, "kind": stored.kind, "about": stored.about, "change": stored.change, "ratio": ratio}
            self._insert(connection, "agent_measurements", run, stored, row | {"verdict": stored.verdict})
        return stored

    def found(self, run: str, finding: AgentFinding) -> None:
        """Appends a finding, with the item that it became or the reason why it was dismissed."""
        row: Row = {"id": finding.id, "item": finding.item, "dismissed": finding.dismissed}
        self._append("agent_findings", run, finding, row)

    def planned(self, run: str, item: AgentItem) -> None:
        """Appends an item."""
        self._append("agent_items", run, item, {"id": item.id, "text": item.text})

    def proposed(self, run: str, change: AgentChange) -> None:
        """Appends a change of an item, before its first step."""
        row: Row = {"id": change.id, "item": change.item, "name": change.name, "site": change.site}
        self._append("agent_changes", run, change, row)

    def stepped(self, run: str, step: AgentStep) -> None:
        """Appends a step. Raises StorageError for a step out of order, and for a done step without evidence."""
        n = STEPS.index(step.name)
        row: Row = {"change": step.change, "n": n, "name": step.name, "state": step.state}
        self._append("agent_steps", run, step, row | {"evidence": step.evidence, "reason": step.reason})

    def ended(self, run: str, end: AgentEnd) -> None:
        """Appends the outcome of an item."""
        row: Row = {"item": end.item, "status": end.status, "why": end.why, "reason": end.reason}
        self._append("agent_ends", run, end, row | {"evidence": end.evidence})

    def finish(self, run: str, stop_reason: str, *, effect: str = "", proof: str = "", patch: str = "") -> None:
        """Marks the run as finished. ``effect``, ``proof``: ids of measurements. ``patch``: all kept changes.

        Raises StorageError if an item has not ended.
        """
        query = "SELECT id FROM agent_items WHERE run = ? AND id NOT IN (SELECT item FROM agent_ends WHERE run = ?)"
        row: Row = {"run": run, "event": "finished", "at": self._now(), "stop_reason": stop_reason, "patch": patch}
        with self._writing() as connection:
            self._require_open(connection, run)
            if left := connection.execute(query, (run, run)).fetchone():
                raise Unusable(f"holds run {run}, whose item {left['id']} has not ended; fix: end it first")
            insert(connection, "run_events", row | {"final": dump({"effect": effect, "proof": proof})})

    def load(self, name: str) -> tuple[AgentRun, AgentParts]:
        """Returns a run with all its records. ``name``: the run's name, a beginning of the name, or ``latest``."""
        run = self.run(name)
        with self._reading() as connection:
            return run, self._parts(connection, run.run, WholeRows())

    def readable(self, name: str) -> tuple[AgentRun, AgentParts]:
        """Returns a run like `load`, but leaves out damaged records."""
        run = self.run(name)
        with self._reading() as connection, self._leaving_out() as rows:
            return run, self._parts(connection, run.run, rows)

    def _append(self, table: str, run: str, record: Dataclass, row: Row) -> None:
        with self._writing() as connection:
            self._require_open(connection, run)
            self._insert(connection, table, run, record, row)

    def _insert(self, connection: sqlite3.Connection, table: str, run: str, record: Dataclass, row: Row) -> None:
        insert(connection, table, {"run": run, **row, "at": self._now(), "record": dump(record)})

    def _require_open(self, connection: sqlite3.Connection, run: str) -> None:
        super()._require_open(connection, run)
        if finish_of(connection, run) is not None:
            raise Unusable(f"holds run {run} as finished, and a finished run is not changed; fix: start a new run")

    def _end(self, finish: sqlite3.Row) -> dict[str, Json]:
        return {"stop_reason": finish["stop_reason"], "patch": finish["patch"], **json.loads(finish["final"])}

    def _parts(self, connection: sqlite3.Connection, run: str, rows: Rows) -> AgentParts:
        def read(kind: type[Decoded], table: str) -> tuple[Decoded, ...]:
            found = connection.execute(f"SELECT rowid, record FROM {table} WHERE run = ? ORDER BY rowid", (run,))
            what = table.removeprefix("agent_").removesuffix("s")
            return tuple(
                rows.read(
                    found, lambda row: parse(kind, row["record"]), lambda row: f"{what} {row['rowid']} of run {run}"
                )
            )

        return AgentParts(
            measurements=read(AgentMeasurement, "agent_measurements"),
            findings=read(AgentFinding, "agent_findings"),
            items=read(AgentItem, "agent_items"),
            changes=read(AgentChange, "agent_changes"),
            steps=read(AgentStep, "agent_steps"),
            ends=read(AgentEnd, "agent_ends"),
        )
