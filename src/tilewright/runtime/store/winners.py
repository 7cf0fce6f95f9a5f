"""The store: a SQLite file of the user with the winners of searches. Later processes launch them without a search.

    tuned.db in $TILEWRIGHT_TUNED, or else $XDG_CACHE_HOME/tilewright, or else ~/.cache/tilewright

* The key of a row is the digest of every part that may change the winner (`key.digest`). A search never changes a row
  that was measured here: the first writer wins, so all processes, threads and ranks launch the same configuration.
* A row has the outcome of every configuration, and the launches as data for `tilewright tuned verify`.
* In the user's program, no problem of this file raises an exception. A store may be corrupt, locked or out of reach, or
  be written by a newer version or by another program. It then causes one warning per process, and counts as empty.
* The file has a rollback journal and no write-ahead log. So it can be read in a read-only folder, and it may be in a
  home directory that is shared over a network.
* Each call opens a connection, so threads and forked processes may share a `Winners`.
* Many processes may write at the same time. A call waits as long as the others make progress (`_Turn`), so no winner is
  lost, and every later `get` returns what `put` returned.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from tilewright.errors import StorageError
from tilewright.ledger import file as ledger_file
from tilewright.ledger.codec import from_json, has_float, to_json
from tilewright.ledger.file import DatabaseFile, Schema, Unusable
from tilewright.records import Json, Value
from tilewright.runtime.store.warn_once import warn_once

VARIABLE = "TILEWRIGHT_TUNED"
NAME = "tuned.db"
HURRIED_SECONDS = 2.0
"""Seconds that the user's program waits for a file that is locked and does not change; a write takes milliseconds."""
PUT_PATIENCE = 5
"""How many times as long `Winners.put` waits: the search before it took longer, and would have to be repeated."""
QUEUED_SECONDS = 120.0
"""The longest wait while other processes write one after the other."""
ATTEMPT_SECONDS = 0.05
"""The longest wait inside SQLite. SQLite waits longer after each attempt, so others would always be quicker."""

MOST_CONFIGURATIONS = 2**31
FROM = "from"
"""The name in `Winner.machine` of the host of a winner of another machine's store."""

Asked = TypeVar("Asked")

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
HAS_OTHERS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'others'"
"""A query with a row if the store has results of other machines for the same keys (`other_machines`)."""
CHUNK = 500
"""Rows that are read at once."""
_ORDER = "ORDER BY kernel, created, key"
_PLACES = f"""
    SELECT key, kernel, json_extract(launch, '$.module'), json_extract(launch, '$.file'),
        json_extract(launch, '$.qualname'),
        CASE typeof(machine) WHEN 'text' THEN
            CASE WHEN json_valid(machine) THEN json_extract(machine, '$.module') END END
    FROM (SELECT *, CASE typeof(launches) WHEN 'text' THEN CASE WHEN json_valid(launches) THEN
        (SELECT CASE type WHEN 'object' THEN value END FROM json_each(launches) LIMIT 1) END END AS launch FROM winners)
    {_ORDER}"""
Place = tuple[Value, Value, Value, Value]
"""Module, file and qualified name of the kernel in the first stored launch, and the module of an imported winner."""
Replaces = Callable[["Winner", "Winner"], bool]
"""Returns whether a new winner (first argument) replaces an earlier winner of the same key (second argument)."""
_JSON = ("parts", "config", "shipped", "runner_up", "outcomes", "launches", "machine")


