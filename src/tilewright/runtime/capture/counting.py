"""How often each kind of launch was made, if only some launches are looked at.

Finding the kind of a launch takes as long as the launch. So all launches of a kernel are counted, which is one step of
an iterator. The first `EXACT` are looked at, and then one of each block of launches, drawn at random. At random,
because launches repeat with the layers of a model: every 64th launch might belong to one layer. One of each block, so
that each phase of the program has its share. The other launches are assigned to kinds in proportion to those that were
looked at, so the counts of a kernel's kinds add up to its launches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import repeat
from operator import length_hint
from random import Random

EXACT = 1000
"""Launches of a kernel that are all looked at, which takes a few milliseconds. Twenty steps of a model with 50 layers
are counted without an estimate."""
ALWAYS = sys.maxsize
"""Instead of `EXACT`: every launch is looked at."""
GROWTH, BLOCK = 64, 128
"""After n launches a block has n/GROWTH launches, so that of a few thousand launches a hundred are looked at. It never
has more than BLOCK: then a look adds less to the average launch than the count does. Of 100,000 launches about 850 are
looked at, and the share of a kind that is a tenth of them is known within 2 points (95 %)."""


class LaunchCounter:
    """Counts the launches of one kernel and decides which are looked at.

    Each launch takes an item of `skip`, which is atomic, and passes. If there is no item left, it calls `come`, one
    thread at a time.
    """

    __slots__ = ("_before", "_block", "_exact", "_length", "_random", "_size", "skip")

    def __init__(self, exact: int, random: Random) -> None:
        self._exact, self._random = exact, random
        self.skip: repeat[None] = repeat(None, 0)
        self._before, self._length = 0, 0
        """Launches before `skip` was made, and its length then."""
        self._block, self._size = exact, 1
        """Launches before the next block; size of the one that the next look is in."""

    @property
    def made(self) -> int:
        """Launches until now."""
        return self._before + self._length - length_hint(self.skip)

    def come(self) -> int:
        """Counts a launch. Returns how many launches it represents; 0 if it is not looked at."""
        for _ in self.skip:  # its kernel object is not known, or another thread came first and made a new one
            return 0
        size, number = self._size, self._before + self._length + 1
        self._before, self._length = number, 0
        if number >= self._exact:
            self._size = min(BLOCK, 1 + number // GROWTH)
            place = self._block + int(self._random.random() * self._size)
            self._block += self._size
            self._length = place - number
            self.skip = repeat(None, self._length)
        return size


class Cell:
    """A count of launches that were looked at."""

    __slots__ = ("certain", "samples", "stand_for")

    def __init__(self) -> None:
        self.certain = 0
        """Launches that represent only themselves."""
        self.samples = self.stand_for = 0
        """Launches that represent others too, and how many."""

    @property
    def seen(self) -> int:
        return self.certain + self.samples

    def add(self, size: int) -> None:
        """A launch that represents ``size``."""
        self._count(size, 1)

    def take_back(self, size: int) -> None:
        self._count(size, -1)

    def _count(self, size: int, sign: int) -> None:
        if size == 1:
            self.certain += sign
        else:
            self.samples += sign
            self.stand_for += sign * size


def estimated(made: int, cells: Sequence[Cell]) -> dict[Cell, int]:
    """How many of ``made`` launches belong to each cell; together, all of them."""
    rest = made - sum(cell.certain for cell in cells)
    weights = [cell.stand_for for cell in cells]
    if not any(weights):  # too few came after the first, which were all looked at
        weights = [cell.certain for cell in cells]
    shares = shared_out(max(0, rest), weights)
    return {cell: cell.certain + share for cell, share in zip(cells, shares, strict=True)}


def shared_out(total: int, weights: Sequence[int]) -> list[int]:
    """Integers in proportion to ``weights`` that add up to ``total``; all 0 if the weights are."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda index: -(total * weights[index] % whole))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares
