"""The SQLite file behind `store.py`: its tables, its connection, its transactions and its errors.

An error of SQLite or of the file system becomes a `StorageError` in one place, `storage`. A file that
is not ours, or that another version of Tilewright wrote, is refused before anything of it is changed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tilewright.errors import StorageError

SCHEMA = 1
"""Version of the tables below. A record field with a default may be added without a new version."""

BUSY_SECONDS = 30.0
"""How long to wait for another process that is writing."""

_SCHEMA_TABLE = "tilewright_schema"

_TABLES = (
    f"CREATE TABLE {_SCHEMA_TABLE} (version INTEGER NOT NULL)",
    """CREATE TABLE runs (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, task TEXT NOT NULL, key TEXT NOT NULL,
        measured INTEGER NOT NULL, arch TEXT NOT NULL, gpu TEXT, machine TEXT NOT NULL,
        versions TEXT NOT NULL, started TEXT NOT NULL, finished TEXT, seconds TEXT NOT NULL)""",
    """CREATE TABLE workloads (
        run TEXT NOT NULL REFERENCES runs (id), name TEXT NOT NULL, position INTEGER NOT NULL,
        dims TEXT NOT NULL, bound TEXT NOT NULL, best INTEGER, tied TEXT NOT NULL,
        shipped TEXT NOT NULL, reason TEXT NOT NULL, race TEXT, PRIMARY KEY (run, name))""",
    """CREATE TABLE candidates (
        run TEXT NOT NULL, workload TEXT NOT NULL, position INTEGER NOT NULL,
        configuration TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL,
        code_hash TEXT, code TEXT, compile_seconds REAL, predicted_us REAL, predicted TEXT,
        median_us REAL, measured TEXT, samples TEXT, checked TEXT,
        PRIMARY KEY (run, workload, position),
        FOREIGN KEY (run, workload) REFERENCES workloads (run, name))""",
    "CREATE INDEX runs_by_key ON runs (key)",
    "CREATE INDEX candidates_by_code ON candidates (code_hash)",
    f"INSERT INTO {_SCHEMA_TABLE} VALUES ({SCHEMA})",
)
"""``workloads.best`` is the ``position`` of the best candidate; ``samples`` are microseconds."""

_ELSEWHERE = "set TILEWRIGHT_HOME to a directory that you can write"
_FIXES = (
    ("locked", f"another process has been writing for {BUSY_SECONDS:.0f} s: wait for it, or end it"),
    ("full", "free some space, or set TILEWRIGHT_HOME to a directory that has it"),
    ("not a database", "move that file away, or set TILEWRIGHT_HOME to another directory"),
    ("malformed", "move that file away, or restore a copy of it"),
)


class Unusable(Exception):
    """A sound database that this Tilewright cannot use. The message: what it is; the fix."""


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """The seam: what SQLite, the file system or the codec says of the file becomes a `StorageError`."""
    try:
        yield
    except Unusable as error:
        raise StorageError(f"{path} {error}") from error.__cause__
    except OSError as error:
        raise StorageError(f"cannot use {path}: {error}; fix: {_ELSEWHERE}") from error
    except sqlite3.Error as error:
        said = str(error)
        fix = next((fix for word, fix in _FIXES if word in said), _ELSEWHERE)
        raise StorageError(f"cannot use {path}: {said}; fix: {fix}") from error


@contextmanager
def transaction(connection: sqlite3.Connection, kind: Literal["IMMEDIATE", "DEFERRED"]) -> Iterator[None]:
    """All of it or nothing, also when the block is interrupted."""
    try:
        connection.execute(f"BEGIN {kind}")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def connect(path: Path | str) -> sqlite3.Connection:
    """Open the file, and refuse what is not ours before anything of it is changed."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA foreign_keys = ON")
        if _is_empty(connection):
            _use_write_ahead_log(connection)
            with transaction(connection, "IMMEDIATE"):
                if _is_empty(connection):  # no other process was faster
                    for statement in _TABLES:
                        connection.execute(statement)
        _check_schema(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """SQLite does not wait for other processes while it changes the mode, so this does."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _check_schema(connection: sqlite3.Connection) -> None:
    named = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    if connection.execute(named, (_SCHEMA_TABLE,)).fetchone() is None:
        raise Unusable("is a database of another program; fix: set TILEWRIGHT_HOME to another directory")
    (version,) = connection.execute(f"SELECT max(version) FROM {_SCHEMA_TABLE}").fetchone()
    if version != SCHEMA:
        raise Unusable(
            f"was written by another version of Tilewright (schema {version}, this one has {SCHEMA}); "
            "fix: update Tilewright, or set TILEWRIGHT_HOME to another directory"
        )
