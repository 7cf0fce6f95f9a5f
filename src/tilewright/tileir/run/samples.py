"""Gives all blocks of a run the data of one block, so that only the block number makes blocks differ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.registry import Array, Elements, Unknown
from tilewright.tileir.watch.arrays import DType


class Samples:
    """The data that all blocks of a run load. It is the data of one block, which is the first block of each batch.

    of: returns the first elements of a tensor, given its name; None if the elements are not known. The other elements
        of the tensor repeat these elements.
    in_parts: whether each block loads only its own part of a tile: the elements inside the tensor that are not masked
        out.
    """

    def __init__(self, of: Callable[[str], Array | None], in_parts: bool) -> None:
        self._of, self.in_parts = of, in_parts
        self._elements: dict[str, Array | None] = {}

    def loaded(self, memory: Memory, addresses: Array, dtype: DType) -> Elements | None:
        """Returns the data at ``addresses``, shape (1, *tile).

        Returns `Unknown` if the data is not known. Returns None for list arguments, which each block loads itself.
        """
        middle = int(addresses.flat[addresses.size // 2]) if addresses.size else 0  # the ends may lie outside
        tensor = next((each for each in reversed(memory.allocations) if each.start <= middle), None)
        if tensor is None:
            return Unknown(addresses.shape, dtype)
        if tensor in memory.lists:
            return None
        if tensor.name not in self._elements:
            self._elements[tensor.name] = self._of(tensor.name)
        known = self._elements[tensor.name]
        if known is None or known.nbytes < dtype.itemsize:
            return Unknown(addresses.shape, dtype)
        raw = known.reshape(-1).view(np.uint8)
        elements = raw[: raw.size // dtype.itemsize * dtype.itemsize].view(dtype)
        return np.asarray(elements[(addresses - tensor.start) // dtype.itemsize % elements.size])
