"""Operations on pointers: moving them, and reading, writing and updating what they point to.

Masked-out elements are never accessed. A masked load gives the padding where there is one; without one, as for a masked
read-modify-write, the value is undefined here and so made of poison. Order and scope go to the memory with the access.
Elements of four bits have no address of their own and are refused, as is tf32, for which Tile IR does not say how it
lies in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.tileir.read.tree import Op, PointerType
from tilewright.tileir.run.context import Context, access_of
from tilewright.tileir.run.numbers import WITHOUT_ADDRESS, dtype_of
from tilewright.tileir.run.registry import Array, NeedsData, Unknown, Unsupported, implements, implements_in_context
from tilewright.tileir.watch.arrays import DType

WORTH_SORTING = 4
"""Addresses whose runs are shorter than this on average are sorted, which makes fewer of them."""
LENGTHS = 8
"""Contiguous runs of more different lengths than this are reported element by element."""


def pointee_of(op: Op, operand: str | None = None) -> DType:
    """The storage type of what a tile of pointers (the result, or an operand) points to. Raises Unsupported for what
    has no address."""
    pointer = op.tile(operand).element
    assert isinstance(pointer, PointerType)
    if pointer.pointee in WITHOUT_ADDRESS:
        raise Unsupported(f"{op.name}: elements of type {pointer.pointee} in memory")
    return dtype_of(pointer.pointee)


@implements("offset")
def offset(op: Op, ptr: Array, offset: Array) -> Array:
    """Each pointer moved by so many elements (signed)."""
    width = pointee_of(op).itemsize
    return np.asarray(ptr + offset.astype(np.int64) * np.int64(width))


@implements_in_context("get_global")
def get_global(context: Context, op: Op) -> Array:
    name = op.attributes["name"].lstrip("@")
    return np.array([context.memory.globals[name].address], np.int64)


@implements_in_context("alloca")
def alloca(context: Context, op: Op) -> Array:
    """Fresh memory for each block, (L,) addresses; every execution gets memory of its own. Only with the flag
    ``global`` may other blocks touch it."""
    width = pointee_of(op).itemsize
    count, alignment = int(op.attributes["num_elem"]), int(op.attributes["alignment"])
    shared = bool(op.attributes.get("global_") or op.attributes.get("global"))
    name = f"alloca {op.results[0]}" if op.results else "alloca"
    local = context.memory.allocate_local(name, (count, width), alignment, context.blocks, private=not shared)
    return local.address + np.arange(context.lanes, dtype=np.int64) * local.strides[0]


@implements_in_context("load_ptr_tko")
def load_ptr_tko(
    context: Context,
    op: Op,
    source: Array,
    mask: Sequence[Array] = (),
    paddingValue: Sequence[Array | Unknown] = (),
    token: Sequence[None] = (),
) -> tuple[Array | Unknown, None]:
    """What each pointer of ``source``, (L, *tile), points to, and a token."""
    dtype, chosen = _accessed(context, op, "load", source, mask)
    if context.dry:
        return Unknown((1, *source.shape[1:]), dtype), None
    fill = paddingValue[0] if paddingValue else None
    assert not isinstance(fill, Unknown)
    return context.memory.load(access_of(context, op), source, chosen, dtype, fill), None


@implements_in_context("store_ptr_tko")
def store_ptr_tko(
    context: Context,
    op: Op,
    destination: Array,
    value: Array | Unknown,
    mask: Sequence[Array] = (),
    token: Sequence[None] = (),
) -> None:
    """Writes ``value``, (L, *tile), to where each pointer points. Gives a token."""
    _, chosen = _accessed(context, op, "store", destination, mask)
    if not context.dry:
        assert not isinstance(value, Unknown)
        context.memory.store(access_of(context, op), destination, chosen, value)


@implements_in_context("atomic_rmw_tko")
def atomic_rmw_tko(
    context: Context,
    op: Op,
    pointers: Array,
    arg: Array | Unknown,
    mask: Sequence[Array] = (),
    token: Sequence[None] = (),
) -> tuple[Array | Unknown, None]:
    """Combines each element with ``arg``; what was there, and a token."""
    return _atomic(context, op, pointers, arg, None, mask)


@implements_in_context("atomic_cas_tko")
def atomic_cas_tko(
    context: Context,
    op: Op,
    pointers: Array,
    cmp: Array | Unknown,
    val: Array | Unknown,
    mask: Sequence[Array] = (),
    token: Sequence[None] = (),
) -> tuple[Array | Unknown, None]:
    """Replaces each element by ``val`` where its bits are those of ``cmp``; what was there (``cmp`` where masked out),
    and a token."""
    return _atomic(context, op, pointers, val, cmp, mask)


def _atomic(
    context: Context,
    op: Op,
    pointers: Array,
    values: Array | Unknown,
    compare: Array | Unknown | None,
    mask: Sequence[Array],
) -> tuple[Array | Unknown, None]:
    dtype, chosen = _accessed(context, op, "atomic", pointers, mask)
    if context.dry:
        return Unknown((1, *pointers.shape[1:]), dtype), None
    assert not isinstance(values, Unknown) and not isinstance(compare, Unknown)
    mode = op.attributes["mode"] if compare is None else "cas"
    return context.memory.atomic(access_of(context, op), pointers, chosen, values, mode, compare), None


def _accessed(
    context: Context, op: Op, direction: str, addresses: Array, masks: Sequence[Array]
) -> tuple[DType, Array | None]:
    """The type of the elements, and the mask, if any. Counts the bytes of the elements that are not masked out. Raises
    NeedsData where a dry run does not know what is accessed."""
    dtype = pointee_of(op, {"load": "source", "store": "destination", "atomic": "pointers"}[direction])
    if any(isinstance(one, Unknown) for one in (addresses, *masks)):
        raise NeedsData(op.name)
    mask, width = masks[0] if masks else None, dtype.itemsize
    chosen, rows = addresses.reshape(-1), addresses.shape[0]
    if mask is not None:
        shape = np.broadcast_shapes(addresses.shape, mask.shape)
        chosen, rows = np.broadcast_to(addresses, shape)[np.broadcast_to(mask, shape)], shape[0]
    total = chosen.size * width * (context.lanes if rows == 1 else 1)
    for starts, run in _runs(chosen, width):
        context.traffic(op, direction, total, starts, run)
        total = 0  # the runs are one access: its bytes count once
    return dtype, mask


def _first_of_runs(addresses: Array, width: int) -> Array:
    """Where an address does not follow on the one before it."""
    return np.flatnonzero(np.concatenate([[True], np.diff(addresses) != width]))


def _runs(addresses: Array, width: int) -> Iterator[tuple[Array, int]]:
    """The contiguous runs that the elements make: their starts, and their length in bytes."""
    if not addresses.size:
        return
    first = _first_of_runs(addresses, width)
    if len(first) * WORTH_SORTING > addresses.size:
        addresses = np.sort(addresses)  # np.unique hashes, which takes ten times as long
        addresses = addresses[np.concatenate([[True], np.diff(addresses) > 0])]
        first = _first_of_runs(addresses, width)
    lengths = np.diff(np.append(first, addresses.size)) * width
    distinct = np.unique(lengths)
    if len(distinct) > LENGTHS:
        yield addresses, width
        return
    for length in distinct:
        yield addresses[first[lengths == length]], int(length)