@dataclass(frozen=True)
class Winner:
    """The result of one search.

    parts: the readable parts of the key.
    config, shipped, runner_up: configurations; None if they have no named fields.
    index: the winner's position in the space. label: the winner as text.
    origin: ``wrapper``, ``run`` or ``import``.
    machine: GPU, toolkit, host and seconds of the search. For an imported winner: GPU, module and times. For one of
        another machine's store, also the host ``from`` (`other_machines`).
    outcomes: a `searching.TrialOutcome` as JSON for each configuration.
    launches: a `described.DescribedLaunch` as JSON for each of ``winner``, ``runner_up`` and ``shipped``.
    created: ISO 8601 in UTC; if empty, `Winners.put` writes the current time.
    """

    key: str
    kernel: str
    parts: Mapping[str, Json]
    config: Mapping[str, Value] | None
    index: int | None
    label: str
    shipped: Mapping[str, Value] | None
    origin: str
    machine: Mapping[str, Json]
    runner_up: Mapping[str, Value] | None = None
    outcomes: tuple[Mapping[str, Json], ...] = ()
    launches: Mapping[str, Json] | None = None
    created: str = ""

    @property
    def came_from(self) -> str:
        """The host of another machine where it was measured; empty for this one and for a config file."""
        return str(self.machine.get(FROM) or "")

    @property
    def is_local(self) -> bool:
        """Whether a search of this store's own programs measured it."""
        return not self.came_from and self.origin != "import"


@dataclass(frozen=True)
class Unreadable:
    """An entry of another version, or one that was changed by hand. ``problem``: one line, with the fix."""

    key: str
    kernel: str
    problem: str


def folder() -> Path:
    """Returns the folder of the store and its locks. Raises `StorageError` if there is no home directory."""
    named = ledger_file.folder_in(VARIABLE)
    if named is not None:
        return named.absolute()
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache_home):  # the specification says to ignore a relative path
        return Path(cache_home) / "tilewright"
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise StorageError(f"there is no home directory to keep tuned kernels in; fix: set {VARIABLE}")
    return Path(home) / ".cache" / "tilewright"


