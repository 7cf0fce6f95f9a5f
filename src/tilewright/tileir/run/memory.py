"""The memory that an interpreted kernel sees, and every access to it.

Each tensor lies at a synthetic address, far from its neighbours, so that an access outside one hits no other tensor. A
tensor may be a strided or misaligned part of a larger array; the bytes around it exist, but belong to no tensor.
`load`, `store` and `atomic` take the addresses of whole tiles and handle all lanes and elements at once. Where the
memory is watched, each access is entered in the tensor's shadow (`watch`), which knows which block touched what.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tilewright.tileir.read.tree import Op, TileType
from tilewright.tileir.run import atomics
from tilewright.tileir.run.registry import Unsupported
from tilewright.tileir.watch.allocations import WORDS, Allocation, bytes_of, extent_of, granules_of
from tilewright.tileir.watch.arrays import Array, DType, Indices, Mask
from tilewright.tileir.watch.findings import MISALIGNED, OUT_OF_BOUNDS, Findings
from tilewright.tileir.watch.shadow import Blocks, Shadow
from tilewright.tileir.watch.watch import READ, UPDATE, WRITE, Access, Touched, Watch

__all__ = ["Access", "Allocation", "Memory"]

BASE = 1 << 40
GAP = 1 << 20
"""Bytes of addresses without memory between two allocations, at least."""
ALIGNMENT = 256
"""Of every allocation's first byte, as of cudaMalloc."""
_SUB_BYTE = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")


class _Picked(NamedTuple):
    """The elements of a tile that are not masked out. ``shape`` is (rows, *tile); 1 row where all lanes do the same.
    ``where``: the places in it, None for all. ``blocks``: of each, or of all; None where all lanes do all."""

    shape: tuple[int, ...]
    addresses: Indices
    where: Indices | None
    blocks: Blocks | None

    def of(self, values: Array) -> Array:
        """The picked elements of what broadcasts to ``shape``, as one axis."""
        flat = np.broadcast_to(values, self.shape).reshape(-1)
        return flat if self.where is None else flat[self.where]


class _Part(NamedTuple):
    """Elements in one allocation: ``offsets`` into its memory; ``of``: which of those picked, None for all."""

    allocation: Allocation
    offsets: Indices
    of: Indices | None
    aligned: bool

    def of_these(self, values: Array) -> Array:
        """What belongs to this part of values for all picked elements."""
        return values if self.of is None else values[self.of]


