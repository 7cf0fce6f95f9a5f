"""The runs of all commands in the ledger: their rows and events, and how a run is found.

    LedgerFile ── RunLedger ─┬─ Ledger        the runs of `optimize`   (ledger.py)
                             ├─ TuneLedger    the runs of `tune`       (tunings.py)
                             └─ AgentLedger   the runs of `agent`      (agent_runs.py)

Earlier versions stored the runs of `tune` in ``results.db``. If that file is in the folder of ``ledger.db``, the first
opening of the ledger copies its runs and renames it to ``results.db.imported``. A file that cannot be read is kept, and
a note says so.
"""

from __future__ import annotations

import difflib
import json
import os
import secrets
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Generic, TextIO, TypeVar

from tilewright.errors import RequestError, UnknownChoice, in_one_line
from tilewright.ledger import file as database
from tilewright.ledger.codec import Dataclass, from_json, to_json
from tilewright.ledger.file import DatabaseFile, insert, text_of
from tilewright.ledger.records import BaseRun, RunOverview, TuneRun
from tilewright.ledger.tables import LEDGER
from tilewright.records import Json, Value

Run = TypeVar("Run", bound=BaseRun)
Parts = TypeVar("Parts")
Row = dict[str, Value]

LATEST = "latest"
"""The name that means the newest run."""

SHOWN_RUNS = 5
_NAME, _RESULTS = "ledger.db", "results.db"
_AT_THE_END = ("finished", "stop_reason", "final", "patch", "seconds", "effect", "proof")
"""Fields of a run that are stored in the event ``finished``."""
_NEWEST_FIRST = "ORDER BY (SELECT max(at) FROM run_events WHERE run = runs.id) DESC, runs.number DESC"
"""Sorts runs by their last events, so that a resumed run becomes the newest."""


def default_path() -> Path:
    """Returns ``ledger.db`` in ``$TILEWRIGHT_HOME``, or in ``.tilewright/`` of the current folder."""
    return database.home() / _NAME


