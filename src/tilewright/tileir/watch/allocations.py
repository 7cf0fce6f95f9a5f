"""Describes tensors at synthetic addresses: a tensor's address, its bytes, and the index of each element."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from tilewright.tileir.watch.arrays import Array, Bytes, DType, Indices, Int32s, Mask
from tilewright.tileir.watch.shadow import Shadow

WORDS: dict[int, DType] = {width: np.dtype(f"u{width}") for width in (1, 2, 4, 8)}
"""Maps the bytes of an element to the unsigned integer type that holds the element's bits."""


@dataclass(eq=False)
class Allocation:
    """A tensor in the memory ``raw``, which begins at the address ``start``.

    low, high: the tensor's elements are in the bytes ``low`` to ``high`` of ``raw``.
    offset: byte of element (0, …) in ``raw``. It is more than ``low`` if a stride is negative.
    strides: in bytes.
    gaps: a mask of the ``shadow``'s granules that belong to no element; None if there are no gaps.
    owners: for each granule, the number (from 1) of the only block that may access the granule; None if all blocks may
        access all granules.
    bit: identifies the tensor among the tensors in the same memory.
    """

    name: str
    raw: Bytes
    start: int
    low: int
    high: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element_bytes: int
    shadow: Shadow
    gaps: Mask | None = None
    owners: Int32s | None = None
    bit: int = 1
    _words: dict[int, Array] = field(default_factory=dict)

    @property
    def address(self) -> int:
        return self.start + self.offset

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.element_bytes

    def words(self, width: int) -> Array:
        """Returns the memory as integers of ``width`` bytes, without an incomplete integer at the end."""
        if width not in self._words:
            whole = len(self.raw) // width * width
            self._words[width] = self.raw[:whole].view(WORDS[width])
        return self._words[width]

    def index_of(self, offset: int) -> tuple[int, ...]:
        """Returns the index of the element at the byte ``offset`` of ``raw``. For a byte outside all elements, the
        index along the axis with the longest stride may exceed the extent; the other indices are clipped."""
        rest = (offset - self.offset) // self.element_bytes * self.element_bytes
        index = [0] * len(self.shape)
        order = sorted(range(len(self.shape)), key=lambda axis: -abs(self.strides[axis]))
        for place, axis in enumerate(order):
            stride = self.strides[axis]
            if stride:
                index[axis] = rest // stride
                if place:
                    index[axis] = min(max(index[axis], 0), self.shape[axis] - 1)
                rest -= index[axis] * stride
        return tuple(index)

    def gather(self, offsets: Indices, width: int, aligned: bool) -> Array:
        """Returns the bits of the elements of ``width`` bytes at ``offsets``."""
        if aligned:
            return np.asarray(np.take(self.words(width), offsets >> (width.bit_length() - 1)))
        return np.asarray(self.raw[offsets[:, None] + np.arange(width)].reshape(-1).view(WORDS[width]))

    def scatter(self, offsets: Indices, values: Array, aligned: bool) -> None:
        """Writes the bits ``values`` to the elements at ``offsets``. An element keeps the last of several values."""
        width = values.itemsize
        if aligned:
            self.words(width)[offsets >> (width.bit_length() - 1)] = values
        else:
            self.raw[offsets[:, None] + np.arange(width)] = values.view(np.uint8).reshape(-1, width)


def extent_of(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Returns the range of bytes [low, high) that contains all elements, counted from the start of element (0, …)."""
    if math.prod(shape) == 0:
        return 0, 0
    reach = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + itemsize


def granules_of(allocation: Allocation) -> tuple[Indices, int]:
    """Returns the granules of the elements in row-major order, and how many granules an element has."""
    offsets = np.full(allocation.shape, allocation.offset, np.int64)
    for axis, (extent, stride) in enumerate(zip(allocation.shape, allocation.strides, strict=True)):
        along = [1] * len(allocation.shape)
        along[axis] = extent
        offsets += (np.arange(extent, dtype=np.int64) * stride).reshape(along)
    return allocation.shadow.granules(offsets.reshape(-1), allocation.element_bytes)
