"""Finds the argument whose values cause ever new searches, such as a position or a length, and names it once."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tilewright.records import Json
from tilewright.runtime.store.config_file import is_array_part

MANY = 16
"""As many different values of one argument, with a search for each, are a sign that the searches will not end."""


class EndlessSearches:
    """Counts, for one tuned kernel, the values of each argument for which the kernel was searched."""

    def __init__(self) -> None:
        self._values: dict[str, set[str]] = {}
        self._said = False

    def after(self, kernel: str, parts: Mapping[str, Json]) -> str | None:
        """Counts one search, of a call with these parts of arguments. Returns the warning when it is due, once."""
        if self._said:
            return None
        for name, part in parts.items():
            self._values.setdefault(name, set()).add(json.dumps(part, sort_keys=True))
        most = max(map(len, self._values.values()), default=0)
        if most < MANY:
            return None
        self._said = True
        names = [name for name, values in self._values.items() if len(values) == most]
        said = (
            f"{kernel} was searched for {most} values of {' and '.join(map(repr, names))}, and will be for each new one"
        )
        return f"{said}; fix: {_fix(names, parts)}"


def _fix(names: list[str], parts: Mapping[str, Json]) -> str:
    """Returns the declarations that end the searches. Only extents and integers have buckets."""
    rounded = [name for name in names if is_array_part(parts[name]) or type(parts[name]) is int]
    buckets = f"buckets={{{', '.join(f'{name!r}: tilewright.powers_of_two' for name in rounded)}}}"
    unkeyed = f"unkeyed={names!r} if neither the fastest configuration nor the grid depends on it"
    return f"{buckets} to search once for each power of two, or {unkeyed}" if rounded else unkeyed
