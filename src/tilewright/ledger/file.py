"""SQLite files of Tilewright: connections, transactions, errors, and records in columns.

The ledger (``ledger.db``) and the store of tuned kernels (``tuned.db``) each define a `Schema` and derive from
`DatabaseFile`. `storage` turns errors of SQLite and the file system into `StorageError`. A file of another program or
of a newer Tilewright is refused before it is changed. A file of an older Tilewright is updated.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, TypeVar

from tilewright.errors import StorageError, in_one_line
from tilewright.ledger.codec import Encodable, from_json, to_json
from tilewright.records import Json, Value

Decoded = TypeVar("Decoded")
Stored = TypeVar("Stored")
Opened = TypeVar("Opened", bound="DatabaseFile")

BUSY_SECONDS = 30.0
"""Seconds to wait while another process writes."""


@dataclass(frozen=True)
class Schema:
    """The tables of one kind of file. A new field with a default in a record does not need a new version."""

    table: str
    """The table that holds the version. Its name identifies the kind of file."""
    version: int
    statements: tuple[str, ...]
    """The statements that create the tables."""
    variable: str = "TILEWRIGHT_HOME"
    """The environment variable, or else the option or command, that selects another file. Errors suggest it."""
    journal: Literal["WAL", "DELETE"] = "WAL"
    """The journal mode of SQLite. With DELETE, the file can be read in a read-only folder and over a network."""
    busy_seconds: float = BUSY_SECONDS
    migrations: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Maps a version to the statements that update a file from this version to the next."""
    earlier: Mapping[str, str] = field(default_factory=dict)
    """Maps a table that only an earlier kind of file has to the error for such a file."""

    @property
    def elsewhere(self) -> str:
        """The fix that an error suggests."""
        if not self.variable.isupper():
            return OTHER_FILE.format(variable=self.variable)
        return f"set {self.variable} to another directory"


OTHER_FILE = "name another file with {variable}"
_FIXES = (
    ("Not a directory", "set {variable} to a folder; that is a file"),
    ("File exists", "set {variable} to a folder; that is a file"),
    ("locked", "another process has been writing for {seconds:.0f} s: wait for it, or end it"),
    ("full", "free some space, or set {variable} to a directory that has it"),
    ("not a database", "move that file away, or set {variable} to another directory"),
    ("malformed", "move that file away, or restore a copy of it"),
    ("it is a folder", "move it away, or set {variable} to another directory"),
    ("no such", "move that file away, or set {variable} to another directory"),  # table, column
)


DAMAGED = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError, ZeroDivisionError,
)  # fmt: skip
"""What decoding or showing a row raises if its value is not what Tilewright wrote."""


class Unusable(Exception):
    """This Tilewright cannot use the database. The message gives the reason and the fix."""


@contextmanager
def storage(path: Path, variable: str = "TILEWRIGHT_HOME", busy_seconds: float = BUSY_SECONDS) -> Iterator[None]:
    """Turns errors of SQLite, the file system and the codec into a `StorageError` about ``path``."""
    try:
        yield
    except Unusable as error:
        raise StorageError(f"{path} {error}") from error.__cause__
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        problem = "it is a folder" if isinstance(error, sqlite3.Error) and os.path.isdir(path) else str(error)
        if isinstance(error, UnicodeDecodeError):  # SQLite's own message quotes a damaged schema
            problem = "its schema is malformed"
        fix = next((fix for word, fix in _FIXES if word in problem), "set {variable} to a directory that you can write")
        if not variable.isupper():
            fix = re.sub(r"set \{variable\} to .*", OTHER_FILE, fix)
        fix = fix.format(variable=variable, seconds=busy_seconds)
        raise StorageError(f"cannot use {path}: {problem}; fix: {fix}") from error


@contextmanager
def undamaged(what: str) -> Iterator[None]:
    """Turns the errors of `DAMAGED` inside the block into `Unusable`. ``what``: what the block reads or shows."""
    try:
        yield
    except DAMAGED as error:
        raise Unusable(
            f"holds {what} that cannot be read ({in_one_line(error)}): the file was damaged, or changed by another "
            "program; fix: restore a copy of it, or move it away"
        ) from error


class Rows:
    """Decodes rows one by one, and leaves out damaged ones. ``damaged`` describes each of these."""

    def __init__(self) -> None:
        self.damaged: list[str] = []

    def read(
        self, rows: Iterable[Stored], make: Callable[[Stored], Decoded], named: Callable[[Stored], str]
    ) -> Iterator[Decoded]:
        """Yields what ``make`` makes of each row. ``named``: what a row is, for the user."""
        for row in rows:
            try:
                yield make(row)
            except (Unusable, *DAMAGED) as error:
                self.damaged.append(f"{named(row)} ({in_one_line(error.__cause__ or error)})")


