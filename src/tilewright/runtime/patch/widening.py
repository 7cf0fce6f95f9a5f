"""`--widen`: neighbours of the configurations that the author of a search gave.

A configuration is widened where it is a plain record of numbers. Tile sizes are halved and doubled, occupancy and
``num_ctas`` take their usual values; every other field stays as some given configuration has it. A tile never grows
beyond the largest given one for its field: callers derive facts from their own list, such as "the length is a
multiple of the largest tile", and a larger tile would launch where that does not hold. The given ones come first.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

LIMIT = 64
"""Candidates in all, the given ones among them."""
SMALLEST = 16
"""The smallest tile extent that is tried: tensor cores take no smaller one."""
CHANGES = 2
"""So many fields of a given configuration change at a time."""
HINTS: Mapping[str, tuple[int, ...]] = {"occupancy": (1, 2, 4), "num_ctas": (1, 2)}

_TILE = re.compile(r"(^|_)(tile|block)(_|[mnk]?$)|^[tb][mnk]$|_[mnk]$", re.IGNORECASE)
_OTHER = re.compile(r"group|num|count|split|stage|warp|head|dim|_d$", re.IGNORECASE)
"""Not extents of a tile that may be chosen: the group of a swizzle, a head dimension."""

Fields = dict[str, Any]


def fields_of(config: Any) -> Fields | None:
    """The named fields of a configuration; None where it is no record."""
    if isinstance(config, Mapping):
        return dict(config) if all(isinstance(name, str) for name in config) else None
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if isinstance(config, tuple):
        return dict(config._asdict()) if hasattr(config, "_asdict") else None
    return dict(vars(config)) if hasattr(config, "__dict__") and not callable(config) else None


def widened(space: Sequence[Any]) -> Iterator[Any]:
    """The configurations of ``space``, then their neighbours, nearest first, each once; there may be many."""
    yield from space
    given = [fields_of(config) for config in space]
    records = [(config, fields) for config, fields in zip(space, given, strict=True) if _of_numbers(fields)]
    largest = _largest_tiles([fields for _, fields in records if fields is not None])
    seen = {_identity(fields) for fields in given if fields is not None}
    for changes in range(1, CHANGES + 1):
        for config, fields in records:
            assert fields is not None
            for changed in _neighbours(fields, largest, changes):
                if (identity := _identity({**fields, **changed})) not in seen:
                    seen.add(identity)
                    yield replaced(config, changed)


def replaced(config: Any, changed: Mapping[str, Any]) -> Any:
    """A copy of a configuration with other values for some of its fields, of the same type."""
    if isinstance(config, Mapping):
        one = copy.copy(config)
        one.update(changed)  # type: ignore[attr-defined]
        return one
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.replace(config, **changed)
    if isinstance(config, tuple):
        return config._replace(**changed)  # type: ignore[attr-defined]
    one = copy.copy(config)
    for name, value in changed.items():
        setattr(one, name, value)
    return one


def _of_numbers(fields: Fields | None) -> bool:
    plain = (int, float, str, type(None))
    return bool(fields) and all(isinstance(value, plain) for value in (fields or {}).values())


def _identity(fields: Fields) -> tuple[tuple[str, str, str], ...]:
    return tuple(sorted((name, type(value).__name__, repr(value)) for name, value in fields.items()))


def _largest_tiles(given: Sequence[Fields]) -> dict[str, int]:
    """By field that holds a tile's extent in every configuration that has it: the largest one."""
    values: dict[str, list[Any]] = {}
    for fields in given:
        for name, value in fields.items():
            values.setdefault(name, []).append(value)
    return {
        name: max(found)
        for name, found in values.items()
        if _TILE.search(name) and not _OTHER.search(name) and all(_is_extent(value) for value in found)
    }


def _is_extent(value: Any) -> bool:
    return type(value) is int and value >= SMALLEST and value & (value - 1) == 0


def _neighbours(fields: Fields, largest: Mapping[str, int], changes: int) -> Iterator[Fields]:
    steps: dict[str, list[int]] = {}
    for name, value in fields.items():
        if name in largest:
            steps[name] = [new for new in (value // 2, value * 2) if SMALLEST <= new <= largest[name]]
        elif name in HINTS and type(value) is int:
            steps[name] = [new for new in HINTS[name] if new != value]
    for names in combinations(steps, changes):
        for values in product(*(steps[name] for name in names)):
            yield dict(zip(names, values, strict=True))