class LedgerFile(DatabaseFile):
    """The ledger at ``path`` (default: `default_path`).

    note: a function that gets a line of text when a run is resumed, or when an old file cannot be read.
    variable: the environment variable or option that errors suggest, to select another file.
    ``left_out`` counts the damaged rows that were left out so far.
    Every method may raise `StorageError`, and methods that take a run may raise `UnknownChoice`.
    """

    command = ""
    """Only runs of this command are found by name; "" for all commands."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        clock: Callable[[], datetime] = database.utc_now,
        token: Callable[[int], str] = secrets.token_hex,
        note: Callable[[str], None] = lambda text: print(f"note: {text}", file=sys.stderr),
        variable: str = LEDGER.variable,
    ):
        super().__init__(Path(path or default_path()), replace(LEDGER, variable=variable))
        self._clock, self._token, self.note = clock, token, note
        self.left_out = 0

    def folder(self, run: str) -> Path:
        """Returns the folder for the files of a run. The folder need not exist yet."""
        return self.path.parent / "runs" / run

    def new_name(self) -> str:
        """Makes a name for a new run."""
        return self._named(self._clock())

    def _named(self, now: datetime) -> str:
        """Makes a name that sorts by time."""
        return f"{now:%Y%m%d-%H%M%S}-{now.microsecond:06d}-{self._token(3)}"

    def find(self, name: str) -> tuple[str, str]:
        """Returns the whole name of a run, and its command. ``name``: the name, a beginning of the name, or
        ``latest``."""
        with self._reading() as connection:
            row = row_of(connection, name, self.command)
            return row["id"], row["command"]

    def names(self) -> frozenset[str]:
        """Returns the names of all runs, also of those whose rows are damaged."""
        with self._reading() as connection:
            return frozenset(name for (name,) in connection.execute("SELECT id FROM runs"))

    def own_names(self) -> frozenset[str]:
        """Returns the names of the runs that were not copied from another ledger."""
        query = "SELECT id FROM runs WHERE id NOT IN (SELECT run FROM merged)"
        with self._reading() as connection:
            return frozenset(name for (name,) in connection.execute(query))

    def runs(self, task: str | None = None) -> tuple[RunOverview, ...]:
        """Returns summaries of the runs of ``task``, or of all tasks, the newest first."""
        with self._reading() as connection:
            found = connection.execute(_OVERVIEWS, (task or "", self.command)).fetchall()
            with self._leaving_out() as rows:
                return tuple(rows.read(found, _overview, lambda row: f"run {row['id']}"))

    @contextmanager
    def _leaving_out(self) -> Iterator[database.Rows]:
        """Yields a reader of rows that leaves out damaged ones. One note at the end says so."""
        yield (rows := database.Rows())
        self.left_out += len(rows.damaged)
        if rows.damaged:
            more = f", and so are {len(rows.damaged) - 1} more" if len(rows.damaged) > 1 else ""
            self.note(
                f"{self.path}: {rows.damaged[0]} cannot be read and is left out{more}; "
                "fix: restore a copy of the file, or use the Tilewright that wrote it"
            )

    def _now(self) -> str:
        return text_of(self._clock())

    def _make_folder(self) -> None:
        database.make_private(self.path.parent)

    def _exists(self) -> bool:
        return super()._exists() or self._old_results() is not None

    def _opened(self) -> sqlite3.Connection:
        first = self._connection is None
        connection = super()._opened()
        old = self._old_results() if first else None
        if old is not None:
            self._import(connection, old)
        return connection

    def _old_results(self) -> Path | None:
        old = self.path.with_name(_RESULTS)
        return old if self.path.name == _NAME and old.is_file() else None

    def _import(self, connection: sqlite3.Connection, old: Path) -> None:
        """Copies the runs of an old results file, then renames the file. If the process is killed in between, no run is
        lost."""
        try:
            runs = _read_old(old)
        except (sqlite3.Error, OSError, ValueError) as error:
            self.note(
                f"the runs in {old}, of an earlier Tilewright, cannot be read ({error}); "
                "fix: move that file away, or restore a copy of it"
            )
            return
        if runs is None:
            return
        with database.transaction(connection, "IMMEDIATE"):
            existing = {name for (name,) in connection.execute("SELECT id FROM runs")}
            for run, workloads, finish in runs:
                if run.run in existing:
                    continue
                insert_run(connection, run, "tune", run.task)
                for workload, candidates in workloads:
                    number = insert(connection, "workloads", workload)
                    for candidate in candidates:
                        insert(connection, "candidates", candidate | {"workload": number})
                if finish is not None:
                    insert(connection, "run_events", finish)
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):  # removed by SQLite, or renamed by another process
                os.rename(f"{old}{suffix}", f"{old}.imported{suffix}")


class RunLedger(LedgerFile, Generic[Run, Parts]):
    """The runs of one command."""

    record: type[Run]
    part: str
    """The name of a part of a run: "iteration", "workload" or "item"."""
    parts_stored: str
    """The query that counts the finished parts of a run."""
    begun: tuple[str, ...] = ()
    """The names of the runs that this object began or resumed. `tune` has one for each kind of GPU."""

    @property
    def present(self) -> str:
        """The name of the last run that this object began or resumed; "" if there is none."""
        return self.begun[-1] if self.begun else ""

    def stored(self) -> tuple[int, bool]:
        """Returns the number of finished parts of the runs in `begun`, and whether all these runs are finished."""
        with self._reading() as connection:
            counts = [connection.execute(self.parts_stored, (run,)).fetchone()[0] for run in self.begun]
            finished = [finish_of(connection, run) is not None for run in self.begun]
            return sum(counts), bool(finished) and all(finished)

    def compiled(self) -> int:
        """Returns how many compiled candidates of unfinished parts are stored, of the runs of this object."""
        return 0

    def run(self, name: str) -> Run:
        """Returns a run. ``name``: the run's name, a beginning of the name, or ``latest``."""
        with self._reading() as connection:
            row = row_of(connection, name, self.command)
            return self._record(row, finish_of(connection, row["id"]))

    def resume(self, key: str) -> tuple[Run, Parts] | None:
        """Returns the newest unfinished run of ``key`` with its finished parts, or None if there is none, or if it is
        damaged. The runs of other machines are not resumed: their times are those of other GPUs."""
        query = f"""SELECT * FROM runs WHERE key = ? AND command = ? AND id NOT IN (SELECT run FROM merged)
            AND NOT EXISTS (SELECT 1 FROM run_events WHERE run = runs.id AND event = 'finished')
            {_NEWEST_FIRST} LIMIT 1"""
        with self._reading() as connection:
            row = connection.execute(query, (key, self.command)).fetchone()
            if row is None:
                return None
            try:
                record, parts = self._record(row), self._parts(connection, row["id"], database.WholeRows())
            except (database.Unusable, *database.DAMAGED) as error:
                self.note(
                    f"run {row['id']} cannot be resumed ({in_one_line(error.__cause__ or error)}): a new one starts"
                )
                return None
        with self._writing() as connection:
            self._require_open(connection, record.run)
            insert(connection, "run_events", {"run": record.run, "event": "resumed", "at": self._now()})
        self.begun = (*self.begun, record.run)
        return record, parts

    def damaged(self, run: str) -> tuple[str, ...]:
        """Returns the rows of a run that cannot be read, each as text for the user."""
        rows = database.Rows()
        with self._reading() as connection:
            row = row_of(connection, run, self.command, whole=True)
            finish = finish_of(connection, run)
            if list(rows.read([row], lambda each: self._record(each, finish), lambda each: f"run {run}")):
                self._parts(connection, run, rows)
        return tuple(rows.damaged)

    def _begun(self, record: Run, kernel: str, kind: str = "") -> Run:
        now = self._clock()
        begun = replace(record, run=record.run or self._named(now), started=text_of(now))
        with self._writing() as connection:
            insert_run(connection, begun, self.command, kernel, kind)
        self.begun = (*self.begun, begun.run)
        return begun

    def _record(self, row: sqlite3.Row, finish: sqlite3.Row | None = None) -> Run:
        data = json.loads(row["record"])
        if finish is not None:
            data |= {"finished": finish["at"]} | self._end(finish)
        return database.rebuilt(self.record, data)

    def _end(self, finish: sqlite3.Row) -> dict[str, Json]:
        """Returns the fields that are stored in the event ``finished``."""
        raise NotImplementedError

    def _parts(self, connection: sqlite3.Connection, run: str, rows: database.Rows) -> Parts:
        """Returns the parts of a run, decoded by ``rows``."""
        raise NotImplementedError

    def _require_open(self, connection: sqlite3.Connection, run: str) -> None:
        row_of(connection, run, self.command, whole=True)


