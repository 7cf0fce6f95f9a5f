"""Exports winners from the store to a config file that a library ships, and imports such files into the store.

A winner of `tilewright run` has a key made of all candidates' arguments. Its row in the file has only the arguments
that all candidates share, because the caller passes these. A look-up can use such a row. An import leaves it out,
because the key cannot be computed from the row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from tilewright.errors import RequestError
from tilewright.records import Json
from tilewright.runtime.key import digest
from tilewright.runtime.store import config_file, evidence
from tilewright.runtime.store.config_file import ConfigData, ConfigFile, ConfigRow, MatchRule, Parts, canonical
from tilewright.runtime.store.merging import without_common
from tilewright.runtime.store.winners import Winner, Winners

WIDTH = 110
SEARCH, SEARCHED = "search", "candidates"
"""The parts of a key that only `tilewright run` writes."""
VARIES = "of the configuration"


def config_file_of(winners: Sequence[Winner]) -> ConfigData:
    """Returns the file for the winners of one kernel, given oldest first. Raises `RequestError` if no configuration has
    named fields, or if several modules have a kernel of this name."""
    kernel = winners[0].kernel if winners else "the kernel"
    modules = sorted({evidence.module(winner) for winner in winners} - {""})
    if len(modules) > 1:
        raise RequestError(
            f"{kernel} is the name of {len(modules)} kernels, in {', '.join(modules)}; export one at a time"
        )
    named = _latest(
        winner for winner in winners
        if winner.config is not None and not _of_bucket(winner.parts) and _is_json(winner)
    )  # fmt: skip
    if not named:
        why = "its configurations have no named fields, or numbers that are not finite; fix: make them mappings"
        raise RequestError(f"nothing to export for {kernel}: {why}")
    common, rows = without_common([(parts, _row(each, parts)) for each in named for parts in [_reduced(each.parts)]])
    return {
        "format": config_file.FORMAT, "version": config_file.VERSION, "kernel": kernel, "module": "".join(modules),
        "rule": MatchRule().to_json(), "common": common, "rows": rows,
    }  # fmt: skip


def _is_json(winner: Winner) -> bool:
    """Returns whether all numbers of a winner are finite, as JSON needs. A search stores no others."""
    try:
        json.dumps([dict(winner.parts), dict(winner.config or {}), dict(winner.shipped or {})], allow_nan=False)
    except ValueError:
        return False
    return True


def _latest(winners: Iterable[Winner]) -> list[Winner]:
    """Returns the last winner of each call, which has the latest source and toolkit."""
    left_out = (*config_file.SOURCES, *MatchRule().may_differ)
    latest = {}
    for winner in winners:
        latest[canonical({name: part for name, part in winner.parts.items() if name not in left_out})] = winner
    return list(latest.values())


def sources_in(file: ConfigData) -> int:
    """Returns the number of different sources of the kernel for which the rows were tuned. A look-up uses only the rows
    of one source."""
    return len({canonical([row["parts"].get(name) for name in config_file.SOURCES]) for row in file["rows"]})


def _row(winner: Winner, parts: dict[str, Json]) -> ConfigRow:
    return {
        "parts": parts,
        "config": dict(winner.config or {}), "us": evidence.winner_us(winner),
        "shipped_us": evidence.shipped_us(winner), "shipped": None if winner.shipped is None else dict(winner.shipped),
        "index": winner.index, "label": winner.label, "created": winner.created,
    }  # fmt: skip


def _of_bucket(part: Json | Parts) -> bool:
    """Returns whether parts describe a bucket. Winners of buckets are not exported.

    The tuned call in the bucket has its own winner, which is exported.
    """
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


def as_json(file: ConfigData) -> str:
    """Returns the file as readable ASCII JSON, because stdout may not allow other characters."""
    return _shown(file, 0, partial(json.dumps, allow_nan=False)) + "\n"


def as_python(file: ConfigData) -> str:
    """Returns the text of a module that has the file as ``TABLE`` and imports nothing."""
    rule, name = "\n".join(f"    {line}" for line in file["rule"]["text"]), config_file.NAME_IN_PYTHON
    # Any other name could end the docstring, and the rest of it would be executed.
    kernel = file["kernel"] if re.fullmatch(r"[\w.<>]+", file["kernel"]) else "a kernel"
    return (
        f'"""Tuned configurations of {kernel}, written by `tilewright tuned export --python`.\n\n'
        f"A look-up is ``tilewright.runtime.store.config_file.load({name}).find(parts)``:\n\n{rule}\n"
        f'"""\n\n{name} = {_shown(file, 0, ascii)}\n'
    )


def _shown(value: object, indent: int, written: Callable[[object], str]) -> str:
    line = written(value)
    if not isinstance(value, (dict, list)) or not value or len(line) + indent + 2 <= WIDTH:
        return line
    inner, (opening, closing) = indent + 2, "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        items = [f"{written(name)}: {_shown(item, inner, written)}" for name, item in value.items()]
    else:
        items = [_shown(item, inner, written) for item in value]
    lines = ",\n".join(" " * inner + item for item in items)
    return f"{opening}\n{lines}\n{' ' * indent}{closing}"


ImportOutcome: TypeAlias = Literal["added", "same", "replaced", "kept"]
"""``kept``: the store has a different configuration, and the row was left out."""


@dataclass(frozen=True)
class Imported:
    """The import of one row of a file. ``stored``: the winner that is in the store now."""

    file: str
    row: Winner
    stored: Winner
    outcome: ImportOutcome


def import_config_files(files: Iterable[ConfigFile], store: Winners, *, replace: bool = False) -> tuple[Imported, ...]:
    """Puts all rows into the store, or none if that fails. Without ``replace``, the store keeps a winner that it has.
    A winner that was measured here always stays. Rows of `tilewright run` are left out (`for_reading_only`)."""

    def replaces(new: Winner, earlier: Winner) -> bool:
        return replace and new.config != earlier.config and not earlier.is_local

    rows = [(file.name, row) for file in files for row in _winners(file)]
    done = store.put_all([row for _, row in rows], replaces)
    return tuple(
        Imported(name, row, stored, _outcome(row, earlier, stored))
        for (name, row), (earlier, stored) in zip(rows, done, strict=True)
    )


def for_reading_only(file: ConfigFile) -> int:
    """Returns how many rows are from `tilewright run`, and so can be looked up but not imported."""
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
            origin="import",
            machine={
                "board": parts.get("board"), "module": file.module, "us": row.get("us"),
                "shipped_us": row.get("shipped_us"),
            },
        )  # fmt: skip
