"""Defines views of memory at run time, and the handlers of the operations that make, measure and access views.

A `TensorView` has the position of a tensor in memory. A `TileView` has the division of the tensor into tiles. Their
fields are int64 arrays of shape (L,), with one number for each of the L blocks of a batch. The shape is (1,) if all
blocks share the number.

Elements inside a view are accessed through `memory`, which checks allocations, races and initialisation. Elements
outside are never accessed. A load returns the view's padding for these elements, or poison if the view has no padding.
A store skips these elements. An access outside is a finding only if the operation declares the axis to be in bounds.

All blocks are computed at once, from a few numbers for each axis. The address of an element is the address of the
tile's first element plus an offset. Blocks with the same strides share the offsets. Along each axis the elements inside
are a range. Counting traffic needs only these numbers, so a dry run never makes an array with an entry for each
element.

Indices, extents and strides are signed. An extent below 0 is an empty axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from tilewright.tileir.read.tree import GatherScatterViewType, Op, StridedViewType, TensorViewType, TileType, ViewType
from tilewright.tileir.run.context import Context, access_of
from tilewright.tileir.run.numbers import STORAGE, WITHOUT_ADDRESS, dtype_of, poisoned, width_of, within
from tilewright.tileir.run.registry import Elements, NeedsData, Unknown, Unsupported, implements, implements_in_context
from tilewright.tileir.watch.arrays import Array, DType
from tilewright.tileir.watch.findings import OUT_OF_BOUNDS

FARTHEST = 2**62
"""The position of a tile's first element along an axis is limited to this number. The number is outside every tensor,
but small enough that addresses do not overflow."""
STARTS = 1 << 20  # `runs` yields at most this many start addresses at once; a tile may have a run for each element
PADDINGS = {"zero": 0.0, "neg_zero": -0.0, "nan": math.nan, "pos_inf": math.inf, "neg_inf": -math.inf}


def kept(values: Array, lanes: Array) -> Array:
    """Returns the values of the blocks at the positions ``lanes``, or ``values`` itself if all blocks share them."""
    return values if values.shape[0] == 1 else values[lanes]


@dataclass(frozen=True)
class TileAxis:
    """One axis of a tile, with ``length`` elements. The tile with index i starts at element ``i * step`` of the
    tensor's axis ``of``. A sparse axis has an index for each of its elements."""

    of: int
    length: int
    step: int
    sparse: bool = False


@dataclass(frozen=True, eq=False)
class AxisRange:
    """The elements that the blocks access along one axis. ``stride`` is in bytes.

    A dense axis starts at the tensor's element ``start``. The tile's elements ``low`` to ``high`` (exclusive) are
    inside the view. All three have the shape (L,). On a sparse axis, ``start`` holds the tensor's element for each
    element of the tile, and ``inside`` tells which elements are inside the view. Both have the shape (L, length).
    """

    axis: TileAxis
    start: Array
    stride: Array
    low: Array
    high: Array
    inside: Array | None

    @property
    def count(self) -> Array:
        """The number of elements inside the view, (L,)."""
        if self.inside is not None:
            return np.asarray(self.inside.sum(axis=1, dtype=np.int64))
        return np.asarray(self.high - self.low)

    def complete(self) -> bool:
        return bool((self.count == self.axis.length).all())

    def mask(self) -> Array:
        """Returns which elements are inside the view, (L, length)."""
        if self.inside is not None:
            return self.inside
        place = np.arange(self.axis.length)
        return np.asarray((place >= self.low[:, None]) & (place < self.high[:, None]))

    def first_outside(self) -> tuple[int, int]:
        """Returns the position of the first block with an element outside the view.

        Also returns the position of this element along the tensor's axis.
        """
        outside = ~self.mask()
        lane, element = divmod(int(outside.argmax()), outside.shape[1])
        start = self.start[lane if len(self.start) > 1 else 0]
        return lane, int(start[element]) if self.axis.sparse else int(start) + element


