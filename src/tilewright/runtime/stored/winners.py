"""The winners of searches, in one SQLite file of the user: found once, and launched by every later process.

    tuned.db in $TILEWRIGHT_TUNED, or else $XDG_CACHE_HOME/tilewright, or else ~/.cache/tilewright

* A row is content-addressed: its key is the digest of every part that may change the winner (`key.digest`).
  It is never changed, so the first writer wins and all processes, threads and ranks launch the same.
* It carries its evidence: what became of every configuration of the space, and the launches themselves
  as data, so that `tilewright tuned verify` can race them again.
* From the user's program nothing of this file is ever an exception: a store that is corrupt, newer, of
  another program, locked or out of reach is one warning a process (`TunedStoreWarning`), and then as if
  it were empty. The command line asks with ``strict`` and gets the `StorageError`.
* A rollback journal and no write-ahead log: it can be read in a folder that cannot be written, as
  deployments have it, and lies in home directories that are shared over a network.
* A connection a call: threads and forked processes may use one `Winners`. A `get` is one row by its
  primary key, asked once for a key and a process.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.codec import to_json
from tilewright.database import (
    BUSY_SECONDS,
    DatabaseFile,
    Schema,
    Unusable,
    as_text,
    insert,
    rebuilt,
    text_of,
    utc_now,
)
from tilewright.errors import StorageError
from tilewright.records import Value
from tilewright.runtime.stored.said_once import TunedStoreWarning, warn_once

__all__ = ["NAME", "VARIABLE", "TunedStoreWarning", "Winner", "Winners", "folder"]

VARIABLE = "TILEWRIGHT_TUNED"
NAME = "tuned.db"
HURRIED_SECONDS = 2.0
"""How long the user's program waits for another process that writes; a write takes milliseconds."""

TUNED = Schema(
    table="tilewright_tuned_schema",
    version=1,
    statements=(
        """CREATE TABLE winners (
            key TEXT PRIMARY KEY, kernel TEXT NOT NULL, parts TEXT NOT NULL, config TEXT, place INTEGER,
            label TEXT NOT NULL, shipped TEXT, runner_up TEXT, outcomes TEXT NOT NULL, launches TEXT,
            origin TEXT NOT NULL, machine TEXT NOT NULL, created TEXT NOT NULL) WITHOUT ROWID""",
        "CREATE INDEX winners_by_kernel ON winners (kernel)",
    ),
    variable=VARIABLE,
    journal="DELETE",
)
_JSON = frozenset(("parts", "config", "shipped", "runner_up", "outcomes", "launches", "machine"))


@dataclass(frozen=True)
class Winner:
    """What one search found, and from what."""

    key: str
    kernel: str
    parts: Mapping[str, Any]
    """What the key was made of, readable."""
    config: Mapping[str, Value] | None
    """The configuration, where it is a record of named fields."""
    index: int | None
    """Its place in the space."""
    label: str
    """How it is shown."""
    shipped: Mapping[str, Value] | None
    runner_up: Mapping[str, Value] | None
    outcomes: tuple[Mapping[str, Any], ...]
    """What became of each configuration: a `searching.Outcome` as JSON."""
    launches: Mapping[str, Any] | None
    """``winner``, ``runner_up``, ``shipped`` → a `described.DescribedLaunch` as JSON."""
    origin: str
    """``wrapper``, ``run`` or ``import``."""
    machine: Mapping[str, Any]
    created: str
    """ISO 8601 in UTC; where it is empty `Winners.put` writes the moment."""


