"""Views of memory at run time, and the operations that make, measure and access them.

A `TensorView` says where a tensor lies; a `TileView` says in which tiles it is read and written. Both hold integers for
each lane: int64 arrays of shape (L,), of length 1 where all lanes agree.

Elements inside a view are passed to the memory, which checks allocations, races and initialisation. Elements outside
are never accessed: a load gives the view's padding (undefined bytes where it has none), and a store skips them. They
are a finding only where the operation declares the axis to be in bounds.

All is computed for the lanes at once, from a few numbers per axis: the addresses of a tile are the address of its first
element plus a pattern, which lanes share if they share the strides; what is inside is a range along each axis. Traffic
needs only these numbers, so that a dry run never makes an array with an entry per element.

Indices, extents and strides are signed, as are the bounds that `assume` declares for them. An extent below 0 is an
empty axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.tileir.read.tree import GatherScatterViewType, Op, StridedViewType, TensorViewType, TileType, ViewType
from tilewright.tileir.run.context import Context, access_of
from tilewright.tileir.run.numbers import STORAGE, WITHOUT_ADDRESS, dtype_of, poisoned, width_of
from tilewright.tileir.run.registry import (
    Array,
    NeedsData,
    Unknown,
    Unsupported,
    implements,
    implements_in_context,
    lanes_of,
)
from tilewright.tileir.watch.arrays import DType
from tilewright.tileir.watch.findings import OUT_OF_BOUNDS


def kept(values: Array, lanes: Array) -> Array:
    """``values`` of some lanes (numbers or a mask); what all lanes share stays as it is."""
    return values if values.shape[0] == 1 else values[lanes]


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
        counts = [count for count, _ in dense]
        inside = np.all([np.broadcast_to(c > 0, first.shape) for c in counts], axis=0) if counts else True
        for alike in _groups(first, [*counts, *(stride for _, stride in dense)], inside):
            shape = [(int(kept(c, alike)[0]), int(kept(s, alike)[0])) for c, s in dense]
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
        return begin, [(kept(count, lane), kept(stride, lane)) for count, stride in dense]


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


@dataclass(frozen=True, eq=False)
class TensorView:
    """A tensor in memory: byte address of its first element, extents and strides in elements, each (L,)."""

    type: TensorViewType
    base: Array
    extents: tuple[Array, ...]
    strides: tuple[Array, ...]

    @property
    def dtype(self) -> DType:
        return np.dtype(STORAGE[self.type.element])

    def take(self, lanes: Array) -> TensorView:
        extents, strides = (tuple(kept(one, lanes) for one in numbers) for numbers in (self.extents, self.strides))
        return TensorView(self.type, kept(self.base, lanes), extents, strides)


@dataclass(frozen=True, eq=False)
class TileView:
    """A tensor as tiles; ``type`` is that of a partition, a strided or a gather/scatter view."""

    type: ViewType
    tensor: TensorView

    def take(self, lanes: Array) -> TileView:
        return TileView(self.type, self.tensor.take(lanes))

    @property
    def axes(self) -> tuple[TileAxis, ...]:
        """One for each axis of a tile. The dense axes of a gather/scatter view are indexed by element, not by tile
        (cuTile's `load_advanced_indexing`: a slice begins at "a runtime element-space offset")."""
        kind = self.type
        if isinstance(kind, GatherScatterViewType):
            return tuple(TileAxis(a, n, 1, a == kind.sparse_dim) for a, n in enumerate(kind.tile))
        steps = kind.traversal_strides if isinstance(kind, StridedViewType) else kind.tile
        return tuple(TileAxis(*axis) for axis in zip(kind.dim_map, kind.tile, steps, strict=True))


PADDINGS = {"zero": 0.0, "neg_zero": -0.0, "nan": math.nan, "pos_inf": math.inf, "neg_inf": -math.inf}


@implements_in_context("make_tensor_view")
def make_tensor_view(
    context: Context, op: Op, base: Array, dynamicShape: Sequence[Array] = (), dynamicStrides: Sequence[Array] = ()
) -> TensorView:
    """A tensor at ``base``; the dynamic extents and strides stand where the type leaves them open."""
    type_ = op.result_types[0]
    assert isinstance(type_, TensorViewType)
    if type_.element in WITHOUT_ADDRESS:
        raise Unsupported(f"make_tensor_view: elements of type {type_.element}")
    if any(isinstance(value, Unknown) for value in (base, *dynamicShape, *dynamicStrides)):
        raise NeedsData(op.name)
    extents, strides = _filled(type_.shape, dynamicShape), _filled(type_.strides, dynamicStrides)
    return TensorView(type_, base.astype(np.int64, copy=False), extents, strides)


def _filled(static: Sequence[int | None], dynamic: Sequence[Array]) -> tuple[Array, ...]:
    given = iter(dynamic)
    filled = tuple(
        np.asarray(next(given), np.int64) if number is None else np.array([number], np.int64) for number in static
    )
    assert next(given, None) is None, "more dynamic values than the type leaves open"
    return filled


@implements("make_partition_view", "make_strided_view", "make_gather_scatter_view")
def make_tile_view(op: Op, tensor_view: TensorView) -> TileView:
    """The tiles of a tensor; all that distinguishes the kinds is in the type."""
    type_ = op.result_types[0]
    assert isinstance(type_, ViewType)
    return TileView(type_, tensor_view)


@implements("get_tensor_shape")
def get_tensor_shape(op: Op, src: TensorView) -> Array | tuple[Array, ...]:
    return _shape(op, src.extents)


@implements("get_index_space_shape")
def get_index_space_shape(op: Op, src: TileView) -> Array | tuple[Array, ...]:
    """How many tiles begin inside the tensor, along each axis of the tile; of overlapping tiles too (tileiras compiles
    it to ceil(extent / step) for strides of 1 and 3 with tiles of 8)."""
    if isinstance(src.type, GatherScatterViewType):
        raise Unsupported("get_index_space_shape of a gather_scatter_view")
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
def load_view_tko(
    context: Context, op: Op, view: TileView, index: Sequence[Array], token: Sequence[None] = ()
) -> tuple[Array | Unknown, None]:
    """The tile at ``index``, (L, *tile), and a token."""
    tiles = _tiles(context, op, view, index, "load")
    if context.dry and not context.memory.is_list(view.tensor.base):
        return Unknown((1, *view.type.tile), view.tensor.dtype), None
    mask = tiles.mask()
    if mask is not None and view.type.padding is None:
        context.undefined(op)
    fill = padding(view.type.padding, view.type.tensor.element, context.poison)
    return context.memory.load(access_of(context, op), tiles.addresses(), mask, view.tensor.dtype, fill), None


@implements_in_context("store_view_tko")
def store_view_tko(
    context: Context, op: Op, tile: Array | Unknown, view: TileView, index: Sequence[Array], token: Sequence[None] = ()
) -> None:
    """Writes the elements of ``tile``, (L, *tile), that lie inside the view. Gives a token."""
    tiles = _tiles(context, op, view, index, "store")
    if not context.dry:
        assert not isinstance(tile, Unknown)
        context.memory.store(access_of(context, op), tiles.addresses(), tiles.mask(), tile)


@implements_in_context("atomic_red_view_tko")
def atomic_red_view_tko(
    context: Context, op: Op, view: TileView, index: Sequence[Array], value: Array | Unknown, token: Sequence[None] = ()
) -> None:
    """Combines the elements inside the view with ``value``, (L, *tile), each atomically. Gives a token."""
    tiles = _tiles(context, op, view, index, "atomic")
    if not context.dry:
        assert not isinstance(value, Unknown)
        mode = op.attributes["mode"]
        context.memory.atomic(access_of(context, op), tiles.addresses(), tiles.mask(), value, mode)


def _tiles(context: Context, op: Op, view: TileView, index: Sequence[Array], direction: str) -> Tiles:
    """Where the tiles at ``index`` lie: (L,), or (L, length) along a sparse axis. Counts the traffic, and reports the
    axes that are declared to be in bounds and are not. No data is looked at."""
    if any(isinstance(one, Unknown) for one in index):
        raise NeedsData(op.name)
    tensor = view.tensor
    itemsize = tensor.dtype.itemsize
    along = tuple(
        _along(axis, one, tensor.extents[axis.of], tensor.strides[axis.of] * itemsize)
        for axis, one in zip(view.axes, index, strict=True)
    )
    tiles = Tiles(tensor.base, along, itemsize)
    for one, declared in zip(tiles.along, op.attributes.get("inbounds", ()), strict=False):
        if declared and not one.complete():
            lane, place = one.first_outside()
            extent = tensor.extents[one.axis.of]
            size = int(extent[lane if len(extent) > 1 else 0])
            message = f"axis {one.axis.of} is declared in bounds: element {place} of {size}"
            context.finding(op, OUT_OF_BOUNDS, message, lane=lane)
    for total, starts, run in tiles.runs():
        context.traffic(op, direction, total * (context.lanes if tiles.lanes == 1 else 1), starts, run)
    return tiles


def padding(kind: str | None, element: str, poison: int) -> Array:
    """What a load gives outside the view, as an array of shape (): ``kind`` in the element's type, or bytes ``poison``
    where the view leaves it undefined. Raises Unsupported where the type has no such value."""
    dtype = np.dtype(STORAGE[element])
    if kind is None:
        return poisoned(dtype, poison)
    if dtype.kind in "ib" and kind != "zero":
        raise Unsupported(f"load_view_tko: padding {kind} of {element}")
    number = np.float64(PADDINGS[kind])
    with np.errstate(all="ignore"):
        value = np.asarray(number).astype(dtype)
        back = value.astype(np.float64)
    same_sign = dtype.kind in "ib" or np.isnan(number) or np.signbit(back) == np.signbit(number)
    if not (np.array_equal(back, number, equal_nan=True) and same_sign):
        raise Unsupported(f"load_view_tko: padding {kind} of {element}")
    return value
