"""Text of a report with the source of its numbers, the *ledger ids*. An id is a place in the records of a run.

The id ``iteration/3/outcomes/0/measured/us`` names a field in the record of iteration 3 (see ``report --jsonl``). In a
name, ``~1`` means ``/`` and ``~0`` means ``~`` (JSON Pointer). A profile has no ledger: its ids are places in the
trace, such as ``trace.json:4711:3``. The page shows the ids as a tooltip of the number (`markup.tag`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tilewright.records import Json

NOT_MEASURED = "not measured"
LEDGER = "ledger"
"""The name of the column that has the ids."""


class Sourced(str):
    """Text with ``ids``, the ledger ids of its numbers. ``value``: the shown value; None for text without a number."""

    ids: tuple[str, ...]
    value: Json

    def __new__(cls, text: object, *ids: str, value: Json = None) -> Sourced:
        made = super().__new__(cls, text)
        made.ids, made.value = ids, value
        return made


def citing(text: str, *parts: object) -> Sourced:
    """Returns ``text`` with all ids of ``parts``."""
    return Sourced(text, *ids_of(parts))


def joined(parts: Iterable[str], between: str) -> Sourced:
    """Joins the texts in ``parts``. The result has all ids of ``parts``."""
    parts = tuple(parts)
    return citing(between.join(parts), *parts)


def ids_of(parts: Iterable[object]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for part in parts if isinstance(part, Sourced) for each in part.ids))


def shortened(ids: Iterable[str]) -> str:
    """Formats ids as one string: ``iteration/1/value, iteration/1/status`` as ``iteration/1/{value,status}``."""
    fields: dict[str, dict[str, None]] = {}
    for each in ids:
        record, _, name = each.rpartition("/")
        fields.setdefault(record, {})[name] = None
    return ", ".join(
        f"{record}/{','.join(names)}" if len(names) == 1 else f"{record}/{{{','.join(names)}}}"
        for record, names in fields.items()
    )


def row_json(header: Iterable[str], row: Iterable[str]) -> dict[str, Json]:
    """Maps each column of a table's row to its value. The entry `LEDGER` maps each column to the ids of its value."""
    cells = dict(zip(header, row, strict=True))
    values: dict[str, Json] = {
        name: cell.value if isinstance(cell, Sourced) and cell.value is not None else str(cell)
        for name, cell in cells.items()
    }
    return values | {
        LEDGER: {name: list(cell.ids) for name, cell in cells.items() if isinstance(cell, Sourced) and cell.ids}
    }


def key(name: str) -> str:
    """Returns a name, escaped as one part of an id."""
    return name.replace("~", "~0").replace("/", "~1")


def stored_at(records: Mapping[str, Json], ledger_id: str) -> Json:
    """Returns the value that the ledger stores at an id. Raises LookupError or TypeError if there is no such place."""
    value: Any = records
    for part in ledger_id.split("/"):
        if isinstance(value, list) and not part.isdecimal():
            raise KeyError(part)
        name = part.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else value[name]
    found: Json = value
    return found
