"""What bench/faults.py and tests/test_damage.py do to a store, a ledger or a config file: each damage has a name.

A third of the names is in faults_set_aside.txt. It was drawn by digest before anything was mended, and runs only at
the end.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

SET_ASIDE = Path(__file__).with_name("faults_set_aside.txt")

Cell = Callable[[Any, random.Random], Any]
Damage = Callable[[Path, random.Random], None]


def _json(change: Callable[[Any], Any]) -> Cell:
    """Changes the JSON in a cell. A cell without JSON becomes the text of what ``change`` makes of None."""

    def changed(value: Any, rng: random.Random) -> Any:
        try:
            data = json.loads(value)
        except (TypeError, ValueError):
            data = None
        return json.dumps(change(data))

    return changed


def _deepest(data: Any, put: Any, rng: random.Random) -> Any:
    """Replaces a drawn leaf of JSON data."""
    if isinstance(data, dict) and data:
        name = rng.choice(sorted(data))
        return {**data, name: _deepest(data[name], put, rng)}
    if isinstance(data, list) and data:
        at = rng.randrange(len(data))
        return [*data[:at], _deepest(data[at], put, rng), *data[at + 1 :]]
    return put


def _leaf(put: Any) -> Cell:
    def changed(value: Any, rng: random.Random) -> Any:
        return _json(lambda data: _deepest(data, put, rng))(value, rng)

    return changed


def _without(value: Any, rng: random.Random) -> Any:
    def less(data: Any) -> Any:
        if isinstance(data, dict) and data:
            gone = rng.choice(sorted(data))
            return {name: each for name, each in data.items() if name != gone}
        return data[:-1] if isinstance(data, list) else data

    return _json(less)(value, rng)


CELLS: dict[str, Cell] = {
    "not utf-8": lambda value, rng: (b"text", b'{"a": "\xff\xfe"}'),
    "deep json": lambda value, rng: "[" * 100_000,
    "deep closed json": lambda value, rng: "[" * 20_000 + "]" * 20_000,
    "cut json": lambda value, rng: str(value)[: rng.randrange(1, max(2, len(str(value))))],
    "lone surrogate": _leaf("\ud800"),
    "empty text": lambda value, rng: "",
    "blank text": lambda value, rng: " \n",
    "a number": lambda value, rng: rng.choice((0, -1, 7, 2**62, 1.5)),
    "bytes": lambda value, rng: (b"blob", bytes(range(256))),
    "null of json": lambda value, rng: "null",
    "a list of json": lambda value, rng: "[1, [2, {}]]",
    "an object of json": lambda value, rng: '{"x": {}}',
    "a text of json": lambda value, rng: '"text"',
    "infinity of json": _leaf(float("inf")),
    "not a number": _leaf(float("nan")),
    "huge number": _leaf(10**400),
    "a leaf null": _leaf(None),
    "a leaf of text": _leaf("text"),
    "a leaf of a list": _leaf([[]]),
    "negative leaf": _leaf(-1),
    "escape sequences": _leaf("\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"),
    "long text": _leaf("x" * 1_000_000),
    "an unknown field": _json(lambda data: {**data, "strange": 1} if isinstance(data, dict) else {"strange": 1}),
    "a missing field": _without,
}
"""Damages of one cell of a database: what replaces its value. A pair is a type of SQLite and bytes."""


def _bytes(change: Callable[[bytes, random.Random], bytes]) -> Damage:
    def damage(path: Path, rng: random.Random) -> None:
        path.write_bytes(change(path.read_bytes(), rng))

    return damage


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 8, 64))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _other(make: Callable[[Path], None]) -> Damage:
    def damage(path: Path, rng: random.Random) -> None:
        path.unlink()
        make(path)

    return damage


def _sql(*statements: str) -> Damage:
    def damage(path: Path, rng: random.Random) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            version = next((name for name in tables(connection) if name.endswith("schema")), "none")
            table = rng.choice([name for name in tables(connection) if name != version])
            for statement in statements:
                connection.execute(statement.format(version=version, table=table))

    return damage


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE songs (title TEXT)")


def _beside(suffix: str) -> Damage:
    return lambda path, rng: path.with_name(path.name + suffix).write_bytes(rng.randbytes(4096)) and None


FILES: dict[str, Damage] = {
    "empty file": _bytes(lambda data, rng: b""),
    "cut file": _bytes(lambda data, rng: data[: rng.randrange(1, len(data))]),
    "cut header": _bytes(lambda data, rng: data[: rng.randrange(1, 100)]),
    "zeros": _bytes(lambda data, rng: b"\0" * len(data)),
    "flipped bits": _bytes(_flipped),
    "random bytes": _bytes(lambda data, rng: rng.randbytes(len(data))),
    "text": _bytes(lambda data, rng: "not a database é\n".encode("latin-1") * 300),
    "a page of zeros": _bytes(lambda data, rng: data[:4096] + b"\0" * 4096 + data[8192:]),
    "random journal": _beside("-journal"),
    "random write-ahead log": _beside("-wal"),
    "a folder": _other(lambda path: path.mkdir()),
    "a dangling link": _other(lambda path: path.symlink_to("nowhere/at/all")),
    "a fifo": _other(lambda path: os.mkfifo(path)),
    "a foreign database": _other(_foreign),
    "a newer version": _sql("UPDATE {version} SET version = 99"),
    "no version": _sql("DELETE FROM {version}"),
    "a version of text": _sql("UPDATE {version} SET version = 'x'"),
    "a missing table": _sql("DROP TABLE {table}"),
    "an emptied table": _sql("DROP TABLE {table}", "CREATE TABLE songs (title TEXT)"),
}
"""Damages of a whole file."""


def tables(connection: sqlite3.Connection) -> list[str]:
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
    return [name for (name,) in connection.execute(names)]


def columns(path: Path) -> Iterator[tuple[str, str]]:
    """Yields table and column of each column with text that has a row."""
    with closing(sqlite3.connect(path)) as connection:
        for table in tables(connection):
            if connection.execute(f"SELECT 1 FROM {table}").fetchone() is not None:
                for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
                    if kind == "TEXT":
                        yield table, name


def damage_cell(path: Path, table: str, column: str, name: str, rng: random.Random) -> None:
    """Damages one drawn cell of a column."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f'DROP TRIGGER "{trigger}"')
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        found = connection.execute(f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL").fetchall()
        (value,) = rng.choice(found) if found else (None,)
        new = CELLS[name](value, rng)
        how = "CAST(? AS TEXT)" if isinstance(new, tuple) and new[0] == b"text" else "?"
        new = new[1] if isinstance(new, tuple) else new
        connection.execute(f"UPDATE OR IGNORE {table} SET {column} = {how} WHERE {column} IS ?", (new, value))


def set_aside() -> frozenset[str]:
    lines = SET_ASIDE.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def names(*, aside: bool) -> tuple[list[str], list[str]]:
    """Returns the names of the damages of cells and of files: those that are set aside, or the others."""
    kept = set_aside()
    return [name for name in CELLS if (name in kept) == aside], [name for name in FILES if (name in kept) == aside]
