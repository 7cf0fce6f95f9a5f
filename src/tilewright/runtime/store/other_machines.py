"""Merges the stores of other machines into the store of this one, without loss or doubles.

A stored result is known by its content (`content_of`), so a result that comes by several ways is stored once. Of the
results with the same key, one is launched:

1. the one that was measured here, by a search of this store's own programs;
2. else the earliest, of equal dates the one with the smallest digest. Rows of config files come last: they have no
   evidence.

The other ones are kept beside it, in the table ``others``. So the order in which stores are merged does not matter. To
race a result again, remove its key: the next run of the program searches here, and what it measures comes first.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from tilewright.errors import RequestError
from tilewright.ledger.codec import to_json
from tilewright.ledger.file import Unusable, as_text, fetch_all, parse, storable
from tilewright.runtime.key import digest
from tilewright.runtime.store.unchanged import refuse_changed
from tilewright.runtime.store.winners import (
    FROM,
    HAS_OTHERS,
    NAME,
    PUT_PATIENCE,
    StoreFile,
    Unreadable,
    Winner,
    Winners,
    put_winner,
    row_of,
    stored_winner,
)

_SQLITE = b"SQLite format 3\0"
_OTHERS = """CREATE TABLE IF NOT EXISTS others (key TEXT NOT NULL, content TEXT NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (key, content)) WITHOUT ROWID"""
"""Made by the first merge. It is no part of the schema's version, so that stores without it need no change."""

MergeOutcome: TypeAlias = Literal["added", "same", "replaced", "kept"]
"""What became of a result: it is launched from now on, it was there, it is launched in place of a later one of another
machine, or another one stays and is launched."""


@dataclass(frozen=True)
class MergedWinner:
    """The merge of one result. ``stored``: what is launched now."""

    row: Winner
    stored: Winner
    outcome: MergeOutcome


def store_at(path: Path) -> Path | None:
    """Returns the store's file at ``path``, a file or its folder; None if there is no store, such as a config file."""
    file = path / NAME if path.is_dir() else path
    if not file.is_file():  # a pipe, such as <(ssh host …), can be read only once
        return None
    with suppress(OSError), file.open("rb") as opened:
        return file if opened.read(len(_SQLITE)) == _SQLITE else None
    return None


def content_of(winner: Winner) -> str:
    """Returns the digest of a result. It is the same in all stores."""
    machine = {name: value for name, value in winner.machine.items() if name != FROM}
    return digest(to_json(replace(winner, machine=machine)))


class SharedWinners(Winners):
    """A store that also has results of other machines, those of the same keys among them."""

    def merge(self, winners: Sequence[Winner]) -> tuple[MergedWinner, ...]:
        """Stores all results, or none if that fails."""

        def merged(file: StoreFile) -> tuple[MergedWinner, ...]:
            with file._writing() as connection:
                connection.execute(_OTHERS)
                return tuple(_merged(connection, winner) for winner in winners)

        return self._asked(merged, (), PUT_PATIENCE)

    def others(self, key: str | None = None, on_unreadable: Callable[[Unreadable], None] | None = None) -> list[Winner]:
        """Returns the results that are stored and not launched, of one key or of all."""

        def stored(file: StoreFile) -> list[sqlite3.Row]:
            with file._reading() as connection:
                if connection.execute(HAS_OTHERS).fetchone() is None:
                    return []
                return fetch_all(connection, "SELECT key, record FROM others ORDER BY key, content")

        found, nothing = list[Winner](), list[sqlite3.Row]()
        for row in self._asked(stored, nothing):
            if key is None or row["key"] == key:
                try:
                    found.append(parse(Winner, row["record"]))
                except (Unusable, ValueError, RecursionError) as error:
                    problem = f"{self.path} has a result of another machine that cannot be read ({error})"
                    if on_unreadable is not None:
                        on_unreadable(Unreadable(str(row["key"]), "a kernel", problem))
        return found


def readable(store: SharedWinners, on_refused: Callable[[Unreadable], None]) -> Iterator[Winner]:
    """Yields all results of another machine's store that may be merged. ``on_refused`` is called with each other one:
    it cannot be read, or somebody changed it."""
    for winner in (*store.each(on_refused), *store.others(on_unreadable=on_refused)):
        try:
            refuse_changed(winner)
            yield winner
        except RequestError as error:
            problem = f"{store.path}: {winner.key[:12]} of {winner.kernel} is left out: {error}"
            on_refused(Unreadable(winner.key, winner.kernel, problem))


def _merged(connection: sqlite3.Connection, winner: Winner) -> MergedWinner:
    content, earlier = content_of(winner), stored_winner(connection, winner.key)
    host = winner.machine.get(FROM) or winner.machine.get("host") or "another machine"
    marked = replace(winner, machine={**winner.machine, FROM: str(host)})
    if earlier is None:
        return MergedWinner(winner, _launched(connection, marked), "added")
    if content_of(earlier) == content:
        return MergedWinner(winner, earlier, "same")
    if earlier.is_local or _order(earlier) < _order(winner):
        new = _keep(connection, marked)
        return MergedWinner(winner, earlier, "kept" if new else "same")
    _keep(connection, earlier)
    return MergedWinner(winner, _launched(connection, marked), "replaced")


def _order(winner: Winner) -> tuple[bool, str, str]:
    return winner.origin == "import", winner.created, content_of(winner)


def _launched(connection: sqlite3.Connection, winner: Winner) -> Winner:
    connection.execute("DELETE FROM others WHERE key = ? AND content = ?", (winner.key, content_of(winner)))
    _, stored = put_winner(connection, winner, row_of(winner), lambda new, earlier: True)
    return stored


def _keep(connection: sqlite3.Connection, winner: Winner) -> bool:
    """Keeps a result that is not launched. Returns whether it is new."""
    row = (storable(winner.key), content_of(winner), as_text(to_json(winner)))
    return connection.execute("INSERT OR IGNORE INTO others VALUES (?, ?, ?)", row).rowcount > 0