def write_jsonl(stream: TextIO, records: Iterable[tuple[str, Dataclass]]) -> None:
    """Writes JSON Lines, one for each record. The field ``record`` is the kind of the record. The run comes first."""
    for name, value in records:
        stream.write(json.dumps({"record": name, **to_json(value)}, allow_nan=False) + "\n")


# Runs and their events

_OVERVIEWS = f"""SELECT runs.*,
        CASE WHEN json_valid(runs.record) THEN coalesce(json_extract(runs.record, '$.where'), '') END AS "where",
        finish.at AS finished, finish.stop_reason AS stop_reason,
        (SELECT ledger FROM merged WHERE run = runs.id) AS merged_from,
        (SELECT count(*) FROM iterations WHERE run = runs.id) AS iterations,
        (SELECT count(*) FROM iterations WHERE run = runs.id AND status = 'keep' AND n > 0) AS kept,
        (SELECT json_group_array(name) FROM
            (SELECT name FROM workloads WHERE run = runs.id GROUP BY name ORDER BY min(number))) AS workloads
    FROM runs LEFT JOIN run_events AS finish ON finish.run = runs.id AND finish.event = 'finished'
    WHERE ? IN (runs.task, '') AND ? IN (runs.command, '') {_NEWEST_FIRST}"""


def _overview(row: sqlite3.Row) -> RunOverview:
    if row["where"] is None:
        raise ValueError("its record is no JSON")
    own = {"run": row["id"], "measured": bool(row["measured"]), "workloads": tuple(json.loads(row["workloads"]))}
    return RunOverview(**own, **{each.name: row[each.name] for each in fields(RunOverview) if each.name not in own})


