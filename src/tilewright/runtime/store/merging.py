"""Merges a new config file into the one that a repository ships already, so that each GPU's rows stay.

A row of the earlier file is replaced only by a newer row of the same call: equal parts, apart from the source and the
parts that may differ in a look-up (the toolkit, the space). All other rows stay, such as those of other GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import RequestError
from tilewright.records import Json
from tilewright.runtime.store.config_file import PREDICTED, SOURCES, ConfigData, ConfigFile, ConfigRow, Parts, canonical

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
    refuse_another_kernel(earlier, new["kernel"], new["module"])
    named = (*SOURCES, *earlier.rule.may_differ)
    rows: dict[str, tuple[Parts, ConfigRow]] = {}
    for parts, row in zip(earlier.parts, earlier.rows, strict=True):
        rows.setdefault(_call(parts, named), (parts, row))
    only_earlier = dict(rows)
    for row in new["rows"]:
        parts = {**new["common"], **row["parts"]}
        call = _call(parts, named)
        before = only_earlier.pop(call, None)
        if before is None or _replaces((parts, row), before):
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


def refuse_another_kernel(earlier: ConfigFile, kernel: str, module: str) -> None:
    """Raises RequestError if the file is the one of another kernel, or of a kernel of this name in another module."""
    if earlier.kernel != kernel or (earlier.module and module and earlier.module != module):
        there, here = (".".join(filter(None, names)) for names in ((earlier.module, earlier.kernel), (module, kernel)))
        raise RequestError(f"{earlier.name} has the configurations of {there}, not of {here}")


def _replaces(new: tuple[Parts, ConfigRow], earlier: tuple[Parts, ConfigRow]) -> bool:
    """Returns whether the new row of a call is used: it is not older, and does not predict what was measured."""
    same_source = all(canonical(new[0].get(name)) == canonical(earlier[0].get(name)) for name in SOURCES)
    if same_source and new[1]["label"].endswith(PREDICTED) and earlier[1].get("us") is not None:
        return False
    return str(earlier[1].get("created", "")) <= new[1]["created"]


def _call(parts: Parts, left_out: tuple[str, ...]) -> str:
    return canonical({name: part for name, part in parts.items() if name not in left_out})