class Memory:
    """``watch``: look for races and for reads of memory that was never written. ``poison``: the byte that undefined
    values are made of."""

    def __init__(self, watch: bool = True, poison: int = 0xFF) -> None:
        self.watch, self.poison = watch, poison
        self.findings = Findings()
        self.globals: dict[str, Allocation] = {}
        self.version = 0
        """Grows with each store, and with each atomic update that changes something."""
        self.allocations: list[Allocation] = []
        self.lists: list[Allocation] = []  # known to a dry run too, since launches fill them
        self._starts: list[int] = []
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
        """Gives ``array`` an address; the kernel reads and writes the array itself.

        written: whether the elements have values before the kernel runs; an array says it of each element.
        within: the contiguous array that ``array`` is a view of, where it is strided, misaligned, or has guard zones.
            Its first byte gets an aligned address, so that a misaligned view stays misaligned. Bytes that are not
            elements of ``array`` are out of bounds.
        same_memory_as: another tensor over the same memory (``within`` is then that one's). This tensor gets addresses
            of its own for it, by which the sanitizer knows through which tensor a kernel goes.
        may_alias: the kernel allows for this tensor to overlap the others over the same memory.
        """
        raw = same_memory_as.raw if same_memory_as else bytes_of(array if within is None else within)
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

    def declare_distinct(self, allocations: Iterable[Allocation]) -> None:
        """Forbids overlap, as the kernel's signature declares; overrides what `allocate` was told."""
        declared = list(allocations)
        for one in declared:
            for other in declared:
                if one is not other and one.shadow is other.shadow:
                    one.shadow.forbid(one.bit, other.bit)

    def next_launch(self) -> None:
        """The next kernel begins: it comes after all accesses of the one before, and inherits what was written."""
        self._watch.restart()
        for one in self.allocations:
            one.shadow.restart()

    def allocate_list(self, rows: Sequence[Sequence[int]]) -> Allocation:
        """How a launch passes a list of arrays: 64-bit numbers in memory that is filled before the kernel runs."""
        self.lists.append(self.allocate(f"list {len(self.lists)}", np.array(rows, np.int64)))
        return self.lists[-1]

    def is_list(self, addresses: Array) -> bool:
        """Whether all of ``addresses``, where arrays begin, are those of such lists."""
        return bool(self.lists) and bool(np.isin(addresses, [one.address for one in self.lists]).all())

    def allocate_local(
        self, name: str, elements: tuple[int, int], alignment: int, blocks: Array, private: bool = True
    ) -> Allocation:
        """Uninitialised memory with a part for each of ``blocks``, (number, bytes) of ``elements`` each; where it is
        ``private`` no other block may touch it. Parts lie ``strides[0]`` bytes apart; the bytes between them belong to
        no block."""
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
        """The elements at ``addresses`` (rows, *tile), one row if all lanes read the same. Where ``mask`` is False:
        ``fill``, or poison if that is None. Poison outside all memory."""
        dtype = _storable(access.op, np.dtype(dtype))
        shape = np.broadcast_shapes(addresses.shape, _shape(mask), () if fill is None else np.shape(fill))
        picked = _picked(access, shape, addresses, mask)
        bits = self._read(access, picked, dtype.itemsize)
        if dtype == np.bool_:
            bits = (bits != 0).view(np.uint8)
        return self._filled(picked, bits.view(dtype), None if fill is None else np.asarray(fill, dtype))

    def _filled(self, picked: _Picked, found: Array, fill: Array | None) -> Array:
        """A whole tile: what was found, and where the tile is masked out ``fill``, or poison without one."""
        if picked.where is None:
            return found.reshape(picked.shape)
        if fill is None:
            result = self._poisoned(int(np.prod(picked.shape)), found.dtype)
        else:
            result = np.array(np.broadcast_to(fill, picked.shape)).reshape(-1)
        result[picked.where] = found
        return result.reshape(picked.shape)

    def _read(self, access: Access, picked: _Picked, width: int) -> Array:
        found = None
        for part in self._parts(access, picked, width, READ):
            if self.watch:
                self._watch.show(_touched(access, picked, part, width, READ))
            bits = part.allocation.gather(part.offsets, width, part.aligned)
            if part.of is None:
                return bits
            if found is None:
                found = self._poisoned(len(picked.addresses), WORDS[width])
            found[part.of] = bits
        return self._poisoned(len(picked.addresses), WORDS[width]) if found is None else found

    def store(self, access: Access, addresses: Array, mask: Array | None, values: Array) -> None:
        """Writes ``values`` where ``mask`` is not False; what is outside is dropped. Where lanes meet in an element,
        the last one's value stays."""
        dtype = _storable(access.op, values.dtype)
        width = dtype.itemsize
        shape = np.broadcast_shapes(addresses.shape, _shape(mask), values.shape)
        picked = _picked(access, shape, addresses, mask)
        bits = picked.of(values).view(WORDS[width])
        for part in self._parts(access, picked, width, WRITE):
            new = part.of_these(bits)
            part.allocation.scatter(part.offsets, new, part.aligned)
            self.version += 1
            if self.watch:
                touched = _touched(access, picked, part, width, WRITE)
                self._watch.show(touched)
                lost = part.allocation.gather(part.offsets, width, part.aligned) != new
                if lost.any():
                    self._watch.written_twice(touched, np.flatnonzero(lost))

    def atomic(
        self,
        access: Access,
        addresses: Array,
        mask: Array | None,
        values: Array,
        mode: str,
        compare: Array | None = None,
    ) -> Array:
        """Updates each element by ``mode`` (``cas`` with ``compare``), lane after lane and within a tile in row-major
        order, also where several meet in one element. Returns what each update found, (L, *tile), or anything where the
        operation has no such result; where masked out ``compare``, or poison without one."""
        dtype = _storable(access.op, values.dtype)
        atomics.check(access.op.name, mode, dtype)
        lanes = (len(access.blocks), *(1,) * (addresses.ndim - 1))
        shape = np.broadcast_shapes(addresses.shape, _shape(mask), values.shape, lanes)
        picked = _picked(access, shape, addresses, mask)
        found = self._poisoned(len(picked.addresses), dtype)
        operand, expected = picked.of(values), None if compare is None else picked.of(compare)
        for part in self._parts(access, picked, dtype.itemsize, UPDATE):
            old, wrote = self._update(
                access, part, part.of_these(operand), mode, None if expected is None else part.of_these(expected)
            )
            found[slice(None) if part.of is None else part.of] = old
            if self.watch:
                self._watch.show(_touched(access, picked, part, dtype.itemsize, UPDATE, wrote))
        return self._filled(picked, found, compare)

    def _update(
        self, access: Access, part: _Part, values: Array, mode: str, compare: Array | None
    ) -> tuple[Array, Array]:
        """What the updates found, and which of them wrote."""
        needed = any(isinstance(one, TileType) for one in access.op.result_types)
        width = values.itemsize
        if part.aligned:
            elements, at = part.allocation.words(width).view(values.dtype), part.offsets // width
            before = elements[at]
            old, wrote = atomics.update(elements, at, values, mode, compare, needed)
            after = elements[at]
        else:
            distinct, at = np.unique(part.offsets, return_inverse=True)
            before = part.allocation.gather(distinct, width, False)
            elements = before.copy().view(values.dtype)
            old, wrote = atomics.update(elements, at.reshape(-1), values, mode, compare, needed)
            after = elements
            part.allocation.scatter(distinct, elements.view(WORDS[width]), False)
        self.version += before.tobytes() != after.tobytes()
        return old, wrote

    def _poisoned(self, count: int, dtype: DType) -> Array:
        return np.full(count * dtype.itemsize, self.poison, np.uint8).view(dtype)

    def _parts(self, access: Access, picked: _Picked, width: int, how: str) -> Iterator[_Part]:
        """The picked elements that exist, by allocation; reports the others, and those that are misaligned."""
        addresses = picked.addresses
        if not len(addresses):
            return
        place = bisect.bisect_right(self._starts, int(addresses[0])) - 1
        if place >= 0:
            home = self.allocations[place]
            offsets = addresses - home.start
            if (
                int(offsets.min()) >= home.low
                and int(offsets.max()) <= home.high - width
                and (width == 1 or not int(np.bitwise_or.reduce(offsets)) & (width - 1))
            ):
                part = _Part(home, offsets, None, True)
                strange = _strange(_touched(access, picked, part, width, how))
                if strange is None or not strange.any():
                    yield part
                    return
        yield from self._scattered(access, picked, width, how)

    def _scattered(self, access: Access, picked: _Picked, width: int, how: str) -> Iterator[_Part]:
        """The same where not all is in one dense tensor."""
        starts = np.array([one.start - GAP // 2 for one in self.allocations], np.int64)
        place = np.maximum(np.searchsorted(starts, picked.addresses, side="right") - 1, 0)
        for number in np.unique(place):
            of = np.flatnonzero(place == number)
            if number >= len(self.allocations):
                continue
            allocation = self.allocations[number]
            part = _Part(allocation, picked.addresses[of] - allocation.start, of, True)
            touched = _touched(access, picked, part, width, how)
            outside = _outside(touched)
            if outside.any():
                beyond = f", outside its shape {allocation.shape}" if allocation.owners is None else ""
                self._watch.report(OUT_OF_BOUNDS, touched, np.flatnonzero(outside), beyond)
            misaligned = ~outside & (part.offsets & (width - 1) != 0)
            if misaligned.any():
                because = f", at an address that is no multiple of {width}"
                self._watch.report(MISALIGNED, touched, np.flatnonzero(misaligned), because)
            for some, aligned in ((~outside & ~misaligned, True), (misaligned, False)):
                if some.any():
                    yield _Part(allocation, part.offsets[some], of[some], aligned)


def _outside(touched: Touched) -> Mask:
    """Which elements are not wholly the tensor's, or are another block's."""
    allocation, offsets = touched.allocation, touched.offsets
    outside = (offsets < allocation.low) | (offsets > allocation.high - touched.width)
    inside = np.flatnonzero(~outside)
    if (strange := _strange(touched.some(inside))) is not None:
        outside[inside] = strange
    return np.asarray(outside)


def _strange(touched: Touched) -> Mask | None:
    """Which elements, all between the tensor's first and last byte, are not the tensor's or are another block's; None
    if there are none."""
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


def _shape(values: Array | None) -> tuple[int, ...]:
    return () if values is None else values.shape


def _touched(access: Access, picked: _Picked, part: _Part, width: int, how: str, wrote: Array | None = None) -> Touched:
    blocks = part.of_these(picked.blocks) if isinstance(picked.blocks, np.ndarray) else picked.blocks
    return Touched(access, part.allocation, part.offsets, width, how, blocks, wrote)


def _picked(access: Access, shape: tuple[int, ...], addresses: Array, mask: Array | None) -> _Picked:
    """What a tile of ``addresses`` and a mask leave to do."""
    lanes, rows = len(access.blocks), shape[0]
    assert rows in (1, lanes), f"{access.op.name}: {rows} rows for {lanes} lanes"
    where = None
    if mask is not None and not mask.all():
        where = np.flatnonzero(np.broadcast_to(mask, shape).reshape(-1))
    flat = np.broadcast_to(addresses, shape).reshape(-1)
    blocks: Blocks | None
    if lanes == 1:
        blocks = int(access.blocks[0]) + 1
    elif rows == 1:
        blocks = None
    else:
        blocks = np.repeat(np.asarray(access.blocks, np.int32) + np.int32(1), flat.size // rows)
        blocks = blocks if where is None else blocks[where]
    return _Picked(shape, flat if where is None else flat[where], where, blocks)


def _storable(op: Op, dtype: DType) -> DType:
    if dtype.name in _SUB_BYTE or dtype.itemsize not in WORDS:
        raise Unsupported(f"{op.name}: elements of type {dtype.name} in memory")
    return dtype
