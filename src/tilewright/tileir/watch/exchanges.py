"""Finds elements that two threads of a block access without a barrier between them, if one of the threads writes.

In Tile IR, tokens order the accesses of a block. Other compilers divide the elements of a tile among threads, and order
only the accesses of one thread. The real division is not known here. So each position in a tile is assumed to have a
thread of its own. Tiles with equal shape, element width and way of access are assumed to be divided among threads in
the same way. For each source line and each element of memory, the last thread is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tilewright.tileir.watch.arrays import Array, Indices, Mask
from tilewright.tileir.watch.watch import READ, UPDATE, Touched

SEVERAL = -1
"""The thread number that is recorded if several threads accessed an element."""
ANOTHER = -2
"""The thread number of every atomic update. It differs from the number of every thread that loads or stores."""


@dataclass(frozen=True)
class AccessSide:
    """A kind of access and its source line. ``place``: the name of the file without the folder, and the line number."""

    how: Literal["reads", "writes", "updates"]
    place: tuple[str, int]


@dataclass(frozen=True)
class Exchange:
    """Two accesses of different threads to one element."""

    earlier: AccessSide
    later: AccessSide
    said: str


class _Last:
    """The last accesses of one line. For each granule: block, thread, and the number of barriers before the access."""

    def __init__(self, size: int) -> None:
        self.blocks, self.barriers = np.zeros(size, np.int32), np.zeros(size, np.int32)
        self.threads = np.zeros(size, np.int64)

    def of_others(self, granules: Indices, blocks: Array, threads: Array, barriers: Array) -> Mask:
        """Returns which granules another thread of the same block accessed since the last barrier."""
        same = (self.blocks[granules] == blocks) & (self.barriers[granules] == barriers)
        return np.asarray(same & (self.threads[granules] != threads))

    def enter(self, granules: Indices, blocks: Array, threads: Array, barriers: Array) -> None:
        several = self.of_others(granules, blocks, threads, barriers)
        self.blocks[granules], self.barriers[granules] = blocks, barriers
        self.threads[granules] = threads
        self.threads[granules[(self.threads[granules] != threads) | several]] = SEVERAL


@dataclass
class Exchanges:
    """The elements that threads of one run exchange without a barrier.

    found: the first exchange of each pair of accesses (`AccessSide`).
    """

    found: dict[tuple[AccessSide, AccessSide], Exchange] = field(default_factory=dict)
    _tiles: dict[object, int] = field(default_factory=dict)
    _barriers: dict[int, int] = field(default_factory=dict)
    _last: dict[int, dict[AccessSide, _Last]] = field(default_factory=dict)

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
        last, side = self._last.setdefault(id(shadow), {}), _side(touched)
        for earlier, accesses in last.items():
            if (earlier, side) in self.found or (earlier.how == touched.how == READ):
                continue
            others = np.flatnonzero(accesses.of_others(granules, *who))
            if len(others):
                word = "reads" if earlier.how == READ else "writes"
                said = _said(touched, int(others[0]) // per_element, word)
                self.found[earlier, side] = Exchange(earlier, side, said)
        if side not in last:
            last[side] = _Last(shadow.size)
        last[side].enter(granules, *who)

    def _barriers_of(self, blocks: Array) -> Array:
        if not self._barriers:
            return np.zeros(len(blocks), np.int32)
        distinct, which = np.unique(blocks, return_inverse=True)
        return np.array([self._barriers.get(block, 0) for block in distinct.tolist()], np.int32)[which.reshape(-1)]


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
        "their order is undefined without a barrier between them"
    )
