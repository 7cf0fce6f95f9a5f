"""Finds blocks whose decisions differ from the decisions of most blocks in the grid.

A run records three things for each block: the lengths of loops, the parts of loaded tiles that lie inside their
tensors, and the values of `run.dependence`. These values are results of comparisons, minima, divisions and bit
operations, and other nonlinear functions of the block number. Sums and products are recorded, too, because they may
wrap around or be rounded. If a kernel treats one block differently, a recorded value or a pair of recorded values must
differ for this block. So the blocks with rare values are chosen to run on data.
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
"""A decision with at most this share is rare. The share is n · d / g for n blocks with this decision, d different
decisions of the operation, and g blocks in the grid. If an operation decides differently in each block, the share is 1.
"""
FEW_WAYS = 8  # only operations with at most this many different decisions are combined in pairs
MOST_PATTERNS = 8  # limit of different combinations of loaded parts; one block of each combination is run
MOST_PAIRED = 32  # limit of operations that are combined in pairs; operations with the fewest decisions come first


@dataclass(frozen=True)
class _Decision:
    """One decision of an operation, or of a pair of operations.

    blocks: returns a mask over the grid: True for each block with this decision.
    count: the number of blocks with this decision.
    ways: the number of different decisions of the operation or pair.
    telling: whether a block with this decision may be chosen even if the decision is not rare.
    """

    blocks: Callable[[], Array]
    count: int
    ways: int
    telling: bool = False


class Decisions:
    """The decisions of each block of a grid. A decision is the result of one operation.

    A hash, drawn with ``seed``, maps each result to one of `BITS` bits.
    """

    def __init__(self, blocks: int, seed: int) -> None:
        self._blocks, self._rng = blocks, np.random.default_rng(seed)
        self._taken: dict[str, Array] = {}  # for each operation, the bits of its results, by block
        self._weights: dict[str, Array] = {}
        self._telling: set[str] = set()
        self._patterns: set[str] = set()
        self.unknown: Op | None = None
        """An operation whose result could not be computed, so that it is not recorded."""

    def add(self, name: str, results: Array, blocks: Array, *, telling: bool = True, pattern: bool = False) -> None:
        """Records the ``results`` of the operation ``name``.

        results: the first axis is the blocks. Its length is 1 if all blocks share the result.
        telling: whether a block may be chosen by such a result even if the result is not rare.
        pattern: whether the results describe the loaded part of a tile.
        """
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
        """Adds the decisions that were recorded for some blocks only.

        same: for each block of the grid, the recorded block with the same decisions.
        """
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
        """Returns the numbers of unusual blocks. The blocks with the rarest decisions come first.

        Each block in the result has a decision that no earlier block in the result has, and no block in ``others``. The
        decisions of an operation with many different results, such as a product, count as less rare.

        most: the largest number of blocks.
        most_rare: replaces ``most`` for blocks with rare decisions (`RARE`), if larger.
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
        """Yields the decisions of all single operations."""
        for name, taken in self._taken.items():
            words, counts = np.unique(taken, return_counts=True)
            bits = [np.uint64(1) << np.uint64(bit) for bit in range(BITS)]
            having = [(bit, int(counts[words & bit != 0].sum())) for bit in bits]
            ways = sum(count > 0 for _, count in having)
            for bit, count in having:
                if count:
                    yield _Decision(partial(_with_bit, taken, bit), count, ways, name in self._telling)

    def _paired(self) -> Iterator[_Decision]:
        """Yields each pair of decisions, of two different operations, that only few blocks take."""
        few: dict[bytes, tuple[int, Array]] = {}  # by division of the blocks: (decisions, decision of each block)
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
