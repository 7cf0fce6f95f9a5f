"""Which block's accesses are ordered before which: vector clocks, kept once a kernel synchronises.

A block's own clock counts its releases; an access happens at the value that it has then, its epoch. A release leaves a
snapshot of all that the block knows at the element it writes, and an acquire of that element joins the snapshot. An
access of block b at epoch e is ordered before what block a does now when a knows a clock of b beyond e. Blocks are
numbered from 1 here.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tilewright.tileir.watch.arrays import Int32s, Mask

Blocks: TypeAlias = "int | Int32s"
"""One block, or the block of each element."""


class Clocks:
    """What each block knows of the others' clocks."""

    def __init__(self) -> None:
        self.active = False
        """Whether anything was released; before that, every epoch is 0 and nothing is ordered."""
        self._known: dict[int, Int32s] = {}
        self._own = np.zeros(16, np.int32)
        self._snapshots: dict[int, Int32s] = {}
        self._last = 0
        self._limit = 256
        self._places: list[Int32s] = []

    def epoch(self, block: Blocks) -> Blocks:
        """The block's clock now, for each element."""
        if isinstance(block, int):
            return int(self._own[block]) if block < len(self._own) else 0
        self._own = _longer(self._own, int(block.max()) + 1)
        return self._own[block]

    def before(self, block: int, others: Int32s, epochs: Int32s) -> Mask:
        """Whether accesses of ``others`` at ``epochs`` are ordered before what ``block`` does now."""
        known = _longer(self._known.get(block, self._own[:0]), int(others.max(initial=0)) + 1)
        return np.asarray(known[others] > epochs)

    def acquire(self, block: int, snapshots: Int32s) -> None:
        """``block`` read elements that hold these snapshots (0 for none)."""
        for one in np.unique(snapshots):
            if one:
                self._known[block] = _joined(self._known.get(block), self._snapshots[int(one)])

    def release(self, block: int, earlier: int = 0) -> int:
        """``block`` writes with release semantics: returns the number of its snapshot. ``earlier``: the snapshot that
        was there before; a read-modify-write keeps what it says."""
        self.active = True
        self._own = _longer(self._own, block + 1)
        self._own[block] += 1
        known = _longer(self._known.get(block, self._own[:0]), block + 1).copy()
        known[block] = self._own[block]
        self._known[block] = known
        left = _joined(known, self._snapshots[earlier]) if earlier else known
        if len(self._snapshots) >= self._limit:
            self._forget()
        self._last += 1
        self._snapshots[self._last] = left
        return self._last

    def places(self, size: int) -> Int32s:
        """Where an allocation keeps the snapshot of each granule."""
        new = np.zeros(size, np.int32)
        self._places.append(new)
        return new

    def _forget(self) -> None:
        """Drops the snapshots that no granule holds any more."""
        held = {int(one) for place in self._places for one in np.unique(place)} | {self._last}
        self._snapshots = {key: one for key, one in self._snapshots.items() if key in held}
        self._limit = max(256, 2 * len(self._snapshots))


def _longer(values: Int32s, size: int) -> Int32s:
    if size <= len(values):
        return values
    grown = np.zeros(max(size, 2 * len(values)), np.int32)
    grown[: len(values)] = values
    return grown


def _joined(one: Int32s | None, other: Int32s) -> Int32s:
    if one is None:
        return other.copy()
    size = max(len(one), len(other))
    return np.maximum(_longer(one, size)[:size], _longer(other, size)[:size])
