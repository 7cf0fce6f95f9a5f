"""Where the tiles lie that the lanes access through a view: addresses, what is inside, and contiguous runs.

All is computed for the lanes at once, from a few numbers per axis: the addresses of a tile are the address of its first
element plus a pattern, which lanes share if they share the strides; what is inside is a range along each axis. Traffic
needs only these numbers, so that a dry run never makes an array with an entry per element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.tileir.run.registry import Array, lanes_of

FARTHEST = 2**62
"""Elements from the beginning of a tensor; what begins farther away is outside all the same, and the arithmetic must
not wrap around into the tensor."""
AT_ONCE = 1 << 20
"""Beginnings of runs in one array: a tile without a contiguous axis has one for each element."""


@dataclass(frozen=True)
class TileAxis:
    """Where an axis of a tile lies: index i begins at element ``i * step`` of the tensor's axis ``of``. A sparse axis
    has no one beginning: each of its elements has an index."""

    of: int
    length: int
    step: int
    sparse: bool = False


@dataclass(frozen=True, eq=False)
class Along:
    """One axis of the tiles. ``stride`` is in bytes. A dense axis: elements ``low`` to ``high`` (exclusive) of the
    tile, which begins at ``start``, are inside; all (L,). A sparse axis: ``start`` is (L, length), the place of each
    element, and ``inside`` says which are inside."""

    axis: TileAxis
    start: Array
    stride: Array
    low: Array
    high: Array
    inside: Array | None

    @property
    def count(self) -> Array:
        """(L,): how many elements are inside."""
        if self.inside is not None:
            return np.asarray(self.inside.sum(axis=1, dtype=np.int64))
        return np.asarray(self.high - self.low)

    def complete(self) -> bool:
        """Whether no lane's tile has an element outside."""
        return bool((self.count == self.axis.length).all())

    def mask(self) -> Array:
        """(L, length): the elements inside."""
        if self.inside is not None:
            return self.inside
        place = np.arange(self.axis.length)
        return np.asarray((place >= self.low[:, None]) & (place < self.high[:, None]))

    def first_outside(self) -> tuple[int, int]:
        """A lane with an element outside, and that element's place along the tensor's axis."""
        outside = ~self.mask()
        lane, element = (int(one) for one in np.unravel_index(int(outside.argmax()), outside.shape))
        start = self.start[lane if len(self.start) > 1 else 0]
        return lane, int(start[element]) if self.axis.sparse else int(start) + element


def _along(axis: TileAxis, index: Array, extent: Array, stride: Array) -> Along:
    farthest = FARTHEST // axis.step
    start = np.clip(index.astype(np.int64, copy=False), -farthest, farthest) * axis.step
    if axis.sparse:
        inside = (start >= 0) & (start < extent[:, None])
        none = np.zeros(1, np.int64)
        return Along(axis, start, stride, none, none, inside)
    low = np.clip(-start, 0, axis.length)
    high = np.maximum(np.clip(extent - start, 0, axis.length), low)
    return Along(axis, start, stride, low, high, None)