def _range(axis: TileAxis, index: Array, extent: Array, stride: Array) -> AxisRange:
    farthest = FARTHEST // axis.step
    start = within(index.astype(np.int64, copy=False), -farthest, farthest) * axis.step
    if axis.sparse:
        none = np.zeros(1, np.int64)
        return AxisRange(axis, start, stride, none, none, (start >= 0) & (start < extent[:, None]))
    low = within(-start, 0, axis.length)
    high = np.maximum(within(extent - start, 0, axis.length), low)
    return AxisRange(axis, start, stride, low, high, None)


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tiles that the blocks access: the tensor's byte address ``base``, and the elements along each axis."""

    base: Array
    ranges: tuple[AxisRange, ...]
    itemsize: int

    def _spread(self, values: Array, axis: int) -> Array:
        """Reshapes values of shape (L, length) or (L,) to broadcast to (L, *tile)."""
        shape = [1] * len(self.ranges)
        if values.ndim == 2:
            shape[axis] = values.shape[1]
        return values.reshape(values.shape[0], *shape)

    def addresses(self) -> Array:
        """Returns the byte address of each element, (L, *tile). Addresses of elements outside the view are invalid."""
        begin, pattern = self.base, np.zeros((1,) * (1 + len(self.ranges)), np.int64)
        for a, along in enumerate(self.ranges):
            if along.axis.sparse:
                pattern = pattern + self._spread(along.start * along.stride[:, None], a)
            else:
                begin = begin + along.start * along.stride
                pattern = pattern + self._spread(np.arange(along.axis.length) * along.stride[:, None], a)
        addresses = self._spread(begin, 0) + pattern
        return np.broadcast_to(addresses, (self.lanes, *addresses.shape[1:]))

    def mask(self) -> Array | None:
        """Returns which elements are inside the view, broadcastable to (L, *tile); None if all are inside."""
        mask: Array | None = None
        for a, along in enumerate(self.ranges):
            if not along.complete():
                part = self._spread(along.mask(), a)
                mask = part if mask is None else mask & part
        return mask

    @property
    def lanes(self) -> int:
        """The number of blocks, or 1 if all access the same tile."""
        arrays = (array for along in self.ranges for array in (along.start, along.stride, along.low, along.high))
        return max(map(len, (self.base, *arrays)))

    def runs(self) -> Iterator[tuple[int, Array, int]]:
        """Yields items (bytes, start addresses, length) for the contiguous runs of bytes that the tiles cover.

        All runs of an item have the same length. An item has the runs of all blocks whose parts inside the view have
        the same shape and strides. Equal tiles of several blocks give only one start address, but ``bytes`` is the
        traffic of all blocks. If a group of blocks needs several items, the later items have 0 bytes.
        """
        first, dense = self._parts(self.lanes)
        counts = [count for count, _ in dense]
        inside = reduce(np.logical_and, [count > 0 for count in counts], np.ones(1, bool))
        for alike in _groups(first, [*counts, *(stride for _, stride in dense)], inside):
            shape = [(int(kept(c, alike[:1])[0]), int(kept(s, alike[:1])[0])) for c, s in dense]
            moved = math.prod(count for count, _ in shape) * self.itemsize * len(alike)
            offsets, run = _pattern(shape, self.itemsize)
            distinct = np.unique(first[alike])
            together = max(1, STARTS // len(offsets))
            for begin in range(0, len(distinct), together):
                starts = distinct[begin : begin + together, None] + offsets
                yield (0 if begin else moved), starts.reshape(-1), run

    def _parts(self, lanes: int) -> tuple[Array, list[tuple[Array, Array]]]:
        """Divides the tiles into P parts. A part is a block's tile.

        With a sparse axis, a part is the elements of a block's tile at one index of this axis.

        Returns the address of each part's first element inside the view, (P,). Also returns, for each dense axis, the
        count of elements and the stride in bytes, each (P,) or (1,).
        """
        begin, dense, sparse = self.base, [], None
        for along in self.ranges:
            if along.inside is not None:
                sparse = along
            else:
                begin = begin + (along.start + along.low) * along.stride
                dense.append((along.count, along.stride))
        if sparse is None:
            return np.broadcast_to(begin, (lanes,)), dense
        assert sparse.inside is not None
        lane, element = np.nonzero(np.broadcast_to(sparse.inside, (lanes, sparse.axis.length)))
        places = np.broadcast_to(sparse.start, (lanes, sparse.axis.length))[lane, element]
        begin = np.broadcast_to(begin, (lanes,))[lane] + places * np.broadcast_to(sparse.stride, (lanes,))[lane]
        return begin, [(kept(count, lane), kept(stride, lane)) for count, stride in dense]


def _groups(first: Array, numbers: Sequence[Array], inside: Array) -> Iterator[Array]:
    """Yields groups of the parts that are ``inside``. In a group, all parts have equal ``numbers``. A group is an array
    of positions in ``first``."""
    code = np.zeros(len(first), np.int64)
    for values in numbers:
        if (values != values[:1]).any():  # mostly not: full tiles are alike, and sorting takes longer
            distinct, place = np.unique(values, return_inverse=True)
            code = code * len(distinct) + place.reshape(-1)
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
    chosen = np.flatnonzero(np.broadcast_to(inside, code.shape))
    for group in np.unique(code[chosen]):
        yield chosen[code[chosen] == group]


def _pattern(shape: Sequence[tuple[int, int]], itemsize: int) -> tuple[Array, int]:
    """Returns the offsets of a tile's contiguous runs from its first byte, and the length of each run in bytes.

    shape: (count of elements, stride in bytes) by axis. Axes that are contiguous with one another make one run.
    """
    offsets, run = np.zeros(1, np.int64), itemsize
    for count, stride in sorted(shape, key=lambda axis: abs(axis[1])):
        if count == 1 or stride == 0:
            continue
        if stride == run:
            run *= count
        else:
            offsets = (offsets[:, None] + np.arange(count) * stride).reshape(-1)
    return offsets, run


@dataclass(frozen=True, eq=False)
class TensorView:
    """A tensor in memory: byte address of the first element, extents and strides (elements). Each number is (L,)."""

    type: TensorViewType
    base: Array
    extents: tuple[Array, ...]
    strides: tuple[Array, ...]

    @property
    def dtype(self) -> DType:
        return np.dtype(STORAGE[self.type.element])

    def take(self, lanes: Array) -> TensorView:
        extents, strides = (tuple(kept(axis, lanes) for axis in axes) for axes in (self.extents, self.strides))
        return TensorView(self.type, kept(self.base, lanes), extents, strides)


@dataclass(frozen=True, eq=False)
class TileView:
    """A tensor that is divided into tiles by a partition, a strided or a gather/scatter view."""

    type: ViewType
    tensor: TensorView

    def take(self, lanes: Array) -> TileView:
        return TileView(self.type, self.tensor.take(lanes))

    @property
    def axes(self) -> tuple[TileAxis, ...]:
        """The axes of a tile.

        An index along a dense axis of a gather/scatter view counts elements, not tiles (cuTile's
        `load_advanced_indexing`: a slice begins at "a runtime element-space offset").
        """
        kind = self.type
        if isinstance(kind, GatherScatterViewType):
            return tuple(TileAxis(a, n, 1, a == kind.sparse_dim) for a, n in enumerate(kind.tile))
        steps = kind.traversal_strides if isinstance(kind, StridedViewType) else kind.tile
        return tuple(TileAxis(*axis) for axis in zip(kind.dim_map, kind.tile, steps, strict=True))


@implements_in_context("make_tensor_view")
def make_tensor_view(
    context: Context, op: Op, base: Array, dynamicShape: Sequence[Array] = (), dynamicStrides: Sequence[Array] = ()
) -> TensorView:
    """Makes a tensor at ``base``.

    dynamicShape, dynamicStrides: the extents and strides that are unknown in the type, in order.
    """
    type_ = op.result_types[0]
    assert isinstance(type_, TensorViewType)
    if type_.element in WITHOUT_ADDRESS:
        raise Unsupported(f"make_tensor_view: elements of type {type_.element} are not supported")
    if any(isinstance(value, Unknown) for value in (base, *dynamicShape, *dynamicStrides)):
        raise NeedsData(op.name)
    extents, strides = _filled(type_.shape, dynamicShape), _filled(type_.strides, dynamicStrides)
    return TensorView(type_, base.astype(np.int64, copy=False), extents, strides)


def _filled(static: Sequence[int | None], dynamic: Sequence[Array]) -> tuple[Array, ...]:
    values = iter(dynamic)
    filled = tuple(np.asarray(next(values) if number is None else [number], np.int64) for number in static)
    assert next(values, None) is None, "more dynamic values than the type leaves open"
    return filled


@implements("make_partition_view", "make_strided_view", "make_gather_scatter_view")
def make_tile_view(op: Op, tensor_view: TensorView) -> TileView:
    """Divides a tensor into tiles. All three kinds of tile view share this handler, because only their types differ."""
    type_ = op.result_types[0]
    assert isinstance(type_, ViewType)
    return TileView(type_, tensor_view)


@implements("get_tensor_shape")
def get_tensor_shape(op: Op, src: TensorView) -> Array | tuple[Array, ...]:
    return _shape(op, src.extents)


@implements("get_index_space_shape")
def get_index_space_shape(op: Op, src: TileView) -> Array | tuple[Array, ...]:
    """Returns the number of tiles that start inside the tensor, ceil(extent / step), for each axis of the tile.

    The tiles may overlap or leave gaps. tileiras computes the same (seen with steps of 1 and 3, tiles of 8).
    """
    if isinstance(src.type, GatherScatterViewType):
        raise Unsupported("get_index_space_shape of a gather_scatter_view is not supported")
    extents = [np.maximum(src.tensor.extents[axis.of], 0) for axis in src.axes]
    counts = [-(-extent // axis.step) for extent, axis in zip(extents, src.axes, strict=True)]
    return _shape(op, counts)


def _shape(op: Op, numbers: Sequence[Array]) -> Array | tuple[Array, ...]:
    results = []
    for number, type_ in zip(numbers, op.result_types, strict=True):
        assert isinstance(type_, TileType)
        if number.max(initial=0) >= 1 << (width_of(type_.element) - 1):
            raise Unsupported(f"{op.name}: {number.max()} does not fit into {type_.element}")
        results.append(number.astype(dtype_of(type_.element)))
    return results[0] if len(results) == 1 else tuple(results)


@implements_in_context("load_view_tko")
def load_view_tko(context: Context, op: Op, view: TileView, index: Sequence[Array]) -> tuple[Elements, None]:
    """Loads the tile at ``index``. Returns the tile, (L, *tile), and a token."""

    def addresses(lanes: Array) -> Array:
        return _of_index(view.take(lanes), [kept(along, lanes) for along in index]).addresses()

    if (data := context.sampled(addresses, view.tensor.dtype)) is not None:
        if isinstance(data, Unknown) or not context.samples_parts or (inside := _of_index(view, index).mask()) is None:
            return data, None
        return np.where(inside, data, padding(view.type.padding, view.type.tensor.element, context.poison)), None
    tiles = _tiles(context, op, view, index, "load")
    if context.dry and not context.loads(op, view.tensor.base):
        return Unknown((1, *view.type.tile), view.tensor.dtype), None
    mask = tiles.mask()
    fill = None
    if mask is not None:
        poison = context.undefined(op) if view.type.padding is None else context.poison
        fill = padding(view.type.padding, view.type.tensor.element, poison)
    return context.memory.load(access_of(context, op), tiles.addresses(), mask, view.tensor.dtype, fill), None


@implements_in_context("store_view_tko")
def store_view_tko(context: Context, op: Op, tile: Elements, view: TileView, index: Sequence[Array]) -> None:
    """Stores the elements of ``tile``, (L, *tile), that are inside the view. Returns None, because tokens are None."""
    tiles = _tiles(context, op, view, index, "store")
    if not context.dry:
        assert not isinstance(tile, Unknown)
        context.memory.store(access_of(context, op), tiles.addresses(), tiles.mask(), tile)


@implements_in_context("atomic_red_view_tko")
def atomic_red_view_tko(context: Context, op: Op, view: TileView, index: Sequence[Array], value: Elements) -> None:
    """Combines each element inside the view with ``value``, (L, *tile), atomically. Returns None as the token."""
    tiles = _tiles(context, op, view, index, "atomic")
    if not context.dry:
        assert not isinstance(value, Unknown)
        mode = op.attributes["mode"]
        context.memory.atomic(access_of(context, op), tiles.addresses(), tiles.mask(), value, mode)


def _tiles(context: Context, op: Op, view: TileView, index: Sequence[Array], direction: str) -> Tiles:
    """Returns the tiles at ``index``, and counts their traffic. Does not access the memory.

    index: one array per axis of the tile, of shape (L,), or (L, length) if the axis is sparse.
    Reports each axis along which a tile exceeds the tensor although the operation declares the axis to be in bounds.
    Raises NeedsData if a dry run does not know an index.
    """
    if any(isinstance(along, Unknown) for along in index):
        raise NeedsData(op.name)
    tensor, tiles = view.tensor, _of_index(view, index)
    for along, declared in zip(tiles.ranges, op.attributes.get("inbounds", ()), strict=False):
        if declared and not along.complete():
            lane, place = along.first_outside()
            extent = tensor.extents[along.axis.of]
            size = int(extent[lane if len(extent) > 1 else 0])
            message = f"axis {along.axis.of} is declared in bounds: element {place} of {size}"
            context.finding(op, OUT_OF_BOUNDS, message, lane=lane)
    for a, along in enumerate(tiles.ranges if direction == "load" else ()):
        context.decided(f"{op.results[0]} {a}", along.count)
    for total, starts, run in tiles.runs():
        context.traffic(op, direction, total * (context.lanes if tiles.lanes == 1 else 1), starts, run)
    return tiles


def _of_index(view: TileView, index: Sequence[Array]) -> Tiles:
    tensor, itemsize = view.tensor, view.tensor.dtype.itemsize
    axes = zip(view.axes, index, strict=True)
    ranges = (_range(axis, i, tensor.extents[axis.of], tensor.strides[axis.of] * itemsize) for axis, i in axes)
    return Tiles(tensor.base, tuple(ranges), itemsize)


def padding(kind: str | None, element: str, poison: int) -> Array:
    """Returns the value that a load gives outside the view, shape (): ``kind`` as an ``element``, or poison bytes if
    ``kind`` is None. Raises Unsupported if the element type does not have the value: f8E8M0FNU has no zero."""
    dtype = np.dtype(STORAGE[element])
    if kind is None:
        return poisoned(dtype, poison)
    number, is_integer = np.float64(PADDINGS[kind]), dtype.kind in "ib"
    if is_integer and kind == "zero":
        return np.zeros((), dtype)
    with np.errstate(all="ignore"):
        value = np.asarray(number).astype(dtype)
        back = value.astype(np.float64)
    same_sign = np.isnan(number) or np.signbit(back) == np.signbit(number)
    if is_integer or not same_sign or not np.array_equal(back, number, equal_nan=True):
        raise Unsupported(f"load_view_tko: padding {kind} of {element} is not supported")
    return value
