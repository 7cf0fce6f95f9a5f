"""Finds blocks that decide otherwise than most blocks of their grid.

A run records, by block, the lengths of loops and the values that `slicing.telling` names: results of comparisons,
minima, divisions and bit operations, and functions of the block number that are not linear. If a kernel treats one
block differently, such a value must differ for this block. So the blocks with rare values are the ones to run on data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.tileir.watch.arrays import Array

BITS = 64  # for the results of one operation; results of an operation that share a bit count as equal
MOST_BLOCKS = 1 << 18  # a larger grid needs more than 2 MiB for each operation


class Decisions:
    """The decisions of each block of a grid. A decision is the result of one operation. Each result sets one of `BITS`
    bits; ``seed`` draws which one."""

    def __init__(self, blocks: int, seed: int) -> None:
        self._blocks, self._rng = blocks, np.random.default_rng(seed)
        self._taken: dict[str, Array] = {}  # operation → the bits of its results, by block
        self._weights: dict[str, Array] = {}

    def add(self, name: str, results: Array, blocks: Array) -> None:
        """Records the ``results`` of the operation ``name``. Their first axis is the blocks; it has length 1 if all
        blocks share the result."""
        bits = results if results.dtype == object else results.view(f"u{results.dtype.itemsize}")  # floats, too
        rows = bits.reshape(len(bits), -1).astype(np.uint64)
        if name not in self._taken:
            self._taken[name] = np.zeros(self._blocks, np.uint64)
            self._weights[name] = self._rng.integers(1 << 63, size=rows.shape[1] + 1, dtype=np.uint64) * 2 + 1
        weights = self._weights[name]
        bit = (rows @ weights[1:] + weights[0]) * weights[0] >> np.uint64(64 - BITS.bit_length() + 1)
        self._taken[name][blocks] |= np.uint64(1) << bit

    def unusual(self, most: int, others: Sequence[int]) -> list[int]:
        """Returns at most ``most`` blocks, those with the rarest decisions first.

        Each block has made a decision that no earlier block in the result, and no block in ``others``, has made. If an
        operation gives many different results, such as a product that differs in every block, its decisions count as
        less rare.
        """
        rare = []
        for name, taken in self._taken.items():
            bits = np.uint64(1) << np.arange(BITS, dtype=np.uint64)
            counts = [int(np.count_nonzero(taken & bit)) for bit in bits]
            ways = sum(map(bool, counts))
            rare += [(count * ways, name, bit) for count, bit in zip(counts, bits, strict=True) if count]
        chosen: list[int] = []
        for _, name, bit in sorted(rare, key=lambda entry: entry[0]):
            having = self._taken[name] & bit
            if len(chosen) < most and not having[[*others, *chosen]].any():
                chosen.append(int(self._rng.choice(np.flatnonzero(having))))
        return chosen
