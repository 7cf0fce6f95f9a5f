"""Holds the memory of an interpreted kernel, and makes every access to it.

Each tensor lies at a synthetic address, far from its neighbours. So an access outside a tensor does not hit another
tensor. A tensor may be a strided or misaligned part of a larger array. The other bytes of the array exist, but belong
to no tensor. `load`, `store` and `atomic` take the addresses of whole tiles, and handle all blocks and elements at
once. If the memory is watched, each access is recorded in the tensor's shadow (`watch`), which finds races.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tilewright.tileir.read.tree import TileType
from tilewright.tileir.run import atomics
from tilewright.tileir.run.registry import Unsupported
from tilewright.tileir.watch.allocations import WORDS, Allocation, extent_of, granules_of
from tilewright.tileir.watch.arrays import Array, DType, Indices, Mask
from tilewright.tileir.watch.exchanges import Exchanges
from tilewright.tileir.watch.findings import MISALIGNED, OUT_OF_BOUNDS, Findings
from tilewright.tileir.watch.shadow import Blocks, Shadow
from tilewright.tileir.watch.watch import READ, UPDATE, WRITE, Access, Touched, Watch

__all__ = ["Access", "Allocation", "Memory"]

BASE = 1 << 40
GAP = 1 << 20  # at least this many bytes without memory lie between two allocations
ALIGNMENT = 256  # the address of every allocation is a multiple of this, as with cudaMalloc
_SUB_BYTE = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")


class _Picked(NamedTuple):
    """The elements of a tile that an access does not mask out: the picked elements.

    how: READ, WRITE or UPDATE.
    width: bytes of an element.
    shape: (rows, *tile). There is one row if all blocks access the same elements.
    where: positions of the picked elements in ``shape``; None if all are picked.
    blocks: the block of each picked element, or the only block; None if all blocks access all picked elements.
    """

    access: Access
    how: str
    width: int
    shape: tuple[int, ...]
    addresses: Indices
    where: Indices | None
    blocks: Blocks | None

    def of(self, values: Array) -> Array:
        """Returns the picked elements as an array with one axis. ``values`` must broadcast to ``shape``."""
        flat = np.broadcast_to(values, self.shape).reshape(-1)
        return flat if self.where is None else flat[self.where]

    def elements(self) -> Indices:
        """Returns the position of each picked element in the tile of its block."""
        return (np.arange(len(self.addresses)) if self.where is None else self.where) % int(np.prod(self.shape[1:]))

    def touched(self, allocation: Allocation, of: Indices | None = None) -> Touched:
        """Returns the access to the picked elements in ``allocation``. ``of``: their positions; by default all."""
        blocks = self.blocks if of is None or not isinstance(self.blocks, np.ndarray) else self.blocks[of]
        addresses = self.addresses if of is None else self.addresses[of]
        return Touched(self.access, allocation, addresses - allocation.start, self.width, self.how, blocks)


class _Part(NamedTuple):
    """The picked elements in one allocation, either all aligned or all misaligned. ``of``: their positions among all
    picked elements; None for all."""

    touched: Touched
    of: Indices | None
    aligned: bool

    def of_these(self, values: Array) -> Array:
        """Returns the entries of ``values`` for the elements of this part. ``values`` has all picked elements."""
        return values if self.of is None else values[self.of]

    def bits(self) -> Array:
        """Returns the bits of the elements in memory."""
        return self.touched.allocation.gather(self.touched.offsets, self.touched.width, self.aligned)


class Memory:
    """The memory of one run.

    watch: whether to look for races and for reads of memory that was never written.
    poison: the byte that undefined values consist of.
    version: a number that grows with each store, and with each atomic update that changes memory.
    exchanges: the elements that threads of a block exchange; None if the code that runs has no threads.
    ordered: the writes, and the reads with a memory order, since `Turns` last took this list. Each item is (whether the
        access writes, first address, last address). None if no blocks wait for one another.
    """

    def __init__(self, watch: bool = True, poison: int = 0xFF) -> None:
        self.watch, self.poison = watch, poison
        self.findings = Findings()
        self.globals: dict[str, Allocation] = {}
        self.version = 0
        self.ordered: list[tuple[bool, int, int]] | None = None
        self.exchanges: Exchanges | None = None
        self.allocations: list[Allocation] = []
        self.lists: list[Allocation] = []  # allocated and filled before the kernel runs, so a dry run may read them
        self._starts: list[int] = []
        self._known: set[int] = set()  # first addresses of the allocations from which a dry run may load
        self._data: dict[int, Callable[[], Array | None]] = {}  # by first address of a reserved tensor
        self._watch = Watch(self.findings)
        self._next = BASE

    def allocate(
        self,
        name: str,
        array: Array,
        *,
        written: bool | Mask = True,
        within: Array | None = None,
        same_memory_as: Allocation | None = None,
        may_alias: bool = False,
    ) -> Allocation:
        """Gives ``array`` an address. The kernel reads and writes the array itself.

        written: whether the elements have values before the kernel runs; may be an array with an entry per element.
        within: the contiguous array of which ``array`` is a view, if ``array`` is strided, misaligned, or has guard
            zones. The first byte of ``within`` gets an aligned address, so a misaligned view stays misaligned. Bytes
            that are not elements of ``array`` are out of bounds.
        same_memory_as: another tensor in the same memory, whose ``within`` is used. The new tensor gets different
            addresses, so the sanitizer knows through which tensor a kernel accesses the memory.
        may_alias: whether the kernel allows this tensor to overlap others in the same memory.
        """
        whole = array if within is None else within
        assert same_memory_as or whole.flags.c_contiguous, "a strided tensor needs `within`, the array around it"
        raw = same_memory_as.raw if same_memory_as else whole.reshape(-1).view(np.uint8)
        offset = int(array.__array_interface__["data"][0] - raw.__array_interface__["data"][0])
        low, high = extent_of(array.shape, array.strides, array.itemsize)
        assert offset + low >= 0 and offset + high <= len(raw), "the tensor does not lie in the memory given"
        shadow = same_memory_as.shadow if same_memory_as else Shadow(len(raw), array.itemsize, offset)
        new = Allocation(
            name, raw, self._place(len(raw)), offset + low, offset + high, offset, array.shape, array.strides,
            array.itemsize, shadow,
        )  # fmt: skip
        if shadow.fit(array.itemsize, offset):
            for other in self.allocations:
                if other.shadow is shadow:
                    other.gaps = self._gaps(other)
        if self.watch and new.nbytes and not np.all(written):
            granules, per_element = granules_of(new)
            shadow.unwrite(granules[~np.repeat(np.broadcast_to(written, array.shape), per_element)])
        return self._entered(new, may_alias)

    def reserve(self, name: str, size: int, data: Callable[[], Array | None] = lambda: None) -> Allocation:
        """Gives a tensor of ``size`` bytes an address, but no memory, for a dry run.

        data: returns the elements, or None if they are not known. Called if addresses or control flow depend on them.
        """
        new = Allocation(name, np.empty(0, np.uint8), self._place(size), 0, size, 0, (size,), (1,), 1, Shadow(0, 1, 0))
        self._data[new.start] = data
        return self._entered(new, may_alias=False)

    def has_data(self, addresses: Array) -> bool:
        """Tells whether a dry run may load from all of ``addresses``. Lists always have data. The data of a reserved
        tensor is made here, when it is first needed."""
        for place in np.unique(np.searchsorted(np.array(self._starts), addresses, side="right") - 1):
            if place < 0:
                return False
            allocation = self.allocations[place]
            if (data := self._data.pop(allocation.start, None)) and (elements := data()) is not None:
                allocation.raw = np.ascontiguousarray(elements).reshape(-1).view(np.uint8)
                self._known.add(allocation.start)
            if allocation.start not in self._known:
                return False
        return True

    def next_launch(self) -> None:
        """Prepares for the next kernel. Memory keeps its content, and all accesses so far count as earlier."""
        self._watch.restart()
        for allocation in self.allocations:
            allocation.shadow.restart()

    def allocate_list(self, rows: Sequence[Sequence[int]]) -> Allocation:
        """Allocates a list argument as a launch passes it: rows of 64-bit integers, known before the kernel runs."""
        self.lists.append(self.allocate(f"list {len(self.lists)}", np.array(rows, np.int64)))
        self._known.add(self.lists[-1].start)
        return self.lists[-1]

    def allocate_local(
        self, name: str, elements: tuple[int, int], alignment: int, blocks: Array, private: bool = True
    ) -> Allocation:
        """Allocates uninitialised memory with a part for each of ``blocks``.

        elements: the elements of a part: (count, bytes of each).
        private: whether only the block itself may access its part.
        Parts start ``strides[0]`` bytes apart. The bytes between them belong to no block.
        """
        count, width = elements
        alignment = max(alignment, ALIGNMENT)
        step = -(-(count * width + ALIGNMENT) // alignment) * alignment
        raw = np.full(step * len(blocks), self.poison, np.uint8)
        new = Allocation(
            name, raw, self._place(len(raw), alignment), 0, step * (len(blocks) - 1) + count * width, 0,
            (len(blocks), count), (step, width), width, Shadow(len(raw), width, 0),
        )  # fmt: skip
        if private:
            new.owners = np.repeat(np.asarray(blocks, np.int32) + np.int32(1), step // width)
        if self.watch:
            new.shadow.unwrite(granules_of(new)[0])
        return self._entered(new, may_alias=False)

    def _place(self, size: int, alignment: int = ALIGNMENT) -> int:
        alignment = max(alignment, ALIGNMENT)
        start = -(-self._next // alignment) * alignment
        self._next = start + size + GAP
        return start

    def _entered(self, new: Allocation, may_alias: bool) -> Allocation:
        new.bit = new.shadow.join(new.name, may_alias)
        new.gaps = self._gaps(new)
        self.allocations.append(new)
        self._starts.append(new.start)
        return new

    def _gaps(self, allocation: Allocation) -> Mask | None:
        if allocation.high - allocation.low == allocation.nbytes:
            return None
        gaps = np.ones(allocation.shadow.size, np.bool_)
        gaps[granules_of(allocation)[0]] = False
        return gaps

    def load(
        self, access: Access, addresses: Array, mask: Array | None, dtype: npt.DTypeLike, fill: Array | None = None
    ) -> Array:
        """Returns the elements at ``addresses`` (rows, *tile), with one row if all blocks read the same elements.

        Elements that are masked out are ``fill``, or poison without ``fill``. Elements outside all memory are poison.
        """
        dtype = np.dtype(dtype)
        picked = _picked(access, READ, dtype, addresses, mask, () if fill is None else np.shape(fill))
        found = None
        if access.order != "weak":
            self._note(False, picked.addresses)
        for part in self._parts(picked):
            self.show(part, picked)
            if part.of is None:
                found = part.bits()
                break
            if found is None:
                found = self._poisoned(len(picked.addresses), WORDS[picked.width])
            found[part.of] = part.bits()
        bits = self._poisoned(len(picked.addresses), WORDS[picked.width]) if found is None else found
        if dtype == np.bool_:
            bits = (bits != 0).view(np.uint8)
        return self._filled(picked, bits.view(dtype), None if fill is None else np.asarray(fill, dtype))

    def _filled(self, picked: _Picked, found: Array, fill: Array | None) -> Array:
        """Returns a whole tile. Picked elements are ``found``, all other elements are ``fill`` or poison."""
        if picked.where is None:
            return found.reshape(picked.shape)
        if fill is None:
            result = self._poisoned(int(np.prod(picked.shape)), found.dtype)
        else:
            result = np.array(np.broadcast_to(fill, picked.shape)).reshape(-1)
        result[picked.where] = found
        return result.reshape(picked.shape)

    def store(self, access: Access, addresses: Array, mask: Array | None, values: Array) -> None:
        """Writes ``values`` where ``mask`` is true (None: everywhere). Drops elements outside all memory. If several
        blocks write an element, the last block's value stays."""
        picked = _picked(access, WRITE, values.dtype, addresses, mask, values.shape)
        bits = picked.of(values).view(WORDS[picked.width])
        for part in self._parts(picked):
            new = part.of_these(bits)
            changed = part.bits() != new if self.watch else None
            part.touched.allocation.scatter(part.touched.offsets, new, part.aligned)
            self.version += 1
            self._note(True, part.touched.allocation.start + part.touched.offsets)
            lost = part.bits() != new if self.watch else None
            self.show(part._replace(touched=replace(part.touched, changed=changed, lost=lost)), picked)
            if lost is not None and lost.any():
                self._watch.written_twice(part.touched, np.flatnonzero(lost))

    def atomic(
        self, access: Access, addresses: Array, mask: Array | None, values: Array, mode: str,
        compare: Array | None = None,
    ) -> Array:  # fmt: skip
        """Updates the elements at ``addresses`` as ``mode`` says. The mode ``cas`` compares with ``compare``.

        Several updates of one element are made one after another: block by block, and within a block's tile in
        row-major order. Returns the element before each update, (L, *tile), undefined if the operation has no such
        result. Where ``mask`` is false, the result is ``compare``, or poison without ``compare``.
        """
        dtype, lanes = values.dtype, (len(access.blocks), *(1,) * (addresses.ndim - 1))
        picked = _picked(access, UPDATE, dtype, addresses, mask, np.broadcast_shapes(values.shape, lanes))
        atomics.check(access.op.name, mode, dtype)
        found = self._poisoned(len(picked.addresses), dtype)
        before = self.version
        operand, expected = picked.of(values), None if compare is None else picked.of(compare)
        for part in self._parts(picked):
            comparands = None if expected is None else part.of_these(expected)
            old, wrote = self._update(part, part.of_these(operand), mode, comparands)
            found[slice(None) if part.of is None else part.of] = old
            self.show(part._replace(touched=replace(part.touched, wrote=wrote)), picked)
        self._note(False, picked.addresses)
        if self.version != before:
            self._note(True, picked.addresses)
        return self._filled(picked, found, compare)

    def show(self, part: _Part, picked: _Picked) -> None:
        if self.watch:
            self._watch.show(part.touched)
        if self.exchanges is not None:
            self.exchanges.show(part.touched, picked.shape[1:], part.of_these(picked.elements()))

    def _note(self, writes: bool, addresses: Indices) -> None:
        if self.ordered is not None and len(addresses):
            self.ordered.append((writes, int(addresses.min()), int(addresses.max())))

    def _update(self, part: _Part, values: Array, mode: str, compare: Array | None) -> tuple[Array, Array]:
        """Returns the elements before the updates, and which updates wrote."""
        touched, allocation = part.touched, part.touched.allocation
        needed = any(isinstance(kind, TileType) for kind in touched.access.op.result_types)
        if part.aligned:
            elements, at = allocation.words(touched.width).view(values.dtype), touched.offsets // touched.width
            before = elements[at]
            old, wrote = atomics.update(elements, at, values, mode, compare, needed)
            after = elements[at]
        else:
            distinct, at = np.unique(touched.offsets, return_inverse=True)
            before = allocation.gather(distinct, touched.width, False)
            after = before.copy().view(values.dtype)
            old, wrote = atomics.update(after, at.reshape(-1), values, mode, compare, needed)
            allocation.scatter(distinct, after.view(WORDS[touched.width]), False)
        self.version += before.tobytes() != after.tobytes()
        return old, wrote

    def _poisoned(self, count: int, dtype: DType) -> Array:
        return np.full(count * dtype.itemsize, self.poison, np.uint8).view(dtype)

    def _parts(self, picked: _Picked) -> Iterator[_Part]:
        """Yields the picked elements inside tensors, by allocation. Reports elements that are outside or misaligned."""
        addresses, width = picked.addresses, picked.width
        if not len(addresses):
            return
        place = bisect.bisect_right(self._starts, int(addresses[0])) - 1
        if place >= 0:  # the usual case: all elements are in one dense tensor
            touched = picked.touched(self.allocations[place])
            offsets, allocation = touched.offsets, touched.allocation
            aligned = width == 1 or not int(np.bitwise_or.reduce(offsets)) & (width - 1)
            if aligned and allocation.low <= int(offsets.min()) and int(offsets.max()) <= allocation.high - width:
                foreign = _foreign(touched)
                if foreign is None or not foreign.any():
                    yield _Part(touched, None, True)
                    return
        starts = np.array([allocation.start - GAP // 2 for allocation in self.allocations], np.int64)
        places = np.maximum(np.searchsorted(starts, addresses, side="right") - 1, 0)
        for number in np.unique(places) if self.allocations else ():
            of = np.flatnonzero(places == number)
            touched = picked.touched(self.allocations[number], of)
            outside = _outside(touched)
            if outside.any():
                allocation = touched.allocation
                beyond = f", outside its shape {allocation.shape}" if allocation.owners is None else ""
                self._watch.report(OUT_OF_BOUNDS, touched, np.flatnonzero(outside), beyond)
            misaligned = ~outside & (touched.offsets & (width - 1) != 0)
            if misaligned.any():
                because = f", at an address that is no multiple of {width}"
                self._watch.report(MISALIGNED, touched, np.flatnonzero(misaligned), because)
            for some, aligned in ((~outside & ~misaligned, True), (misaligned, False)):
                if some.any():
                    yield _Part(touched.some(np.flatnonzero(some)), of[some], aligned)


def _outside(touched: Touched) -> Mask:
    """Returns a mask of the accesses that are partly outside the tensor, or hit an element of another block."""
    allocation, offsets = touched.allocation, touched.offsets
    outside = (offsets < allocation.low) | (offsets > allocation.high - touched.width)
    inside = np.flatnonzero(~outside)
    if (foreign := _foreign(touched.some(inside))) is not None:
        outside[inside] = foreign
    return np.asarray(outside)


def _foreign(touched: Touched) -> Mask | None:
    """Returns a mask of the accesses that hit a gap between elements, or an element of another block. All accesses must
    lie inside the tensor. Returns None if the allocation has no gaps and no owners (`Allocation`)."""
    allocation = touched.allocation
    if allocation.gaps is None and allocation.owners is None:
        return None
    granules, per_element = allocation.shadow.granules(touched.offsets, touched.width)
    wrong = np.zeros(len(granules), np.bool_)
    if allocation.gaps is not None:
        wrong |= allocation.gaps[granules]
    if allocation.owners is not None:
        wrong |= allocation.owners[granules] != np.repeat(touched.blocks_of_all(), per_element)
    return np.asarray(wrong.reshape(-1, per_element).any(axis=1))


def _picked(
    access: Access, how: str, dtype: DType, addresses: Array, mask: Array | None, shape: tuple[int, ...]
) -> _Picked:
    """Returns the elements of a tile for which ``mask`` is true. ``addresses`` and ``mask`` broadcast with ``shape``.
    Raises Unsupported for element types that the memory cannot hold."""
    if dtype.name in _SUB_BYTE or dtype.itemsize not in WORDS:
        raise Unsupported(f"{access.op.name}: elements of type {dtype.name} in memory are not supported")
    shape = np.broadcast_shapes(addresses.shape, shape, () if mask is None else mask.shape)
    lanes, rows = len(access.blocks), shape[0]
    assert rows in (1, lanes), f"{access.op.name}: {rows} rows for {lanes} blocks"
    where = None
    if mask is not None and not mask.all():
        where = np.flatnonzero(np.broadcast_to(mask, shape).reshape(-1))
    flat = (addresses if addresses.shape == shape else np.broadcast_to(addresses, shape)).reshape(-1)
    blocks: Blocks | None = None
    if lanes == 1:
        blocks = int(access.blocks[0]) + 1
    elif rows != 1:
        blocks = np.repeat(np.asarray(access.blocks, np.int32) + np.int32(1), flat.size // rows)
        blocks = blocks if where is None else blocks[where]
    return _Picked(access, how, dtype.itemsize, shape, flat if where is None else flat[where], where, blocks)