def row_of(connection: sqlite3.Connection, name: str, command: str = "", *, whole: bool = False) -> sqlite3.Row:
    """Returns the row of a run. ``name``: its name, a beginning of its name, or ``latest`` for the newest run.

    whole: accepts only whole names.
    Raises `UnknownChoice` if no run matches, and `RequestError` if several runs match.
    """
    runs = connection.execute(f"SELECT * FROM runs WHERE ? IN (command, '') {_NEWEST_FIRST}", (command,)).fetchall()
    matches = [row for row in runs if row["id"].startswith(name)] if name else []
    matches = [row for row in matches if row["id"] == name] or matches
    if name == LATEST:
        matches = runs[:1]
    if not matches:
        ids = [str(row["id"]) for row in runs]
        known = [LATEST] * (bool(ids) and not whole) + ids[:SHOWN_RUNS]
        known += [near for near in difflib.get_close_matches(name, ids, 1) if near not in known]
        raise UnknownChoice("run", name, known + ["…"] * (len(runs) > SHOWN_RUNS))
    if len(matches) > 1:
        named = ", ".join(row["id"] for row in matches[:SHOWN_RUNS])
        raise RequestError(f"'{name}' is the beginning of {len(matches)} runs; write more of the name: {named}")
    row: sqlite3.Row = matches[0]
    if whole and row["id"] != name:
        raise ValueError(f"'{name}' is the beginning of a run's name")
    return row


def finish_of(connection: sqlite3.Connection, run: str) -> sqlite3.Row | None:
    """Returns the event ``finished`` of the run, or None."""
    query = "SELECT * FROM run_events WHERE run = ? AND event = 'finished'"
    row: sqlite3.Row | None = connection.execute(query, (run,)).fetchone()
    return row


def insert_run(connection: sqlite3.Connection, run: BaseRun, command: str, kernel: str, kind: str = "") -> None:
    """Inserts the row of a run and its event ``started``. Fields that are known only at the end are left out."""
    record = {name: value for name, value in to_json(run).items() if name not in _AT_THE_END}
    row: Row = {"id": run.run, "key": run.key, "task": run.task, "kernel": kernel, "kind": kind, "command": command}
    row |= {"measured": bool(run.measured), "arch": run.machine.arch, "gpu": run.machine.gpu}
    insert(connection, "runs", row | {"started": run.started, "record": database.as_text(record)})
    insert(connection, "run_events", {"run": run.run, "event": "started", "at": run.started})


# Old results


def _read_old(path: Path) -> list[tuple[TuneRun, list[tuple[Row, list[Row]]], Row | None]] | None:
    """Reads the runs of an old results file. A run has the rows of its workloads and candidates, and the row of its
    end.

    Returns None if the file belongs to another program.
    """
    columns = "configuration, status, reason, code_hash, code, compile_seconds, predicted_us, predicted, median_us"
    candidates = f"""SELECT position, {columns}, measured, samples, checked FROM candidates
        WHERE run = :run AND workload = :name ORDER BY position"""
    workloads = """SELECT run, name, dims, bound, best, tied, shipped, reason, race FROM workloads
        WHERE run = ? ORDER BY position"""
    old_runs = []
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        named = "SELECT 1 FROM sqlite_master WHERE name = 'tilewright_schema'"
        if connection.execute(named).fetchone() is None:
            return None
        for run in map(dict, connection.execute("SELECT * FROM runs ORDER BY number")):
            rows = [dict(row) for row in connection.execute(workloads, (run["id"],))]
            race: dict[str, Json] = next((json.loads(row["race"]) for row in rows if row["race"]), {})
            end: Row = {"run": run["id"], "event": "finished", "at": run["finished"], "seconds": run["seconds"]}
            parts = [(row, [dict(candidate) for candidate in connection.execute(candidates, row)]) for row in rows]
            old_runs.append((_old_run(run, race), parts, end if run["finished"] is not None else None))
    return old_runs


def _old_run(run: Row, race: dict[str, Json]) -> TuneRun:
    """Makes a record of an old run. Board and bandwidth were not stored. Policy and seed come from one of its races."""
    policy, machine = race.get("policy"), json.loads(str(run["machine"]))
    machine["versions"] = json.loads(str(run["versions"]))
    data: dict[str, Json] = {name: run[name] for name in ("key", "task", "started")}
    data |= {"run": run["id"], "machine": machine, "measured": bool(run["measured"]), "seed": race.get("seed")}
    data["policy"] = policy if isinstance(policy, dict) else {}
    return from_json(TuneRun, data, defaults=True)
