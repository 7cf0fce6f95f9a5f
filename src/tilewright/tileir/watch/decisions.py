"""Finds blocks whose decisions differ from the decisions of most blocks in the grid.

A run records, by block, the lengths of loops, which parts of the loaded tiles lie inside their tensors, and the values
of `run.dependence`. These values are results of comparisons, minima, divisions and bit operations, and functions of the
block number that are not linear. They also include sums and products, which may wrap around or be rounded. If a kernel
treats one block differently, such a value, or two of them together, must differ for this block. So the blocks with rare
values are the ones to run on data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.tileir.read.tree import Op
from tilewright.tileir.watch.arrays import Array

BITS = 64  # for the results of one operation; results of an operation that share a bit count as equal
MOST_BLOCKS = 1 << 20  # a larger grid needs more than 8 MiB for each operation
RARE = 1 / 8
"""A decision is rare if the number of its blocks, times the number of different decisions of the operation, is at most
this share of the grid. For an operation that decides differently in each block, the share is 1.
"""
FEW_WAYS = 8  # only operations with at most this many different decisions are combined in pairs
MOST_PATTERNS = 8  # the most different combinations of loaded parts of which one block each is run
MOST_PAIRED = 32  # the most operations that are combined; those with the fewest different decisions


@dataclass(frozen=True)
class _Decision:
    """One decision of an operation, or of a pair of operations. ``blocks``: returns, for each block, whether it decides
    so.
    """

    blocks: Callable[[], Array]
    count: int
    ways: int
    telling: bool = False


class Decisions:
    """The decisions of each block of a grid. A decision is the result of one operation. Each result sets one of `BITS`
    bits; ``seed`` draws which one."""

    def __init__(self, blocks: int, seed: int) -> None:
        self._blocks, self._rng = blocks, np.random.default_rng(seed)
        self._taken: dict[str, Array] = {}  # operation → the bits of its results, by block
        self._weights: dict[str, Array] = {}
        self._telling: set[str] = set()
        self._patterns: set[str] = set()
        self.unknown: Op | None = None
        """An operation whose result could not be computed, so that it is not recorded."""

    def add(self, name: str, results: Array, blocks: Array, *, telling: bool = True, pattern: bool = False) -> None:
        """Records the ``results`` of the operation ``name``. Their first axis is the blocks; it has length 1 if all
        blocks share the result. ``telling``: whether a block may be chosen by such a result even if it is not rare.
        ``pattern``: whether the results are the part of a tile that is loaded."""
        bits = results if results.dtype == object else results.view(f"u{results.dtype.itemsize}")  # floats, too
        rows = bits.reshape(len(bits), -1).astype(np.uint64)
        if name not in self._taken:
            self._taken[name] = np.zeros(self._blocks, np.uint64)
            self._weights[name] = self._rng.integers(1 << 63, size=rows.shape[1] + 1, dtype=np.uint64) * 2 + 1
            if telling:
                self._telling.add(name)
            if pattern:
                self._patterns.add(name)
        weights = self._weights[name]
        bit = (rows @ weights[1:] + weights[0]) * weights[0] >> np.uint64(64 - BITS.bit_length() + 1)
        self._taken[name][blocks] |= np.uint64(1) << bit

    def join(self, others: Decisions, same: Array) -> None:
        """Adds decisions of some blocks. ``same``: for each block of the grid, the block that decides as it does."""
        for name, taken in others._taken.items():
            if name not in self._taken:
                self._taken[name] = taken[same]
                self._telling |= others._telling & {name}

    def patterns(self) -> list[Array]:
        """Returns groups of blocks. The blocks of a group load the same parts of their tiles."""
        joint = np.zeros(self._blocks, np.uint64)
        for name in sorted(self._patterns):
            joint += self._taken[name] * self._rng.integers(1 << 63, dtype=np.uint64)
        _, group = np.unique(joint, return_inverse=True)
        order = np.argsort(group.reshape(-1), kind="stable")
        return np.split(order, np.cumsum(np.bincount(group.reshape(-1)))[:-1])

    def unusual(self, most: int, others: Sequence[int], most_rare: int = 0) -> list[int]:
        """Returns blocks, those with the rarest decisions first: at most ``most``, or up to ``most_rare`` if the
        decisions are `RARE`.

        Each block has made a decision that no earlier block in the result, and no block in ``others``, has made. If an
        operation gives many different results, such as a product that differs in every block, its decisions count as
        less rare.
        """
        found = [*self._single(), *self._paired()]
        self._rng.shuffle(found)  # equally rare decisions are then chosen at random, not in the order of the operations
        chosen: list[int] = []
        for one in sorted(found, key=lambda one: (one.count * one.ways, one.ways)):
            rare = one.count * one.ways <= self._blocks * RARE
            wanted = len(chosen) < (max(most, most_rare) if rare else most) and (rare or one.telling)
            if wanted and not (blocks := one.blocks())[[*others, *chosen]].any():
                chosen.append(int(self._rng.choice(np.flatnonzero(blocks))))
        return chosen

    def _single(self) -> Iterator[_Decision]:
        """Yields the decisions of each operation."""
        for name, taken in self._taken.items():
            words, counts = np.unique(taken, return_counts=True)
            bits = [np.uint64(1) << np.uint64(bit) for bit in range(BITS)]
            having = [(bit, int(counts[words & bit != 0].sum())) for bit in bits]
            ways = sum(count > 0 for _, count in having)
            for bit, count in having:
                if count:
                    yield _Decision(partial(_with_bit, taken, bit), count, ways, name in self._telling)

    def _paired(self) -> Iterator[_Decision]:
        """Yields the rare combinations of the decisions of two operations."""
        few: dict[bytes, tuple[int, Array]] = {}  # division of the blocks → number of decisions, decision of each block
        for taken in self._taken.values():
            words, first, word = np.unique(taken, return_index=True, return_inverse=True)
            if 1 < len(words) <= FEW_WAYS:
                division = np.argsort(np.argsort(first)).astype(np.uint8)[
                    word.reshape(-1)
                ]  # decisions are numbered by their first block
                few[division.tobytes()] = len(words), division
        fewest = sorted(few.values(), key=lambda pair: pair[0])[:MOST_PAIRED]
        for (_, one), (_, other) in itertools.combinations(fewest, 2):
            counts = np.bincount(_pair(one, other))
            ways = int(np.count_nonzero(counts))
            for way in np.flatnonzero((counts > 0) & (counts * ways <= self._blocks * RARE)).tolist():
                yield _Decision(partial(_with_pair, one, other, way), int(counts[way]), ways)


def _with_bit(taken: Array, bit: np.uint64) -> Array:
    return np.asarray(taken & bit != 0)


def _pair(one: Array, other: Array) -> Array:
    return np.asarray(one * np.uint8(FEW_WAYS) + other)


def _with_pair(one: Array, other: Array, way: int) -> Array:
    return np.asarray(_pair(one, other) == way)
