"""Finds elements that two threads of a block access without a barrier between them, if one of the threads writes.

In Tile IR, tokens order the accesses of a block. Other compilers divide the elements of a tile among threads, and order
only the accesses of one thread. Here the position of an element in its tile stands for its thread. Tiles of equal shape
and width that are accessed in the same way are assumed to be divided equally. For each element of memory, the last
writer and the last reader are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tilewright.tileir.watch.arrays import Array, Indices, Mask
from tilewright.tileir.watch.shadow import Shadow
from tilewright.tileir.watch.watch import READ, UPDATE, Touched

SEVERAL = -1
"""Stands for the thread if several threads accessed an element."""
ANOTHER = -2
"""Stands for the thread of an atomic update. It counts as different from every thread that loads or stores."""


@dataclass(frozen=True)
class AccessSide:
    """One of two accesses: how it accesses memory, and its place in the source: a file name without its folder, and a
    line."""

    how: Literal["reads", "writes", "updates"]
    place: tuple[str, int]


@dataclass(frozen=True)
class Exchange:
    """Two accesses of different threads to one element. ``earlier``: None if several operations made the earlier
    access."""

    earlier: AccessSide | None
    later: AccessSide
    said: str


class _Last:
    """The last accesses of one kind. For each granule: block, thread, operation, and the number of barriers before the
    access."""

    def __init__(self, size: int) -> None:
        self.blocks, self.barriers = np.zeros(size, np.int32), np.zeros(size, np.int32)
        self.threads, self.sides = np.zeros(size, np.int64), np.zeros(size, np.int32)

    def of_others(self, granules: Indices, blocks: Array, threads: Array, barriers: Array) -> Mask:
        """Returns which granules another thread of the same block accessed since the last barrier."""
        same = (self.blocks[granules] == blocks) & (self.barriers[granules] == barriers)
        return np.asarray(same & (self.threads[granules] != threads))

    def enter(self, side: int, granules: Indices, blocks: Array, threads: Array, barriers: Array) -> None:
        several = self.of_others(granules, blocks, threads, barriers)
        since = (self.blocks[granules] == blocks) & (self.barriers[granules] == barriers)
        self.sides[granules] = np.where(since & (self.sides[granules] != side), SEVERAL, side)
        self.blocks[granules], self.barriers[granules] = blocks, barriers
        self.threads[granules] = threads
        self.threads[granules[(self.threads[granules] != threads) | several]] = SEVERAL


@dataclass
class Exchanges:
    """The elements that threads of one run exchange without a barrier. ``found``: the first exchange of each pair of
    operations."""

    found: dict[tuple[int, AccessSide], Exchange] = field(default_factory=dict)
    _sides: list[AccessSide] = field(default_factory=list)
    _tiles: dict[object, int] = field(default_factory=dict)
    _barriers: dict[int, int] = field(default_factory=dict)
    _last: dict[int, tuple[_Last, _Last]] = field(default_factory=dict)

    def _threads(self, touched: Touched, tile: tuple[int, ...], elements: Indices) -> Indices:
        """Returns the thread of each element."""
        if touched.how == UPDATE:
            return np.full(len(elements), ANOTHER, np.int64)
        kind = ("view" in touched.access.op.name, tile, touched.width)
        return elements + (self._tiles.setdefault(kind, len(self._tiles)) << 40)

    def barrier(self, blocks: Array) -> None:
        for block in (blocks + 1).tolist():
            self._barriers[block] = self._barriers.get(block, 0) + 1

    def show(self, touched: Touched, tile: tuple[int, ...], elements: Indices) -> None:
        """Records an access. Adds an exchange to ``found`` if another thread accessed an element before.

        elements: the positions of the elements in tiles of the shape ``tile``.
        """
        shadow = touched.allocation.shadow
        granules, per_element = shadow.granules(touched.offsets, touched.width)
        blocks = np.repeat(touched.blocks_of_all(), per_element)
        who = blocks, np.repeat(self._threads(touched, tile, elements), per_element), self._barriers_of(blocks)
        writes, reads = self._of(shadow)
        side = _side(touched)
        number = self._sides.index(side) if side in self._sides else len(self._sides)
        self._sides += [side] if number == len(self._sides) else []
        for earlier, word in ((writes, "writes"), (reads, "reads"))[: 1 if touched.how == READ else 2]:
            others = np.flatnonzero(earlier.of_others(granules, *who))
            before, where = np.unique(earlier.sides[granules[others]], return_index=True)
            for other, at in zip(before.tolist(), others[where].tolist(), strict=True):
                if (other, side) not in self.found:
                    known = None if other == SEVERAL else self._sides[other]
                    self.found[other, side] = Exchange(known, side, _said(touched, at // per_element, word))
        (reads if touched.how == READ else writes).enter(number, granules, *who)

    def _barriers_of(self, blocks: Array) -> Array:
        if not self._barriers:
            return np.zeros(len(blocks), np.int32)
        distinct, which = np.unique(blocks, return_inverse=True)
        return np.array([self._barriers.get(block, 0) for block in distinct.tolist()], np.int32)[which.reshape(-1)]

    def _of(self, shadow: Shadow) -> tuple[_Last, _Last]:
        if id(shadow) not in self._last:
            self._last[id(shadow)] = _Last(shadow.size), _Last(shadow.size)
        return self._last[id(shadow)]


def _side(touched: Touched) -> AccessSide:
    location = touched.access.op.location
    place = (location.file.rsplit("/", 1)[-1], location.line) if location else ("", 0)
    return AccessSide(touched.how, place)  # type: ignore[arg-type]


def _said(touched: Touched, element: int, word: str) -> str:
    allocation, op = touched.allocation, touched.access.op
    index = ", ".join(map(str, allocation.index_of(int(touched.offsets[element]))))
    place = f" at {op.location}" if op.location else ""
    return (
        f"{op.name}{place} {touched.how} {allocation.name}[{index}], which another thread of the block {word} before: "
        "their order is open without a barrier between them"
    )