class Winners:
    """The winners at ``path`` (default: ``tuned.db`` in `folder`). A problem of the store causes one warning, and the
    store counts as empty. ``strict``: a problem raises `StorageError`, and the wait for another writer is longer.
    ``variable``: what selects another file, as in `Schema`."""

    def __init__(self, path: Path | None = None, *, strict: bool = False, variable: str = VARIABLE):
        self._path, self._strict, self._variable = path, strict, variable

    @property
    def path(self) -> Path:
        return (self._path or folder() / NAME).absolute()

    def get(self, key: str) -> Winner | None:
        def stored(file: StoreFile) -> Winner | None:
            if not file.there():
                return None
            with file._reading() as connection:
                return stored_winner(connection, key)

        return self._asked(stored, None)

    def put(self, winner: Winner) -> Winner:
        """Stores ``winner`` unless its key is there; what came from elsewhere is replaced by what is measured here.
        Returns the stored winner, or ``winner`` if the store fails."""
        [(_, stored)] = self.put_all([winner], lambda new, earlier: new.is_local and not earlier.is_local)
        return stored

    def put_all(
        self, winners: Sequence[Winner], replaces: Replaces = lambda new, earlier: False
    ) -> tuple[tuple[Winner | None, Winner], ...]:
        """Stores all winners, or none if that fails. A winner whose key is there is stored only if ``replaces`` allows
        it. Returns two winners for each: the earlier one with its key (or None), and the one that is stored now."""
        now = ledger_file.text_of(ledger_file.utc_now())

        def written(file: StoreFile) -> tuple[tuple[Winner | None, Winner], ...]:
            rows = [row_of(winner if winner.created else replace(winner, created=now)) for winner in winners]
            with file._writing() as connection:
                return tuple(
                    put_winner(connection, winner, row, replaces) for winner, row in zip(winners, rows, strict=True)
                )

        return self._asked(written, tuple((None, winner) for winner in winners), PUT_PATIENCE)

    def all(self, on_unreadable: Callable[[Unreadable], None] | None = None) -> tuple[Winner, ...]:
        """Returns what `each` yields."""
        return tuple(self.each(on_unreadable))

    def each(self, on_unreadable: Callable[[Unreadable], None] | None = None) -> Iterator[Winner]:
        """Yields every readable winner, by kernel, then by date. ``on_unreadable`` is called with each other entry. By
        default, such an entry counts as a problem of the store.

        Reads `CHUNK` rows at a time: a large store takes little memory, and is not locked for long.
        """
        nothing: list[sqlite3.Row] = []
        keys = self._asked(lambda file: _rows(file, f"SELECT typeof(key), hex(key) FROM winners {_ORDER}"), nothing)
        for start in range(0, len(keys), CHUNK):
            chunk = keys[start : start + CHUNK]
            marks = ", ".join("CAST(? AS TEXT)" if kind == "text" else "?" for kind, _ in chunk)
            query = f"SELECT * FROM winners WHERE key IN ({marks}) {_ORDER}"
            raw = [bytes.fromhex(key) for _, key in chunk]
            for row in self._asked(lambda file: _rows(file, query, raw), nothing):  # noqa: B023  (called at once)
                try:
                    yield _winner(dict(row))
                except Unusable as error:
                    entry = Unreadable(str(row["key"]), str(row["kernel"]), f"{self.path} {error}")
                    if on_unreadable is None:
                        self._report(StorageError(entry.problem))
                    else:
                        on_unreadable(entry)

    def places(self) -> tuple[tuple[str, str, Place], ...]:
        """Returns key, kernel and place of every entry, as `each` sorts them. Takes a tenth of the time of `each`."""
        nothing: list[sqlite3.Row] = []
        found = self._asked(lambda file: _rows(file, _PLACES), nothing)
        return tuple((str(row["key"]), str(row["kernel"]), tuple(row)[2:]) for row in found)

    def remove(self, keys: Iterable[str]) -> int:
        """Removes the winners with these keys, or none if that fails. Returns how many there were."""
        chosen = frozenset(map(ledger_file.storable, keys))

        def removed(file: StoreFile) -> int:
            if not file.there():
                return 0
            with file._writing() as connection:
                if connection.execute(HAS_OTHERS).fetchone():
                    connection.executemany("DELETE FROM others WHERE key = ?", ((key,) for key in chosen))
                return sum(connection.execute("DELETE FROM winners WHERE key = ?", (key,)).rowcount for key in chosen)

        return self._asked(removed, 0)

    def _asked(self, ask: Callable[[StoreFile], Asked], otherwise: Asked, patience: int = 1) -> Asked:
        """Returns what ``ask`` returns, or ``otherwise`` after a problem of the store. While the file is locked, asks
        again; an attempt that failed has changed nothing."""
        try:
            path = self.path
            turn = _Turn(path, ledger_file.BUSY_SECONDS if self._strict else HURRIED_SECONDS * patience)
            while True:
                try:
                    with StoreFile(path, turn.patience, self._variable) as file, _one_thread():
                        return ask(file)
                except StorageError as error:
                    if not (_is_locked(error) and turn.comes()):
                        raise
        except StorageError as error:
            self._report(error)
        return otherwise

    def _report(self, error: StorageError) -> None:
        if self._strict:
            raise error
        warn_once(str(error), about=f"store {self._path}")


class _Turn:
    """The wait for a locked file. ``patience``: seconds after which a file that nobody changes counts as stuck."""

    def __init__(self, path: Path, patience: float):
        self._path, self.patience = path, patience
        self._began = self._changed = time.monotonic()
        self._seen = self._state()

    def comes(self) -> bool:
        """Waits a little. Returns whether to try again. The wait is random, so that each waiting process has the same
        chance."""
        time.sleep(random.uniform(0.0, 0.02))
        now, state = time.monotonic(), self._state()
        if state != self._seen:
            self._changed, self._seen = now, state
        return now - self._changed < self.patience and now - self._began < max(QUEUED_SECONDS, self.patience)

    def _state(self) -> tuple[int, int]:
        try:
            status = os.stat(self._path)
        except OSError:
            return 0, 0
        return status.st_mtime_ns, status.st_size


