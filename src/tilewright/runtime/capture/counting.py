"""How often each kind of launch came, when only some launches are looked at.

To see of what kind a launch is takes as long as to launch it. So the launches of a kernel are all counted, which is
one step of an iterator, but only the first `EXACT` are all looked at; then one of each block of launches, at a place
drawn at random. At random, because launches repeat with the layers of a model: every 64th launch might always be of
one layer. One of each block, because a program has phases: each has its share of the looks. What nobody looked at is
shared out in the proportions of what was, so that the kinds of a kernel add up to exactly its launches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import repeat
from operator import length_hint
from random import Random

EXACT = 1000
"""Launches of a kernel that are all looked at: it costs a program a few milliseconds. Twenty steps of a model with 50
layers are counted without an estimate."""
ALWAYS = sys.maxsize
"""In place of `EXACT`: every launch is looked at."""
GROWTH, BLOCK = 64, 128
"""After n launches a block is of n/GROWTH, so that a program of some thousand launches has its hundred looks, but
never of more than BLOCK: a look then adds less to the average launch than the count does. Of 100,000 launches some 850
are looked at, and a kind that is a tenth of them is found to be one within 2 points (95 %)."""


class LaunchCounter:
    """Counts the launches of one kernel and says which are looked at.

    Each launch takes an item of `skip`, a step that no thread can divide, and passes. One that finds none left `come`s,
    one thread at a time.
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
        """Counts a launch. For how many launches it stands: one that is not looked at for none, not even itself."""
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
    """Launches that belong together, as far as they were looked at."""

    __slots__ = ("certain", "samples", "stand_for")

    def __init__(self) -> None:
        self.certain = 0
        """Launches that stand for themselves alone."""
        self.samples = self.stand_for = 0
        """Launches that stand for others too, and for how many."""

    @property
    def seen(self) -> int:
        return self.certain + self.samples

    def add(self, size: int) -> None:
        """A launch that stands for ``size``."""
        if size == 1:
            self.certain += 1
        else:
            self.samples += 1
            self.stand_for += size

    def take_back(self, size: int) -> None:
        if size == 1:
            self.certain -= 1
        else:
            self.samples -= 1
            self.stand_for -= size


def estimated(made: int, cells: Sequence[Cell]) -> dict[Cell, int]:
    """How many of ``made`` launches belong into each cell; together, all of them."""
    rest = made - sum(one.certain for one in cells)
    weights = [one.stand_for for one in cells]
    if not any(weights):  # too few came after those that were all looked at
        weights = [one.certain for one in cells]
    shares = shared_out(max(0, rest), weights)
    return {one: one.certain + share for one, share in zip(cells, shares, strict=True)}


def shared_out(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to ``weights`` that add up to ``total``; all 0 where the weights are."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda one: -(total * weights[one] % whole))
    for one in by_remainder[: total - sum(shares)]:
        shares[one] += 1
    return shares
