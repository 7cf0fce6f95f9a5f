"""From the store to a file that a library ships (`config_file`), and from such a file into the store.

What `tilewright run` stored is keyed by the work of every candidate. Its rows get what all candidates have in
common instead, which is what the caller decides: arrays, and the arguments that no configuration changes. They
can be read and looked up, but not be imported: their key cannot be made from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.errors import RequestError
from tilewright.runtime.key import digest
from tilewright.runtime.store import evidence
from tilewright.runtime.store.config_file import FORMAT, NAME_IN_PYTHON, SOURCES, VERSION, ConfigFile, MatchRule
from tilewright.runtime.store.winners import Winner, Winners

WIDTH = 110
SEARCH, SEARCHED = "search", "candidates"
"""The parts that only `tilewright run` writes."""
VARIES = "of the configuration"


def config_file_of(winners: Sequence[Winner]) -> dict[str, Any]:
    """The file of winners of one kernel, oldest first. Raises `RequestError` where none has named fields, and for
    kernels of one name in several modules."""
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
    common = _common(parts)
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
    latest: dict[str, Winner] = {}
    for one in winners:
        call = {name: value for name, value in one.parts.items() if name not in (*SOURCES, *MatchRule().may_differ)}
        latest[json.dumps(call, sort_keys=True)] = one
    return list(latest.values())


def sources_in(file: Mapping[str, Any]) -> int:
    """For how many sources its rows were tuned; a look-up uses those of its own source alone."""
    return len({json.dumps([row["parts"].get(name) for name in SOURCES]) for row in file["rows"]})


def _row(winner: Winner, parts: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "parts": {name: value for name, value in parts.items() if name not in common},
        "config": dict(winner.config or {}),
        "us": evidence.winner_us(winner),
        "shipped_us": evidence.shipped_us(winner),
        "shipped": winner.shipped,
        "index": winner.index,
        "label": winner.label,
        "created": winner.created,
    }


def _common(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is equal in all rows, but for the arrays: a row without its shapes says nothing."""
    return {
        name: value
        for name, value in parts[0].items()
        if name != "arrays" and all(name in one and _same(one[name], value) for one in parts)
    }


def _of_bucket(value: Any) -> bool:
    """Whether the key is that of a bucket of shapes: the exact call that found its winner has a row of its own."""
    if isinstance(value, Mapping):
        return "up_to" in value or any(map(_of_bucket, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_of_bucket, value))


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _reduced(parts: Mapping[str, Any]) -> dict[str, Any]:
    if SEARCHED not in parts:
        return dict(parts)
    arguments = [one["arguments"] for one in parts[SEARCHED] if "arguments" in one]
    kept = {name: value for name, value in parts.items() if name != SEARCHED}
    return kept | {"arguments": [_agreed(values) for values in zip(*arguments, strict=False)]}


def _agreed(values: Sequence[Any]) -> Any:
    return values[0] if all(_same(one, values[0]) for one in values) else VARIES


# As text


def as_json(file: Mapping[str, Any]) -> str:
    """Readable: what fits into a line stands in one line. In ASCII, as the stdout that it goes to may need."""
    return _shown(file, 0, _in_json) + "\n"


def as_python(file: Mapping[str, Any]) -> str:
    """A module that holds the file as ``TABLE`` and imports nothing."""
    rule = "\n".join(f"    {line}" for line in file["rule"]["text"])
    return (
        f'"""Tuned configurations of {file["kernel"]}, written by `tilewright tuned export --python`.\n\n'
        f"A look-up is ``tilewright.runtime.store.config_file.load({NAME_IN_PYTHON}).find(parts)``:\n\n{rule}\n"
        f'"""\n\n{NAME_IN_PYTHON} = {_shown(file, 0, ascii)}\n'
    )


def _in_json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _shown(value: Any, indent: int, written: Callable[[Any], str]) -> str:
    line = written(value)
    if not isinstance(value, (dict, list)) or not value or len(line) + indent + 2 <= WIDTH:
        return line
    inner = indent + 2
    if isinstance(value, dict):
        items = [f"{written(name)}: {_shown(one, inner, written)}" for name, one in value.items()]
    else:
        items = [_shown(one, inner, written) for one in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    lines = ",\n".join(" " * inner + item for item in items)
    return f"{opening}\n{lines}\n{' ' * indent}{closing}"


# Into the store


ImportOutcome = Literal["added", "same", "replaced", "kept"]
"""``kept``: another configuration stands, and the row was left out."""


@dataclass(frozen=True)
class Imported:
    """What became of one row of a file."""

    file: str
    row: Winner
    standing: Winner
    """What is in the store now."""
    outcome: ImportOutcome


def import_config_files(files: Iterable[ConfigFile], store: Winners, *, replace: bool = False) -> tuple[Imported, ...]:
    """Puts all rows into the store or none, with origin ``import``; what stands is kept unless ``replace``.

    Rows of `tilewright run` are left out (`for_reading_only`).
    """
    rows = [(file.name, row) for file in files for row in _winners(file)]
    done = store.put_all([row for _, row in rows], lambda new, earlier: replace and new.config != earlier.config)
    return tuple(
        Imported(name, row, standing, _outcome(row, earlier, standing))
        for (name, row), (earlier, standing) in zip(rows, done, strict=True)
    )


def for_reading_only(file: ConfigFile) -> int:
    """How many rows `tilewright run` found."""
    return sum(SEARCH in parts for parts in file.parts)


def _outcome(row: Winner, earlier: Winner | None, standing: Winner) -> ImportOutcome:
    if earlier is None:
        return "added"
    if earlier.config == row.config:
        return "same"
    return "replaced" if standing.config == row.config else "kept"


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
