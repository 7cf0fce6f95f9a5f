"""Views of memory at run time, and the operations that make, measure and access them.

A `TensorView` says where a tensor lies; a `TileView` says in which tiles it is read and written. Both hold integers for
each lane: int64 arrays of shape (L,), of length 1 where all lanes agree.

Elements inside a view are passed to the memory, which checks allocations, races and initialisation. Elements outside
are never accessed: a load gives the view's padding (undefined bytes where it has none), and a store skips them. They
are a finding only where the operation declares the axis to be in bounds.

Indices, extents and strides are signed, as are the bounds that `assume` declares for them. An extent below 0 is an
empty axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tilewright.tileir.read.tree import GatherScatterViewType, Op, StridedViewType, TensorViewType, TileType, ViewType
from tilewright.tileir.run.context import Context, access_of
from tilewright.tileir.run.numbers import STORAGE, WITHOUT_ADDRESS, dtype_of, poisoned, width_of
from tilewright.tileir.run.registry import Array, NeedsData, Unknown, Unsupported, implements, implements_in_context
from tilewright.tileir.run.view_access import TileAxis, Tiles, tiles_at
from tilewright.tileir.watch.arrays import DType
from tilewright.tileir.watch.findings import OUT_OF_BOUNDS


def kept(values: Array, lanes: Array) -> Array:
    """``values`` of some lanes (numbers or a mask); what all lanes share stays as it is."""
    return values if values.shape[0] == 1 else values[lanes]


@dataclass(frozen=True, eq=False)
class TensorView:
    """A tensor in memory: byte address of its first element, extents and strides in elements, each (L,)."""

    type: TensorViewType
    base: Array
    extents: tuple[Array, ...]
    strides: tuple[Array, ...]

    @property
    def dtype(self) -> DType:
        """Of its elements."""
        return np.dtype(STORAGE[self.type.element])

    def take(self, lanes: Array) -> TensorView:
        """The same view for these lanes only."""
        extents = tuple(kept(extent, lanes) for extent in self.extents)
        strides = tuple(kept(stride, lanes) for stride in self.strides)
        return TensorView(self.type, kept(self.base, lanes), extents, strides)


@dataclass(frozen=True, eq=False)
class TileView:
    """A tensor as tiles; ``type`` is that of a partition, a strided or a gather/scatter view."""

    type: ViewType
    tensor: TensorView

    def take(self, lanes: Array) -> TileView:
        """The same view for these lanes only."""
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

View: TypeAlias = TensorView | TileView


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
    """The tensor's extents, in the order of its axes."""
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
    tiles = _tiles(context, op, view, index)
    _report_traffic(context, op, tiles, "load")
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
    tiles = _tiles(context, op, view, index)
    _report_traffic(context, op, tiles, "store")
    if not context.dry:
        assert not isinstance(tile, Unknown)
        context.memory.store(access_of(context, op), tiles.addresses(), tiles.mask(), tile)


@implements_in_context("atomic_red_view_tko")
def atomic_red_view_tko(
    context: Context, op: Op, view: TileView, index: Sequence[Array], value: Array | Unknown, token: Sequence[None] = ()
) -> None:
    """Combines the elements inside the view with ``value``, (L, *tile), each atomically. Gives a token."""
    tiles = _tiles(context, op, view, index)
    _report_traffic(context, op, tiles, "atomic")
    if not context.dry:
        assert not isinstance(value, Unknown)
        mode = op.attributes["mode"]
        context.memory.atomic(access_of(context, op), tiles.addresses(), tiles.mask(), value, mode)


def _tiles(context: Context, op: Op, view: TileView, index: Sequence[Array]) -> Tiles:
    """Where the tiles at ``index`` lie; reports the axes that are declared to be in bounds and are not."""
    if any(isinstance(one, Unknown) for one in index):
        raise NeedsData(op.name)
    tensor = view.tensor
    tiles = tiles_at(view.axes, index, tensor.base, tensor.extents, tensor.strides, tensor.dtype.itemsize)
    for one, declared in zip(tiles.along, op.attributes.get("inbounds", ()), strict=False):
        if declared and not one.complete():
            lane, place = one.first_outside()
            extent = tensor.extents[one.axis.of]
            size = int(extent[lane if len(extent) > 1 else 0])
            message = f"axis {one.axis.of} is declared in bounds: element {place} of {size}"
            context.finding(op, OUT_OF_BOUNDS, message, lane=lane)
    return tiles


def _report_traffic(context: Context, op: Op, tiles: Tiles, direction: str) -> None:
    repeat = context.lanes if tiles.lanes == 1 else 1
    for total, starts, run in tiles.runs():
        context.traffic(op, direction, repeat * total, starts, run)


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
    same = np.array_equal(back, number, equal_nan=True) and (
        dtype.kind in "ib" or np.isnan(number) or bool(np.signbit(back) == np.signbit(number))
    )
    if not same:
        raise Unsupported(f"load_view_tko: padding {kind} of {element}")
    return value
