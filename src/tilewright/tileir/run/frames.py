"""The values of blocks that run together, and how they part and meet at control flow.

A `Frame` holds the values of some lanes (blocks). Where lanes take different ways at a branch or in a loop, each way
gets a frame of its own. Values that it does not define are looked up in the frame before, for its own lanes. Where the
ways meet again, `merged` joins their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from tilewright.tileir.run.registry import Array, NeedsData, Unknown

Value = Any
"""An array with a leading axis of lanes (of length 1 where all share it), a view, an `Unknown`, or None for a token."""

_ABSENT = object()


class Frame:
    """Values by name for ``lanes``, positions among the blocks of a batch, ascending."""

    __slots__ = ("_cut", "_parent", "_values", "lanes")

    def __init__(self, lanes: Array, parent: Frame | None = None) -> None:
        self.lanes = lanes
        self._parent = parent
        self._cut = np.searchsorted(parent.lanes, lanes) if parent and len(parent.lanes) != len(lanes) else None
        self._values: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        value = self._values.get(name, _ABSENT)
        if value is not _ABSENT:
            return value
        if self._parent is None:
            raise KeyError(name)
        value = self._parent[name]
        if self._cut is not None:
            value = taken(value, self._cut)
        self._values[name] = value
        return value

    def __setitem__(self, name: str, value: Value) -> None:
        self._values[name] = value

    def narrowed(self, lanes: Array) -> Frame:
        """For some of the lanes; the same frame where they are all."""
        return self if len(lanes) == len(self.lanes) else Frame(lanes, self)


@dataclass(frozen=True)
class Exit:
    """Lanes that reached a terminator (``yield``, ``continue``, ``break``, ``return``), and what they brought."""

    kind: str
    lanes: Array
    values: tuple[Value, ...]


def taken(value: Value, index: Array) -> Value:
    """``value`` for some of its lanes."""
    if isinstance(value, np.ndarray):
        return value if value.shape[0] == 1 else value[index]
    if value is None or isinstance(value, Unknown):
        return value
    return value.take(index)


def merged(exits: Sequence[Exit]) -> tuple[Array, tuple[Value, ...]]:
    """All lanes of several exits in ascending order, and their values in that order."""
    if len(exits) == 1:
        return exits[0].lanes, exits[0].values
    lanes = np.concatenate([one.lanes for one in exits])
    order = np.argsort(lanes, kind="stable")
    counts = [len(one.lanes) for one in exits]
    columns = zip(*(one.values for one in exits), strict=True)
    return lanes[order], tuple(_side_by_side(column, counts, order) for column in columns)


def _side_by_side(values: Sequence[Value], counts: Sequence[int], order: Array) -> Value:
    first = values[0]
    if all(value is first for value in values) and (first is None or isinstance(first, Unknown)):
        return first
    unknown = next((value for value in values if isinstance(value, Unknown)), None)
    if unknown is not None:
        return unknown
    if isinstance(first, np.ndarray):
        if all(value.shape[0] == 1 and value.tobytes() == first.tobytes() for value in values):
            return first
        wide = [np.broadcast_to(v, (n, *v.shape[1:])) for v, n in zip(values, counts, strict=True)]
        return np.concatenate(wide)[order]
    if isinstance(first, tuple):
        return tuple(_side_by_side(column, counts, order) for column in zip(*values, strict=True))
    if is_dataclass(first) and not isinstance(first, type):
        parts = {
            one.name: [getattr(value, one.name) for value in values]
            for one in fields(first)
            if _has_lanes(getattr(first, one.name))
        }
        return replace(first, **{name: _side_by_side(part, counts, order) for name, part in parts.items()})
    raise TypeError(f"cannot merge values of type {type(first).__name__}")


def _has_lanes(value: Value) -> bool:
    if isinstance(value, tuple):
        return any(_has_lanes(item) for item in value)
    return isinstance(value, np.ndarray) or (is_dataclass(value) and hasattr(value, "take"))


def known(value: Value, what: str) -> Array:
    """An array that control flow or an address depends on. Raises NeedsData in a dry run that has none."""
    if isinstance(value, Unknown):
        raise NeedsData(what)
    return np.asarray(value)
