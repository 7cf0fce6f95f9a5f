"""Defines the sanitizer, which records each access in the memory's shadow (`shadow`), and reports the findings.

An access without synchronisation is recorded for all its blocks at once. An access that acquires or releases is
recorded block by block, in the order in which the blocks' accesses take effect.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tilewright.tileir.read.tree import Op
from tilewright.tileir.watch.allocations import Allocation
from tilewright.tileir.watch.arrays import Array, Indices, Int32s, Mask
from tilewright.tileir.watch.findings import ALIAS, RACE, UNINITIALISED, Finding, Findings, block_of
from tilewright.tileir.watch.shadow import STRONG_READ, STRONG_WRITE, WEAK_READ, WEAK_WRITE, Blocks, Clocks

READ, WRITE, UPDATE = "reads", "writes", "updates"
_WORDS = {WEAK_READ: "reads", WEAK_WRITE: "writes", STRONG_READ: "reads atomically", STRONG_WRITE: "writes atomically"}


class HasGrid(Protocol):
    @property
    def grid(self) -> tuple[int, int, int]: ...


@dataclass(frozen=True, eq=False)
class Access:
    """An access to memory by an operation, with its memory order and scope.

    blocks: the linear numbers of all blocks of the access, even if they all access the same elements.
    context: has the size of the grid, which findings need to compute a block's coordinates.
    """

    op: Op
    blocks: Array
    order: str = "weak"
    scope: str | None = None
    context: HasGrid | None = None

    @property
    def strong(self) -> bool:
        """Whether the access has a memory order for a scope wider than the block. Two strong accesses do not race."""
        return self.order != "weak" and self.scope != "tl_blk"

    @property
    def acquires(self) -> bool:
        return self.strong and self.order in ("acquire", "acq_rel")

    @property
    def releases(self) -> bool:
        return self.strong and self.order in ("release", "acq_rel")


@dataclass(frozen=True, eq=False)
class Touched:
    """The elements of one allocation that an access touches.

    how: READ, WRITE or UPDATE.
    blocks: the block of each element, or the only block; None if all blocks of the access touch all elements.
    wrote: which elements an update wrote; None for all.
    changed: the elements that did not have the stored value before; None for all.
    lost: the elements that do not have the stored value afterwards, because the same access also stored another value
        there; None for all.
    """

    access: Access
    allocation: Allocation
    offsets: Indices
    width: int
    how: str
    blocks: Blocks | None
    wrote: Mask | None = None
    changed: Mask | None = None
    lost: Mask | None = None

    def block_of(self, element: int) -> int:
        """Returns the (first) block that touches an element, numbered from 1."""
        return int(self.blocks_of_all()[element])

    def blocks_of_all(self) -> Int32s:
        """Returns the (first) block that touches each element, numbered from 1."""
        first = self.access.blocks[0] + 1 if self.blocks is None else self.blocks
        return np.broadcast_to(np.asarray(first, np.int32), self.offsets.shape)

    def some(self, at: Indices | slice) -> Touched:
        """Returns the elements at the positions ``at``."""
        blocks = self.blocks[at] if isinstance(self.blocks, np.ndarray) else self.blocks
        wrote, changed, lost = (None if mask is None else mask[at] for mask in (self.wrote, self.changed, self.lost))
        return replace(self, offsets=self.offsets[at], blocks=blocks, wrote=wrote, changed=changed, lost=lost)

    def by_block(self) -> Iterator[Touched]:
        """Yields the elements that each block touches, in the order of the access."""
        if isinstance(self.blocks, np.ndarray):
            ends = [*(np.flatnonzero(self.blocks[1:] != self.blocks[:-1]) + 1).tolist(), len(self.blocks)]
            for begin, end in zip([0, *ends], ends, strict=False):
                yield replace(self.some(slice(begin, end)), blocks=int(self.blocks[begin]))
        else:
            for block in (self.access.blocks + 1).tolist():
                yield replace(self, blocks=block)


class Watch:
    """The sanitizer of one run's memory. It keeps the clocks of the blocks, and collects the findings."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self._clocks = Clocks()

    def restart(self) -> None:
        """Prepares for the next kernel. All accesses so far are ordered before all later accesses."""
        self._clocks = Clocks()

    def show(self, touched: Touched) -> None:
        """Records an access in the shadow, and adds findings for its mistakes."""
        access = touched.access
        if access.acquires or access.releases:
            for part in touched.by_block():
                self._show_ordered(part)
        elif touched.blocks is not None:
            self._show(touched)
        elif self._clocks.active:
            for part in _equal_stores(touched):
                self._show(part)
        else:
            # All blocks make the same access. Before the clocks are active, the shadow distinguishes only one block
            # from several, so two blocks are enough. `shared_by` records the others, if the kernel synchronises later.
            for part in itertools.islice(_equal_stores(touched), 2):
                self._show(part)
            touched.allocation.shadow.shared_by((access.blocks + 1).tolist())

    def _show_ordered(self, touched: Touched) -> None:
        """Records an access of one block that acquires or releases."""
        assert isinstance(touched.blocks, int)
        if not len(touched.offsets):
            return
        access, shadow = touched.access, touched.allocation.shadow
        granules, per_element = shadow.granules(touched.offsets, touched.width)
        if access.acquires and (released := shadow.released(granules)) is not None:
            self._clocks.acquire(touched.blocks, released)
        self._show(touched)
        if access.releases and touched.how != READ:
            if touched.wrote is not None:
                granules = granules[np.repeat(touched.wrote, per_element)]
            if len(granules):
                shadow.release(touched.blocks, granules, self._clocks, touched.how == UPDATE)

    def _show(self, touched: Touched) -> None:
        shadow, access = touched.allocation.shadow, touched.access
        granules, per_element = shadow.granules(touched.offsets, touched.width)
        if not len(granules):
            return
        blocks = touched.blocks
        assert blocks is not None
        if per_element > 1 and not isinstance(blocks, int):
            blocks = np.repeat(blocks, per_element)
        if touched.how != WRITE and (unwritten := shadow.unwritten(granules)) is not None:
            elements = np.flatnonzero(unwritten) // per_element
            self.report(UNINITIALISED, touched, elements, ", which nothing has written")
        for kind, some in self._kinds(touched, per_element):
            here = granules if some is None else granules[some]
            theirs = blocks if some is None or isinstance(blocks, int) else blocks[some]
            others, again = shadow.enter(kind, theirs, here, self._clocks)
            element = None if some is None else np.flatnonzero(some) // per_element
            for other_kind, who in others:
                if kind == other_kind == WEAK_WRITE:
                    who = _only(who, touched.changed, per_element)
                if who.any():
                    self._race(touched, other_kind, who, element, per_element)
            if again is not None and (again := _only(again, touched.lost, per_element)).any():
                because = ", which another block writes too, without synchronisation between them"
                self.report(RACE, touched, np.flatnonzero(again) // per_element, because)
            self._aliased(touched, kind in (WEAK_WRITE, STRONG_WRITE), here, element, per_element)
        if touched.how == WRITE and not access.releases:
            shadow.overwrite(granules)

    def _kinds(self, touched: Touched, per_element: int) -> Iterator[tuple[int, Mask | None]]:
        """Yields the kinds of the access, each with a mask of its granules (None for all).

        An update that did not write an element counts as a read of the element.
        """
        read, write = (STRONG_READ, STRONG_WRITE) if touched.access.strong else (WEAK_READ, WEAK_WRITE)
        if touched.how == READ:
            yield read, None
        elif touched.wrote is None or touched.wrote.all():
            yield write, None
        else:
            wrote = np.repeat(touched.wrote, per_element)
            yield read, ~wrote
            if wrote.any():
                yield write, wrote

    def report(self, kind: str, touched: Touched, elements: Indices, because: str) -> None:
        """Adds a finding about ``elements``, with the index of the first of them.

        elements: positions in ``touched``.
        because: the end of the message.
        """
        first, op = int(elements[0]), touched.access.op
        name, index = touched.allocation.name, touched.allocation.index_of(int(touched.offsets[first]))
        text = f"{op.name} {touched.how} {name}[{', '.join(map(str, index))}]{because}"
        where = self.block(touched.access, touched.block_of(first))
        self.findings.add(Finding(kind, text, op.location, where, name, index, len(np.unique(elements))))

    def block(self, access: Access, number: int) -> tuple[int, int, int]:
        """Returns the coordinates (x, y, z) of the block with a ``number`` from 1."""
        grid = access.context.grid if access.context is not None else (1 << 31, 1, 1)
        return block_of(number - 1, grid)

    def _race(self, touched: Touched, kind: int, who: Array, element: Indices | None, per_element: int) -> None:
        """Reports that the access conflicts with earlier accesses of ``kind``. ``who``: for each granule, the block of
        the earlier access (0 for none)."""
        at = np.flatnonzero(who)
        elements = at // per_element if element is None else element[at]
        first = int(who[at[0]])
        name = f"block {self.block(touched.access, first)}" if first > 0 else "another block"
        self.report(RACE, touched, elements, f", which {name} {_WORDS[kind]} without synchronisation between them")

    def written_twice(self, touched: Touched, lost: Indices) -> None:
        """Reports elements to which one block stores twice in one access, with different values.

        If two blocks store to an element, the element is reported by other methods, as a race.

        lost: positions in ``touched`` of the elements that no longer have the value that the store wrote there.
        """
        who = np.int32(0) if touched.blocks is None else np.asarray(touched.blocks, np.int32)
        of = np.isin(touched.offsets, touched.offsets[lost])
        blocks = np.broadcast_to(who, touched.offsets.shape)[of]
        places, which = np.unique(touched.offsets[of], return_inverse=True)
        low, high = np.full(len(places), blocks.max()), np.full(len(places), blocks.min())
        np.minimum.at(low, which.reshape(-1), blocks)
        np.maximum.at(high, which.reshape(-1), blocks)
        own = lost[np.isin(touched.offsets[lost], places[low == high])]
        if len(own):
            self.report(RACE, touched, own, ": one store writes this element twice, with different values")

    def _aliased(
        self, touched: Touched, writes: bool, granules: Indices, element: Indices | None, per_element: int
    ) -> None:
        through = touched.allocation.shadow.other_tensors(touched.allocation.bit, writes, granules)
        if through is None:
            return
        at = np.flatnonzero(through)
        elements = at // per_element if element is None else element[at]
        bits = int(through[at[0]])
        names = [n for place, n in enumerate(touched.allocation.shadow.names) if bits >> place & 1]
        because = f", which the kernel also accesses as {' and '.join(names)}; one access writes, which is not declared"
        self.report(ALIAS, touched, elements, because)


def _equal_stores(touched: Touched) -> Iterator[Touched]:
    """Yields the access of each block, for a store in which all blocks store the same values.

    Only the first block changes memory. Every later block finds the stored values already there.
    """
    for number, part in enumerate(touched.by_block()):
        yield replace(part, changed=part.lost) if number else part


def _only(found: Array, elements: Mask | None, per_element: int) -> Array:
    """Returns ``found`` with zeros for the granules outside ``elements`` (None keeps all granules).

    elements: the mask of the elements that a store changed. If two blocks store equal bits, the result does not depend
        on their order, so this is no race.
    """
    return found if elements is None else np.where(np.repeat(elements, per_element), found, found.dtype.type(0))
