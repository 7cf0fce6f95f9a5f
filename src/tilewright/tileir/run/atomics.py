"""Makes many atomic updates at once, with the same result as if they were made one after another.

If no element is updated twice, one pass over arrays makes all updates. Otherwise the updates are made in rounds: the
first update of every element, then the second update of every element, and so on. If a few elements get many updates,
as in a histogram, running totals are used instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tilewright.tileir.run.registry import Unsupported
from tilewright.tileir.watch.arrays import Array, DType, Indices, Mask

_INTEGER: dict[str, np.ufunc] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "add": np.add, "max": np.maximum,
    "min": np.minimum, "umax": np.maximum, "umin": np.minimum,
}  # fmt: skip
SUPPORTED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_INTEGER, ("int32", "int64")),
    **dict.fromkeys(("xchg", "cas"), ("int32", "int64", "float32", "float64")),
    "addf": ("float16", "bfloat16", "float32", "float64"),
}
"""Maps a mode to the NumPy types of the elements that Tile IR allows."""
Step: TypeAlias = "Callable[[Array, Array, Array | None], tuple[Array, Mask | None]]"
"""Takes old elements, values and comparands. Returns new elements, and a mask of the written elements (None: all)."""


def check(operation: str, mode: str, dtype: DType) -> None:
    """Raises Unsupported if Tile IR has no update of this mode and type."""
    if dtype.name not in SUPPORTED.get(mode, ()):
        raise Unsupported(f"{operation}: {mode} on elements of type {dtype.name} is not supported")


def update(
    elements: Array, at: Indices, values: Array, mode: str, compare: Array | None, wanted: bool
) -> tuple[Array, Mask]:
    """Updates ``elements[at]`` in the order of ``at``. ``elements`` and ``values`` have the same type.

    Returns the element before each update, and a mask of the updates that wrote. A compare-and-swap writes only if the
    comparison is true.

    wanted: whether the caller needs the elements before the updates. If not, they are undefined.
    """
    bits = np.dtype(f"u{elements.itemsize}")
    if mode == "cas":
        assert compare is not None
        found, wrote = _in_rounds(elements.view(bits), at, values.view(bits), compare.view(bits), _swapped)
        return found.view(values.dtype), wrote
    wrote = np.ones(len(at), np.bool_)
    if mode == "xchg":
        found, _ = _in_rounds(elements.view(bits), at, values.view(bits), None, lambda old, new, _: (new, None))
        return found.view(values.dtype), wrote
    dtype = values.dtype
    if mode in ("umax", "umin"):
        elements, values = elements.view(bits), values.view(bits)
    with np.errstate(all="ignore"):
        found = _combined(elements, at, values, np.add if mode == "addf" else _INTEGER[mode], wanted)
    return found.view(dtype), wrote


def _swapped(old: Array, new: Array, compare: Array | None) -> tuple[Array, Mask | None]:
    equal = old == compare
    return np.where(equal, new, old), equal


def _combined(elements: Array, at: Indices, values: Array, combine: np.ufunc, wanted: bool) -> Array:
    """Combines ``elements[at]`` with ``values``. Returns the element before each update, if ``wanted``."""
    if not _repeats(len(elements), at):
        found = elements[at]
        elements[at] = combine(found, values)
        return found
    if not wanted and values.dtype.isbuiltin == 1:
        combine.at(elements, at, values)
        return np.zeros_like(values)
    order, firsts = _ordered(at)
    most = int(np.diff(np.append(firsts, len(at))).max())
    if most <= 4 * len(firsts):
        return _in_rounds(elements, at, values, None, lambda old, new, _: (combine(old, new), None))[0]
    found = np.empty_like(values)
    for some in np.split(order, firsts[1:]):
        running = np.concatenate([elements[at[some[:1]]], values[some]])
        combine.accumulate(running, dtype=values.dtype, out=running)
        found[some] = running[:-1]
        elements[at[some[0]]] = running[-1]
    return found


def _in_rounds(elements: Array, at: Indices, values: Array, compare: Array | None, step: Step) -> tuple[Array, Mask]:
    """Applies ``step`` to the first update of every element, then to the second, and so on."""
    found = np.empty_like(values)
    wrote = np.ones(len(at), np.bool_)
    for some in _rounds(len(elements), at):
        old = elements[at[some]]
        new, done = step(old, values[some], None if compare is None else compare[some])
        elements[at[some]] = new
        found[some] = old
        if done is not None:
            wrote[some] = done
    return found, wrote


def _rounds(size: int, at: Indices) -> Sequence[Indices | slice]:
    """Divides the positions in ``at`` into rounds, so that the values of ``at`` within a round differ.

    The positions of equal values are in ascending order over the rounds.
    """
    if not _repeats(size, at):
        return [slice(None)]
    order, firsts = _ordered(at)
    lengths = np.diff(np.append(firsts, len(at)))
    turn = np.arange(len(at)) - np.repeat(firsts, lengths)
    by_turn = np.argsort(turn, kind="stable")
    return np.split(order[by_turn], np.cumsum(np.bincount(turn))[:-1])


def _ordered(at: Indices) -> tuple[Indices, Indices]:
    """Sorts the positions in ``at`` by value, stably. Returns them, and the index at which each value begins."""
    order = np.argsort(at, kind="stable")
    values = at[order]
    return order, np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))


def _repeats(size: int, at: Indices) -> bool:
    """Tells whether two values of ``at`` are equal. All values are below ``size``.

    Writing each position into an array at its value, and reading the array back, is faster than sorting.
    """
    if len(at) < 2:
        return False
    positions = np.arange(len(at), dtype=np.int32)
    last_position = np.empty(size, np.int32)
    last_position[at] = positions
    return bool((last_position[at] != positions).any())
