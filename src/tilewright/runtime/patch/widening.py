"""`tilewright run --widen`: neighbours of the configurations in the caller's search space.

Only plain records of numbers have neighbours. Tile sizes are halved and doubled, occupancy and ``num_ctas`` take their
usual values, and every other field keeps its value. A tile size never exceeds the largest given value of its field,
because callers rely on their list. For example, they choose lengths that are multiples of the largest tile.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.records import Value

if TYPE_CHECKING:
    from tilewright.runtime.search.trials import Config

LIMIT = 64
"""The most candidates, including the given ones."""
SMALLEST = 16
"""The smallest tile size to try. Tensor cores take no smaller tile."""
CHANGES = 2
"""The most fields that one neighbour changes."""
HINTS: Mapping[str, tuple[int, ...]] = {"occupancy": (1, 2, 4), "num_ctas": (1, 2)}

_TILE = re.compile(r"(^|_)(tile|block)(_|[mnk]?$)|^[tb][mnk]$|_[mnk]$", re.IGNORECASE)
_OTHER = re.compile(r"group|num|count|split|stage|warp|head|dim|_d$", re.IGNORECASE)
"""Names that `_TILE` matches although they are no tile sizes: the group of a swizzle, a head dimension."""

Fields: TypeAlias = dict[str, Any]


def fields_of(config: Any) -> Fields | None:
    """Returns the fields of a configuration by name; None if the configuration is not a record."""
    if isinstance(config, Mapping):
        return dict(config) if all(isinstance(name, str) for name in config) else None
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if isinstance(config, tuple):
        return dict(config._asdict()) if hasattr(config, "_asdict") else None
    return dict(vars(config)) if hasattr(config, "__dict__") and not callable(config) else None


def named_values(config: Any) -> dict[str, Value] | None:
    """Returns the fields of a configuration that is a record of numbers and strings only; None for any other."""
    fields = fields_of(config)
    plain = (int, float, str, type(None))
    return fields if fields and all(isinstance(value, plain) for value in fields.values()) else None


def widened(space: Sequence[Config]) -> Iterator[Config]:
    """Yields the configurations of ``space``, then all their neighbours. Neighbours with one change come first."""
    yield from space
    records = [(config, fields) for config in space if (fields := named_values(config)) is not None]
    largest = _largest_tiles([fields for _, fields in records])
    seen = {_identity(fields) for config in space if (fields := fields_of(config)) is not None}
    for changes in range(1, CHANGES + 1):
        for config, fields in records:
            for changed in _neighbours(fields, largest, changes):
                if (identity := _identity({**fields, **changed})) not in seen:
                    seen.add(identity)
                    yield replaced(config, changed)


def replaced(config: Config, changed: Mapping[str, Value]) -> Config:
    """Returns a copy of a configuration, of the same type, with other values for the fields in ``changed``."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.replace(config, **changed)
    if isinstance(config, tuple):
        renewed: Config = config._replace(**changed)  # type: ignore[attr-defined]
        return renewed
    copied = copy.copy(config)
    if isinstance(copied, Mapping):
        copied.update(changed)  # type: ignore[attr-defined]
    else:
        vars(copied).update(changed)
    return copied


def _identity(fields: Fields) -> tuple[tuple[str, str, str], ...]:
    return tuple(sorted((name, type(value).__name__, repr(value)) for name, value in fields.items()))


def _largest_tiles(given: Sequence[Fields]) -> dict[str, int]:
    """Returns the largest value of each field that is a tile size in all configurations."""
    names = {name for fields in given for name in fields if _TILE.search(name) and not _OTHER.search(name)}
    values = {name: [fields[name] for fields in given if name in fields] for name in names}
    return {
        name: max(sizes)
        for name, sizes in values.items()
        if all(type(size) is int and size >= SMALLEST and size & (size - 1) == 0 for size in sizes)
    }


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
