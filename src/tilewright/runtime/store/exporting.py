"""From the store to a config file that a library ships, and from such a file into the store.

The key of a winner of `tilewright run` is made of all candidates' arguments. Its row has only those arguments that
all candidates share, which are those that the caller decides. Such rows can be read and looked up, but not imported:
their key cannot be made from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from tilewright.errors import RequestError
from tilewright.records import Json
from tilewright.runtime.key import digest
from tilewright.runtime.store import evidence
from tilewright.runtime.store.config_file import (
    FORMAT,
    NAME_IN_PYTHON,
    SOURCES,
    VERSION,
    ConfigData,
    ConfigFile,
    ConfigRow,
    MatchRule,
    Parts,
    canonical,
)
from tilewright.runtime.store.winners import Winner, Winners

WIDTH = 110
SEARCH, SEARCHED = "search", "candidates"
"""The parts that only `tilewright run` writes."""
VARIES = "of the configuration"


def config_file_of(winners: Sequence[Winner]) -> ConfigData:
    """The file for winners of one kernel, oldest first. Raises `RequestError` if no configuration has named fields,
    and for kernels of one name in several modules."""
    modules = sorted({evidence.module(one) for one in winners} - {""})
    if len(modules) > 1:
        raise RequestError(
            f"{winners[0].kernel} is the name of {len(modules)} kernels, in {', '.join(modules)}; export one at a time"
        )
    named = _latest(one for one in winners if one.config is not None and not _of_bucket(one.parts))
    if not named:
        kernel = winners[0].kernel if winners else "the kernel"
        raise RequestError(
            f"nothing to export for {kernel}: its configurations have no named fields; "
            "fix: make them mappings or dataclasses"
        )
    parts = [_reduced(one.parts) for one in named]
    # The parts that are equal in all rows. Arrays stay in the rows, so that each row shows its shapes.
    common = {
        name: part
        for name, part in parts[0].items()
        if name != "arrays" and all(name in other and canonical(other[name]) == canonical(part) for other in parts)
    }
    rows = [_row(winner, one, common) for winner, one in zip(named, parts, strict=True)]
    return {
        "format": FORMAT,
        "version": VERSION,
        "kernel": named[0].kernel,
        "module": "".join(modules),
        "rule": MatchRule().to_json(),
        "common": common,
        "rows": rows,
    }


def _latest(winners: Iterable[Winner]) -> list[Winner]:
    """Of the winners of one call, the one for the latest source and toolkit; ``winners`` are oldest first."""
    left_out = (*SOURCES, *MatchRule().may_differ)
    latest = {
        canonical({name: part for name, part in one.parts.items() if name not in left_out}): one for one in winners
    }
    return list(latest.values())


def sources_in(file: ConfigData) -> int:
    """For how many sources its rows were tuned; a look-up uses only those of its own source."""
    return len({canonical([row["parts"].get(name) for name in SOURCES]) for row in file["rows"]})


def _row(winner: Winner, parts: Parts, common: Parts) -> ConfigRow:
    return {
        "parts": {name: value for name, value in parts.items() if name not in common},
        "config": dict(winner.config or {}),
        "us": evidence.winner_us(winner),
        "shipped_us": evidence.shipped_us(winner),
        "shipped": None if winner.shipped is None else dict(winner.shipped),
        "index": winner.index,
        "label": winner.label,
        "created": winner.created,
    }


def _of_bucket(part: Json | Parts) -> bool:
    """Whether the key is that of a bucket. The exact call whose search found the winner has a row of its own."""
    if isinstance(part, Mapping):
        return "up_to" in part or any(map(_of_bucket, part.values()))
    return isinstance(part, (list, tuple)) and any(map(_of_bucket, part))


def _reduced(parts: Parts) -> dict[str, Json]:
    candidates = parts.get(SEARCHED)
    if not isinstance(candidates, list):
        return dict(parts)
    given = (candidate.get("arguments") for candidate in candidates if isinstance(candidate, dict))
    columns = zip(*(arguments for arguments in given if isinstance(arguments, list)), strict=False)
    agreed: list[Json] = [values[0] if len(set(map(canonical, values))) == 1 else VARIES for values in columns]
    return {name: part for name, part in parts.items() if name != SEARCHED} | {"arguments": agreed}


# As text


def as_json(file: ConfigData) -> str:
    """Readable: a value that fits into a line is in one line. In ASCII, because stdout may need that."""
    return _shown(file, 0, partial(json.dumps, allow_nan=False)) + "\n"


def as_python(file: ConfigData) -> str:
    """A module that holds the file as ``TABLE`` and imports nothing."""
    rule = "\n".join(f"    {line}" for line in file["rule"]["text"])
    return (
        f'"""Tuned configurations of {file["kernel"]}, written by `tilewright tuned export --python`.\n\n'
        f"A look-up is ``tilewright.runtime.store.config_file.load({NAME_IN_PYTHON}).find(parts)``:\n\n{rule}\n"
        f'"""\n\n{NAME_IN_PYTHON} = {_shown(file, 0, ascii)}\n'
    )


def _shown(value: object, indent: int, written: Callable[[object], str]) -> str:
    line = written(value)
    if not isinstance(value, (dict, list)) or not value or len(line) + indent + 2 <= WIDTH:
        return line
    inner = indent + 2
    if isinstance(value, dict):
        items = [f"{written(name)}: {_shown(item, inner, written)}" for name, item in value.items()]
    else:
        items = [_shown(item, inner, written) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    lines = ",\n".join(" " * inner + item for item in items)
    return f"{opening}\n{lines}\n{' ' * indent}{closing}"


# Into the store


ImportOutcome: TypeAlias = Literal["added", "same", "replaced", "kept"]
"""``kept``: the store has another configuration, and the row was left out."""


@dataclass(frozen=True)
class Imported:
    """The outcome of one row of a file."""

    file: str
    row: Winner
    stored: Winner
    """What is in the store now."""
    outcome: ImportOutcome


def import_config_files(files: Iterable[ConfigFile], store: Winners, *, replace: bool = False) -> tuple[Imported, ...]:
    """Puts all rows into the store or none, with origin ``import``. Without ``replace`` the store keeps its winners.

    Rows of `tilewright run` are left out (`for_reading_only`).
    """
    rows = [(file.name, row) for file in files for row in _winners(file)]
    done = store.put_all([row for _, row in rows], lambda new, earlier: replace and new.config != earlier.config)
    return tuple(
        Imported(name, row, stored, _outcome(row, earlier, stored))
        for (name, row), (earlier, stored) in zip(rows, done, strict=True)
    )


def for_reading_only(file: ConfigFile) -> int:
    """How many rows are of `tilewright run`."""
    return sum(SEARCH in parts for parts in file.parts)


def _outcome(row: Winner, earlier: Winner | None, stored: Winner) -> ImportOutcome:
    if earlier is None:
        return "added"
    if earlier.config == row.config:
        return "same"
    return "replaced" if stored.config == row.config else "kept"


def _winners(file: ConfigFile) -> Iterable[Winner]:
    for row, parts in zip(file.rows, file.parts, strict=True):
        if SEARCH in parts:
            continue
        yield Winner(
            key=digest(parts),
            kernel=file.kernel,
            parts=parts,
            config=row["config"],
            index=row.get("index"),
            label=str(row.get("label", "")),
            shipped=row.get("shipped"),
            runner_up=None,
            outcomes=(),
            launches=None,
            origin="import",
            machine={
                "board": parts.get("board"), "module": file.module, "us": row.get("us"),
                "shipped_us": row.get("shipped_us"),
            },
            created="",
        )  # fmt: skip