def tiles_at(
    axes: Sequence[TileAxis],
    index: Sequence[Array],
    base: Array,
    extents: Sequence[Array],
    strides: Sequence[Array],
    itemsize: int,
) -> Tiles:
    """Where the tiles at ``index`` lie in a tensor at ``base``; ``strides`` in elements. One index for each axis: (L,),
    or (L, length) where it is sparse. No data is looked at."""
    along = tuple(
        _along(axis, one, extents[axis.of], strides[axis.of] * itemsize) for axis, one in zip(axes, index, strict=True)
    )
    return Tiles(base, along, itemsize)


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tiles that the lanes access: byte address of the tensor and a description of each axis."""

    base: Array
    along: tuple[Along, ...]
    itemsize: int

    def _spread(self, values: Array, axis: int) -> Array:
        """(L, length) or (L,) with the axes of a tile, so that it broadcasts."""
        shape = [1] * len(self.along)
        if values.ndim == 2:
            shape[axis] = values.shape[1]
        return values.reshape(values.shape[0], *shape)

    def addresses(self) -> Array:
        """(L, *tile) byte addresses; those of elements outside have no meaning."""
        begin, pattern = self.base, np.zeros((1,) * (1 + len(self.along)), np.int64)
        for a, one in enumerate(self.along):
            if one.axis.sparse:
                pattern = pattern + self._spread(one.start * one.stride[:, None], a)
            else:
                begin = begin + one.start * one.stride
                pattern = pattern + self._spread(np.arange(one.axis.length) * one.stride[:, None], a)
        addresses = self._spread(begin, 0) + pattern
        return np.broadcast_to(addresses, (self.lanes, *addresses.shape[1:]))

    def mask(self) -> Array | None:
        """What is inside, broadcastable to (L, *tile); None where all is."""
        mask: Array | None = None
        for a, one in enumerate(self.along):
            if not one.complete():
                part = self._spread(one.mask(), a)
                mask = part if mask is None else mask & part
        return mask

    @property
    def lanes(self) -> int:
        """1 where all lanes access the same tile."""
        along = (a for one in self.along for a in (one.start, one.stride, one.low, one.high))
        return lanes_of(self.base, *along)

    def runs(self) -> Iterator[tuple[int, Array, int]]:
        """(bytes, beginnings of contiguous runs, their length), once or more often for each shape that the part of a
        tile inside the view has. The bytes are of all lanes; equal tiles of several lanes give one run."""
        first, dense = self._first(self.lanes)
        counts = [one[0] for one in dense]
        strides = [one[1] for one in dense]
        inside = np.all([np.broadcast_to(c > 0, first.shape) for c in counts], axis=0) if counts else True
        for alike in _groups(first, [*counts, *strides], inside):
            shape = [(_one(c, alike), _one(s, alike)) for c, s in zip(counts, strides, strict=True)]
            moved = math.prod(count for count, _ in shape) * self.itemsize * len(alike)
            offsets, run = _pattern(shape, self.itemsize)
            distinct = np.unique(first[alike])
            together = max(1, AT_ONCE // len(offsets))
            for begin in range(0, len(distinct), together):
                starts = distinct[begin : begin + together, None] + offsets
                yield (0 if begin else moved), starts.reshape(-1), run

    def _first(self, lanes: int) -> tuple[Array, list[tuple[Array, Array]]]:
        """(P,) address of the first element inside of each part of a tile, and (count, stride) of the axes of a part,
        each (P,) or (1,). A part is a lane's whole tile, or what one sparse index selects of it."""
        begin = self.base
        dense = []
        sparse = None
        for one in self.along:
            if one.inside is not None:
                sparse = one
            else:
                begin = begin + (one.start + one.low) * one.stride
                dense.append((one.count, one.stride))
        if sparse is None:
            return np.broadcast_to(begin, (lanes,)), dense
        assert sparse.inside is not None
        lane, element = np.nonzero(np.broadcast_to(sparse.inside, (lanes, sparse.axis.length)))
        places = np.broadcast_to(sparse.start, (lanes, sparse.axis.length))[lane, element]
        begin = np.broadcast_to(begin, (lanes,))[lane] + places * np.broadcast_to(sparse.stride, (lanes,))[lane]
        return begin, [(_of(count, lane), _of(stride, lane)) for count, stride in dense]


def _of(values: Array, lanes: Array) -> Array:
    return values if len(values) == 1 else values[lanes]


def _one(values: Array, alike: Array) -> int:
    return int(values[0] if len(values) == 1 else values[alike[0]])


def _groups(first: Array, numbers: Sequence[Array], inside: Array | bool) -> Iterator[Array]:
    """The parts that are inside and agree in all ``numbers``, as arrays of their places in ``first``."""
    code = np.zeros(len(first), np.int64)
    for values in numbers:
        if len(values) > 1:
            distinct, place = np.unique(values, return_inverse=True)
            code = code * len(distinct) + place.reshape(-1)
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
    chosen = np.flatnonzero(np.broadcast_to(inside, code.shape))
    for one in np.unique(code[chosen]):
        yield chosen[code[chosen] == one]


def _pattern(shape: Sequence[tuple[int, int]], itemsize: int) -> tuple[Array, int]:
    """Where the contiguous runs of a tile begin, from its first byte, and how long they are; ``shape`` is (count,
    stride in bytes) by axis. Axes that continue one another make one run."""
    offsets, run = np.zeros(1, np.int64), itemsize
    for count, stride in sorted(shape, key=lambda axis: abs(axis[1])):
        if count == 1 or stride == 0:
            continue
        if stride == run:
            run *= count
        else:
            offsets = (offsets[:, None] + np.arange(count) * stride).reshape(-1)
    return offsets, run