class WholeRows(Rows):
    """Decodes rows for a reader that needs all of them: the first damaged one is an error."""

    def read(
        self, rows: Iterable[Stored], make: Callable[[Stored], Decoded], named: Callable[[Stored], str]
    ) -> Iterator[Decoded]:
        return map(make, rows)


@contextmanager
def transaction(connection: sqlite3.Connection, kind: Literal["IMMEDIATE", "DEFERRED"]) -> Iterator[None]:
    """Commits the changes of the block. If the block fails or is interrupted, undoes all its changes."""
    try:
        connection.execute(f"BEGIN {kind}")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def connect(path: Path | str, schema: Schema) -> sqlite3.Connection:
    """Opens the file, and creates the tables in an empty one. Refuses a file of another program."""
    connection = sqlite3.connect(path, timeout=schema.busy_seconds, isolation_level=None)
    connection.text_factory = _text
    try:
        connection.row_factory = _row
        connection.execute("PRAGMA foreign_keys = ON")
        if _is_empty(connection):
            if schema.journal == "WAL":
                _use_write_ahead_log(connection)
            with transaction(connection, "IMMEDIATE"):
                if _is_empty(connection):  # no other process has created them meanwhile
                    for statement in schema.statements:
                        connection.execute(statement)
                    connection.execute(f"CREATE TABLE {schema.table} (version INTEGER NOT NULL)")
                    connection.execute(f"INSERT INTO {schema.table} VALUES ({schema.version})")
        _check_schema(connection, schema)
    except BaseException:
        connection.close()
        raise
    return connection


def _row(cursor: sqlite3.Cursor, values: tuple[Value | bytes, ...]) -> sqlite3.Row:
    """Returns a row. No column is of bytes, so bytes come from another program, and are read as text."""
    if bytes in map(type, values):
        values = tuple(_text(each) if isinstance(each, bytes) else each for each in values)
    return sqlite3.Row(cursor, values)


def _text(raw: bytes) -> str:
    """Decodes text of a row. Without this, one row that is not UTF-8 makes all rows unreadable."""
    return raw.decode("utf-8", "backslashreplace")


def fetch_all(connection: sqlite3.Connection, query: str, parameters: Sequence[bytes] = ()) -> list[sqlite3.Row]:
    """Returns all rows of a query. SQLite decodes text four times as fast as `_text`, so it tries first."""
    try:
        connection.text_factory = str
        return connection.execute(query, parameters).fetchall()
    except sqlite3.OperationalError:  # text that is not UTF-8
        connection.text_factory = _text
        return connection.execute(query, parameters).fetchall()
    finally:
        connection.text_factory = _text


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switches to the write-ahead log. SQLite does not wait for other processes here, so this function waits."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _check_schema(connection: sqlite3.Connection, schema: Schema) -> None:
    kinds: dict[str, str] = dict(connection.execute("SELECT name, type FROM sqlite_master").fetchall())
    if view := next((name for name, kind in kinds.items() if kind == "view"), None):  # a view may never end
        raise Unusable(f"has a view '{view}', so somebody changed it; fix: {schema.elsewhere}")
    tables = {name for name, kind in kinds.items() if kind == "table"}
    if schema.table not in tables:
        problem = next((text for table, text in schema.earlier.items() if table in tables), None)
        raise Unusable(problem or f"is a database of another program; fix: {schema.elsewhere}")
    with undamaged("a version"):
        version = _version(connection, schema)
    if version in schema.migrations:
        with transaction(connection, "IMMEDIATE"):
            while (version := _version(connection, schema)) in schema.migrations:  # checked again under the lock
                for statement in schema.migrations[version]:
                    connection.execute(statement)
                connection.execute(f"INSERT INTO {schema.table} VALUES ({version + 1})")
    if version != schema.version:
        raise Unusable(
            f"was written by another version of Tilewright (schema {version}, this one has {schema.version}); "
            f"fix: update Tilewright, or {schema.elsewhere}"
        )


def _version(connection: sqlite3.Connection, schema: Schema) -> int:
    return int(connection.execute(f"SELECT max(version) FROM {schema.table}").fetchone()[0])


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def text_of(moment: datetime) -> str:
    """Returns the time as ISO 8601 text, which sorts by time."""
    return moment.isoformat(timespec="microseconds")


