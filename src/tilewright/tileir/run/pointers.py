"""Handlers for the operations on pointers: pointer arithmetic, loads, stores and atomic updates.

Elements that are masked out are never accessed. A masked load returns the padding value in their place. Without a
padding value, these elements are undefined, so the load returns poison bytes. A masked read-modify-write returns poison
bytes too. Elements of 4 bits are refused because they have no address of their own. tf32 is refused because its layout
in memory is not defined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from tilewright.tileir.read.tree import Op, PointerType
from tilewright.tileir.run.context import Context, access_of
from tilewright.tileir.run.numbers import WITHOUT_ADDRESS, dtype_of, poisoned
from tilewright.tileir.run.registry import Elements, NeedsData, Unknown, Unsupported, implements, implements_in_context
from tilewright.tileir.run.views import kept
from tilewright.tileir.watch.arrays import Array, DType

SORT_BELOW = 4  # if the runs have fewer elements on average, the addresses are sorted to make longer runs
LENGTHS = 8  # with more different lengths of runs than this, traffic is counted element by element
Loaded: TypeAlias = "tuple[Elements, None]"  # elements and a token
DIRECTIONS = {"source": "load", "destination": "store", "pointers": "atomic"}  # by the name of the pointer operand


def pointee_of(op: Op, operand: str | None = None) -> DType:
    """Returns the NumPy type of the elements that an operand's pointers (by default the result's) point to. Raises
    Unsupported for element types that have no address."""
    pointer = op.tile(operand).element
    assert isinstance(pointer, PointerType)
    if pointer.pointee in WITHOUT_ADDRESS:
        raise Unsupported(f"{op.name}: elements of type {pointer.pointee} in memory are not supported")
    return dtype_of(pointer.pointee)


@implements("offset")
def offset(op: Op, ptr: Array, offset: Array) -> Array:
    """Adds a signed number of elements to each pointer."""
    width = pointee_of(op).itemsize
    return np.asarray(ptr + offset.astype(np.int64) * np.int64(width))


@implements_in_context("get_global")
def get_global(context: Context, op: Op) -> Array:
    name = op.attributes["name"].lstrip("@")
    return np.array([context.memory.globals[name].address], np.int64)


@implements_in_context("alloca")
def alloca(context: Context, op: Op) -> Array:
    """Allocates memory for each block. Returns the addresses, one for each of the L blocks of the batch. Every
    execution allocates again. Other blocks may access the memory only if the operation has the flag ``global``."""
    width = pointee_of(op).itemsize
    count, alignment = int(op.attributes["num_elem"]), int(op.attributes["alignment"])
    shared = bool(op.attributes.get("global_") or op.attributes.get("global"))
    name = f"alloca {op.results[0]}" if op.results else "alloca"
    local = context.memory.allocate_local(name, (count, width), alignment, context.blocks, private=not shared)
    return local.address + np.arange(context.lanes, dtype=np.int64) * local.strides[0]


@implements_in_context("load_ptr_tko")
def load_ptr_tko(
    context: Context, op: Op, source: Elements, mask: Elements | None = None, paddingValue: Elements | None = None
) -> Loaded:
    """Loads the elements that ``source``, shape (L, *tile), points to. Returns the elements and a token."""
    if not isinstance(source, Unknown):
        data = context.sampled(lambda lanes: kept(source, lanes), pointee_of(op, "source"))
        if data is not None:
            return _padded(context, data, mask, paddingValue), None
    addresses, chosen, dtype = _accessed(context, op, "source", source, mask)
    if context.dry and chosen is not None and len(chosen) > 1:
        context.decided(f"{op.results[0]} mask", np.packbits(chosen.reshape(len(chosen), -1), axis=1))
    if context.dry and not context.loads(op, addresses, chosen):
        return Unknown((1, *addresses.shape[1:]), dtype), None
    assert not isinstance(paddingValue, Unknown)
    if paddingValue is None and chosen is not None and not chosen.all():
        paddingValue = poisoned(dtype, context.undefined(op))
    return context.memory.load(access_of(context, op), addresses, chosen, dtype, paddingValue), None


@implements_in_context("store_ptr_tko")
def store_ptr_tko(
    context: Context, op: Op, destination: Elements, value: Elements, mask: Elements | None = None
) -> None:
    """Stores ``value``, shape (L, *tile), where the pointers point. Returns None, because tokens are None."""
    addresses, chosen, _ = _accessed(context, op, "destination", destination, mask)
    if not context.dry:
        assert not isinstance(value, Unknown)
        context.memory.store(access_of(context, op), addresses, chosen, value)


@implements_in_context("atomic_rmw_tko", "atomic_cas_tko")
def atomic(
    context: Context, op: Op, pointers: Elements, mask: Elements | None = None, *, cmp: Elements | None = None,
    **values: Elements,
) -> Loaded:  # fmt: skip
    """Combines each element with ``arg``, or compares and swaps.

    With ``cmp``, an element is replaced by ``val`` if its bits equal ``cmp``. Returns the elements before the update
    (``cmp`` where masked out), and a token.
    """
    addresses, chosen, dtype = _accessed(context, op, "pointers", pointers, mask)
    if context.dry:
        return Unknown((1, *addresses.shape[1:]), dtype), None
    value, mode = (values["arg"], op.attributes["mode"]) if cmp is None else (values["val"], "cas")
    assert not isinstance(value, Unknown) and not isinstance(cmp, Unknown)
    return context.memory.atomic(access_of(context, op), addresses, chosen, value, mode, cmp), None


def _padded(context: Context, data: Elements, mask: Elements | None, padding: Elements | None) -> Elements:
    """Returns sampled data. If blocks differ in the padding or in the loaded parts, masked-out elements are padded."""
    if isinstance(data, Unknown) or mask is None or isinstance(mask, Unknown) or isinstance(padding, Unknown):
        return data
    if padding is None:
        padding = poisoned(data.dtype, context.poison)
    return np.where(mask, data, padding) if context.samples_parts or padding.shape[:1] > (1,) else data


def _accessed(
    context: Context, op: Op, operand: str, addresses: Elements, mask: Elements | None
) -> tuple[Array, Array | None, DType]:
    """Counts the traffic of an access. Returns the addresses, the mask or None, and the type of the elements. Raises
    NeedsData if a dry run does not know the addresses or the mask."""
    dtype = pointee_of(op, operand)
    if isinstance(addresses, Unknown) or isinstance(mask, Unknown):
        raise NeedsData(op.name)
    chosen, rows, width = addresses.reshape(-1), addresses.shape[0], dtype.itemsize
    if mask is not None and not mask.all():
        shape = np.broadcast_shapes(addresses.shape, mask.shape)
        chosen, rows = np.broadcast_to(addresses, shape)[np.broadcast_to(mask, shape)], shape[0]
    total = chosen.size * width * (context.lanes if rows == 1 else 1)
    for starts, run in _runs(chosen, width):
        context.traffic(op, DIRECTIONS[operand], total, starts, run)
        total = 0  # all runs belong to one access, whose bytes count once
    return addresses, mask, dtype


def _first_of_runs(addresses: Array, width: int) -> Array:
    """Returns the positions in ``addresses`` where a contiguous run begins. ``width``: bytes of an element."""
    opens = np.empty(addresses.size, np.bool_)
    opens[0] = True
    np.not_equal(addresses[1:] - addresses[:-1], width, out=opens[1:])
    return np.flatnonzero(opens)


def _runs(addresses: Array, width: int) -> Iterator[tuple[Array, int]]:
    """Yields the contiguous runs of the elements, grouped by length: their start addresses, and the length in bytes."""
    if addresses.size < 2:
        if addresses.size:
            yield addresses, width
        return
    first = _first_of_runs(addresses, width)
    if len(first) * SORT_BELOW > addresses.size:
        addresses = np.sort(addresses)  # ten times as fast as np.unique, which hashes
        addresses = addresses[np.concatenate([[True], np.diff(addresses) > 0])]
        first = _first_of_runs(addresses, width)
    lengths = np.diff(np.append(first, addresses.size)) * width
    distinct = np.unique(lengths)
    if len(distinct) > LENGTHS:
        yield addresses, width
        return
    for length in distinct:
        yield addresses[first[lengths == length]], int(length)