_thread_asks = threading.Lock()
"""Held by the thread of this process that uses a store. Threads of one process wait here, which takes no processor
time; only processes wait for each other's locks on the file."""


@contextmanager
def _one_thread() -> Iterator[None]:
    _watch_forks()
    lock = _thread_asks
    if not lock.acquire(timeout=ATTEMPT_SECONDS):
        raise StorageError(
            "other threads of this process have been using the store for long"
        ) from sqlite3.OperationalError("locked by another thread")
    try:
        yield
    finally:
        lock.release()


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    """Makes a new lock in a forked child: the thread that held the old one is not in the child."""
    global _thread_asks
    _thread_asks = threading.Lock()


def _is_locked(error: StorageError) -> bool:
    return isinstance(error.__cause__, sqlite3.OperationalError) and "locked" in str(error.__cause__)


class StoreFile(DatabaseFile):
    """The file, opened by the first call and closed at the end of ``with``. Every method may raise `StorageError`."""

    def __init__(self, path: Path, patience: float, variable: str):
        super().__init__(path, replace(TUNED, busy_seconds=min(ATTEMPT_SECONDS, patience), variable=variable))
        self._patience = patience

    def there(self) -> bool:
        """Returns whether the file exists. Raises `StorageError` if its folder cannot be opened."""
        with self._storage():
            return self._exists()

    def _storage(self) -> AbstractContextManager[None]:
        return ledger_file.storage(self.path, self._schema.variable, self._patience)


def _rows(file: StoreFile, query: str, parameters: Sequence[bytes] = ()) -> list[sqlite3.Row]:
    with file._reading() as connection:
        return ledger_file.fetch_all(connection, query, parameters)


def stored_winner(connection: sqlite3.Connection, key: str) -> Winner | None:
    row = connection.execute("SELECT * FROM winners WHERE key = ?", (ledger_file.storable(key),)).fetchone()
    return None if row is None else _winner(dict(row))


def put_winner(
    connection: sqlite3.Connection, winner: Winner, row: Mapping[str, Value], replaces: Replaces
) -> tuple[Winner | None, Winner]:
    earlier = stored_winner(connection, winner.key)
    if earlier is not None and not replaces(winner, earlier):
        return earlier, earlier
    connection.execute("DELETE FROM winners WHERE key = ?", (ledger_file.storable(winner.key),))
    ledger_file.insert(connection, "winners", row)
    stored = stored_winner(connection, winner.key)
    assert stored is not None
    return earlier, stored


def row_of(winner: Winner) -> dict[str, Value]:
    as_text = ledger_file.as_text
    try:
        data = to_json(winner)
        data["place"] = place = data.pop("index")  # INDEX is a keyword of SQL
        if isinstance(place, int) and not 0 <= place < MOST_CONFIGURATIONS:
            raise ValueError(f"its index {place} is no index of a configuration")
        return {name: as_text(value) if isinstance(value, (dict, list)) else value for name, value in data.items()}
    except (ValueError, RecursionError) as error:
        raise StorageError(f"cannot keep the winner of {winner.kernel}: {error}") from error


def _winner(row: dict[str, Value]) -> Winner:
    """Decodes a row. Raises `Unusable` for a row that was changed by hand or written by another version."""
    try:
        texts = {name: value for name in _JSON if isinstance(value := row[name], str)}
        text = f"[{','.join(texts.values())}]"  # read in one call, which takes a third of the time
        data: dict[str, Json] = {**row, **dict(zip(texts, json.loads(text), strict=True))}
        data["index"] = data.pop("place")
        return from_json(Winner, data, defaults=True, finite=not has_float(text))
    except (ValueError, RecursionError, KeyError) as error:
        key = str(row["key"])[:12]
        raise Unusable(
            f"holds an entry of {row['kernel']} that this Tilewright cannot read, {key} ({error}); "
            f"fix: `tilewright tuned prune --key {key}`, or use the Tilewright that wrote it"
        ) from error