class DatabaseFile:
    """The file at ``path``, for one thread only. The first use opens the file.

    `close`, or the end of the ``with`` block, closes the file.
    """

    def __init__(self, path: Path, schema: Schema):
        self.path = path.absolute()
        self._schema = schema
        self._connection: sqlite3.Connection | None = None

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def is_there(self) -> bool:
        """Returns whether the file is in its place. If its folder was removed, SQLite may still write to it."""
        return os.path.exists(self.path)

    def close(self) -> None:
        """Closes the file. The next call opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._storage():
            if self._connection is None:
                self._make_folder()
            with transaction(connection := self._opened(), "IMMEDIATE"):
                yield connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Yields a connection with one consistent view of the file. A missing file counts as empty; none is created."""
        with self._storage():
            exists = self._connection is not None or self._exists()
            opened = nullcontext(self._opened()) if exists else closing(connect(":memory:", self._schema))
            with opened as connection, transaction(connection, "DEFERRED"), undamaged("a row"):
                yield connection

    def _exists(self) -> bool:
        """Returns whether the file exists. Unlike `Path.exists`, raises OSError if its folder cannot be entered."""
        try:
            return bool(os.stat(self.path))
        except FileNotFoundError:
            return False

    def _storage(self) -> AbstractContextManager[None]:
        return storage(self.path, self._schema.variable, self._schema.busy_seconds)

    def _make_folder(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self.path, self._schema)
        return self._connection


# Rows


def insert(connection: sqlite3.Connection, table: str, row: Mapping[str, Value]) -> int | None:
    """Inserts a row, and returns its number. ``row`` maps columns to values."""
    marks = ", ".join("?" * len(row))
    values = [storable(each) if isinstance(each, str) else each for each in row.values()]
    return connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", values).lastrowid


def storable(text: str) -> str:
    """Returns text as a row stores it. SQLite refuses lone surrogates, so they are stored as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def number(value: float | None) -> float | None:
    """Converts a number (also of NumPy) to a Python float. SQLite turns NaN into NULL."""
    return None if value is None else float(value)


def dump(value: Encodable) -> str | None:
    """Returns the record as JSON text; None (NULL) for None."""
    return as_text(to_json(value))


def as_text(data: Json) -> str | None:
    """Returns JSON data as text; None (NULL) for None."""
    return None if data is None else json.dumps(data, allow_nan=False, separators=(",", ":"))


def parse(kind: type[Decoded], text: str) -> Decoded:
    """Reads a record from JSON text. Missing fields get their defaults. Raises `Unusable` if the data does not fit."""
    return rebuilt(kind, json.loads(text))


def rebuilt(kind: type[Decoded], data: Json) -> Decoded:
    """Reads a record from JSON data. Missing fields get their defaults. Raises `Unusable` if the data does not fit."""
    try:
        return from_json(kind, data, defaults=True)
    except ValueError as error:
        raise Unusable(
            f"holds a result that this Tilewright cannot read ({error}); "
            "fix: use the Tilewright that wrote it, or move the file away"
        ) from error


def maybe(kind: type[Decoded], text: str | None) -> Decoded | None:
    """Like `parse`, but returns None for NULL."""
    return None if text is None else parse(kind, text)


# Folders


def home() -> Path:
    """Returns ``$TILEWRIGHT_HOME``, or ``.tilewright/`` in the current folder."""
    return folder_in("TILEWRIGHT_HOME") or Path(".tilewright")


def folder_in(variable: str) -> Path | None:
    """Returns the folder that ``variable`` names; None if it is not set. Raises `StorageError` if ``~`` cannot be
    resolved."""
    value = os.environ.get(variable)
    try:
        return Path(value).expanduser() if value else None
    except RuntimeError:  # no such user, or a user without a home directory
        raise StorageError(f"cannot tell which folder {variable}={value} is; fix: give its whole path") from None


def make_private(folder: Path) -> None:
    """Makes the folder. In a git repository, the new folder gets a .gitignore file, so that git ignores its
    contents."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder / ".gitignore"
    ours = new or folder.name == ".tilewright"
    if ours and not ignore.exists() and any((parent / ".git").exists() for parent in folder.parents):
        ignore.write_text("*\n")


def key_of(parts: Mapping[str, Encodable]) -> str:
    """Returns the SHA-256 (hex) of ``parts`` in any order. A run with an equal key can be resumed."""
    text = json.dumps(to_json(parts), allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
