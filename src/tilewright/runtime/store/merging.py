"""Merges a new config file into the one that a repository ships already, so that each GPU's rows stay.

A row of the earlier file is replaced only by a newer row of the same call: equal parts, apart from the source and the
parts that may differ in a look-up (the toolkit, the space). All other rows stay, such as those of other GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import RequestError
from tilewright.records import Json
from tilewright.runtime.store.config_file import SOURCES, ConfigData, ConfigFile, ConfigRow, Parts, canonical

UNKNOWN_BOARD = "an unnamed GPU"
PER_ROW = frozenset(("arrays", "board"))
"""Parts that stay in the rows also if they are equal in all: each row shows its shapes and its GPU, and the rows of one
GPU stay as they are when another GPU's rows are added."""


@dataclass(frozen=True)
class Merged:
    """The file to write. ``kept``: the number of rows that only the earlier file had, for each GPU."""

    file: ConfigData
    kept: dict[str, int]


def merged(new: ConfigData, earlier: ConfigFile) -> Merged:
    """Returns the rows of both files, those of the earlier file first and in their order, by the earlier file's rule.

    Raises RequestError if the earlier file is the one of another kernel.
    """
    _refuse_another_kernel(new, earlier)
    named = (*SOURCES, *earlier.rule.may_differ)
    rows: dict[str, tuple[Parts, ConfigRow]] = {}
    for parts, row in zip(earlier.parts, earlier.rows, strict=True):
        rows.setdefault(_call(parts, named), (parts, row))
    only_earlier = dict(rows)
    for row in new["rows"]:
        parts = {**new["common"], **row["parts"]}
        call = _call(parts, named)
        before = only_earlier.pop(call, None)
        if before is None or str(before[1].get("created", "")) <= row["created"]:
            rows[call] = (parts, row)
    kept: dict[str, int] = {}
    for parts, _ in only_earlier.values():
        board = str(parts.get("board", UNKNOWN_BOARD))
        kept[board] = kept.get(board, 0) + 1
    common, shown = without_common(list(rows.values()))
    return Merged({**new, "rule": earlier.rule.to_json(), "common": common, "rows": shown}, kept)


def without_common(rows: Sequence[tuple[Parts, ConfigRow]]) -> tuple[dict[str, Json], list[ConfigRow]]:
    """Returns the parts that are equal in all rows, and the rows without them. ``rows``: all parts of each row, and the
    row."""
    first = rows[0][0]
    common = {
        name: part
        for name, part in first.items()
        if name not in PER_ROW and all(name in of and canonical(of[name]) == canonical(part) for of, _ in rows)
    }
    return common, [
        {**row, "parts": {name: part for name, part in of.items() if name not in common}} for of, row in rows
    ]


def _refuse_another_kernel(new: ConfigData, earlier: ConfigFile) -> None:
    modules = (earlier.module, new["module"])
    if earlier.kernel != new["kernel"] or (all(modules) and modules[0] != modules[1]):
        there, here = (
            ".".join(filter(None, (m, k))) for m, k in zip(modules, (earlier.kernel, new["kernel"]), strict=True)
        )
        raise RequestError(
            f"{earlier.name} has the configurations of {there}, and the store those of {here}; fix: another folder, "
            "or --replace to write a new file"
        )


def _call(parts: Parts, left_out: tuple[str, ...]) -> str:
    return canonical({name: part for name, part in parts.items() if name not in left_out})
