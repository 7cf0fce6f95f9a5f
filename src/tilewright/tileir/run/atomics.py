"""Atomic updates of many elements at once, as if one after the other.

Where all elements are different, an update is one pass over arrays. Where several meet in an element they are made in
rounds: the first of every element, then the second of every element, and so on; with many for few elements, as in a
histogram, by running totals instead.
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
"""What Tile IR has, and ``addf`` of bf16."""


def check(operation: str, mode: str, dtype: DType) -> None:
    """Raises Unsupported where Tile IR has no such update."""
    if dtype.name not in SUPPORTED.get(mode, ()):
        raise Unsupported(f"{operation}: {mode} on elements of type {dtype.name}")


def update(
    elements: Array, at: Indices, values: Array, mode: str, compare: Array | None, wanted: bool
) -> tuple[Array, Mask]:
    """Updates ``elements[at]`` in the order of ``at``. Returns what each update found, and whether it wrote (a
    compare-and-swap may not). ``elements`` are of the type of ``values``. Where what was found is not ``wanted``, it
    may be anything."""
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


Step: TypeAlias = "Callable[[Array, Array, Array | None], tuple[Array, Mask | None]]"


def _swapped(old: Array, new: Array, compare: Array | None) -> tuple[Array, Mask | None]:
    equal = old == compare
    return np.where(equal, new, old), equal


def _combined(elements: Array, at: Indices, values: Array, combine: np.ufunc, wanted: bool) -> Array:
    """``combine`` with what is there; what was there before each."""
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
    """``step`` for the first update of every element, then for the second, …"""
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
    """Places in ``at`` by round: values differ within a round; equal values keep their order."""
    if not _repeats(size, at):
        return [slice(None)]
    order, firsts = _ordered(at)
    lengths = np.diff(np.append(firsts, len(at)))
    turn = np.arange(len(at)) - np.repeat(firsts, lengths)
    by_turn = np.argsort(turn, kind="stable")
    return np.split(order[by_turn], np.cumsum(np.bincount(turn))[:-1])


def _ordered(at: Indices) -> tuple[Indices, Indices]:
    """Places in ``at`` by value, equal ones in their order, and where each value begins among them."""
    order = np.argsort(at, kind="stable")
    values = at[order]
    return order, np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))


def _repeats(size: int, at: Indices) -> bool:
    """Whether two values are equal: each place is written at its value, and read back. Does not sort; touches only
    the entries at these values."""
    if len(at) < 2:
        return False
    places = np.arange(len(at), dtype=np.int32)
    board = np.empty(size, np.int32)
    board[at] = places
    return bool((board[at] != places).any())