def folder() -> Path:
    """Where the store and its claims lie. A `StorageError` where this user has no home directory."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache_home):  # the specification says to ignore a relative one
        return Path(cache_home) / "tilewright"
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise StorageError(f"there is no home directory to keep tuned kernels in; fix: set {VARIABLE}")
    return Path(home) / ".cache" / "tilewright"


class Winners:
    """The winners at ``path`` (default: ``tuned.db`` in `folder`).

    ``strict``: what is wrong with the store is a `StorageError`, as the command line wants it, and the
    wait for another writer is longer. Without it, one warning and an empty answer.
    """

    def __init__(self, path: Path | None = None, *, strict: bool = False):
        self._path = path
        self._strict = strict

    @property
    def path(self) -> Path:
        return (self._path or folder() / NAME).absolute()

    def get(self, key: str) -> Winner | None:
        try:
            with self._file() as file:
                return file.get(key)
        except StorageError as error:
            self._say(error)
            return None

    def put(self, winner: Winner, *, replace: bool = False) -> Winner:
        """Keep it, and return what stands afterwards: where its key is there, the earlier one.

        ``replace``: the new one stands. Where the store cannot be written, ``winner`` stands for this process.
        """
        try:
            with self._file() as file:
                return file.put(winner, replace)
        except StorageError as error:
            self._say(error)
            return winner

    def all(self, kernel: str | None = None) -> tuple[Winner, ...]:
        """Every winner, or those of one kernel; by kernel, then by date."""
        try:
            with self._file() as file:
                return file.all(kernel)
        except StorageError as error:
            self._say(error)
            return ()

    def remove(self, keys: Iterable[str]) -> int:
        """Forget these keys, all or none of them; how many were there."""
        try:
            with self._file() as file:
                return file.remove(frozenset(keys))
        except StorageError as error:
            self._say(error)
            return 0

    def _file(self) -> _File:
        return _File(self.path, BUSY_SECONDS if self._strict else HURRIED_SECONDS)

    def _say(self, error: StorageError) -> None:
        if self._strict:
            raise error
        warn_once(str(error), about=f"store {self._path}")


class _File(DatabaseFile):
    """The file, opened by the first call and closed by ``with``; every method may raise `StorageError`."""

    def __init__(self, path: Path, busy_seconds: float):
        super().__init__(path, replace(TUNED, busy_seconds=busy_seconds), utc_now, secrets.token_hex)

    def get(self, key: str) -> Winner | None:
        if not self._there():
            return None
        with self._reading() as connection:
            return _standing(connection, key)

    def put(self, winner: Winner, replacing: bool) -> Winner:
        row = _row(winner if winner.created else replace(winner, created=text_of(self._clock())))
        with self._writing() as connection:
            if replacing:
                connection.execute("DELETE FROM winners WHERE key = ?", (winner.key,))
            standing = _standing(connection, winner.key)
            if standing is not None:
                return standing
            insert(connection, "winners", row)
            return _winner(row)

    def all(self, kernel: str | None) -> tuple[Winner, ...]:
        chosen = "SELECT * FROM winners WHERE ? IS NULL OR kernel = ? ORDER BY kernel, created, key"
        with self._reading() as connection:
            return tuple(_winner(dict(row)) for row in connection.execute(chosen, (kernel, kernel)))

    def remove(self, keys: frozenset[str]) -> int:
        if not self._there():
            return 0
        with self._writing() as connection:
            forget = "DELETE FROM winners WHERE key = ?"
            return sum(connection.execute(forget, (key,)).rowcount for key in keys)

    def _there(self) -> bool:
        """False before the first search of all; a folder that may not be entered is an error."""
        with self._seam():
            try:
                return bool(os.stat(self.path))
            except FileNotFoundError:
                return False


def _standing(connection: sqlite3.Connection, key: str) -> Winner | None:
    row = connection.execute("SELECT * FROM winners WHERE key = ?", (key,)).fetchone()
    return None if row is None else _winner(dict(row))


def _row(winner: Winner) -> dict[str, Value]:
    try:
        data = to_json(winner)
    except ValueError as error:
        raise StorageError(f"cannot keep the winner of {winner.kernel}: {error}") from error
    data["place"] = data.pop("index")  # a word of SQL
    return {name: as_text(value) if name in _JSON else value for name, value in data.items()}


def _winner(row: dict[str, Value]) -> Winner:
    """Read as strictly as any record: a row that another hand changed is refused and not launched."""
    try:
        data = {name: _parsed(value) if name in _JSON else value for name, value in row.items()}
    except ValueError as error:
        raise Unusable(f"holds a row that is no JSON ({error}); fix: move that file away") from error
    data["index"] = data.pop("place")
    return rebuilt(Winner, data)


def _parsed(value: Value) -> Any:
    return json.loads(value) if isinstance(value, str) else value
