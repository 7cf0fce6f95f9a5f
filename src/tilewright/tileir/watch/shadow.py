"""Records the accesses to a piece of memory for the sanitizer: by which block, and through which tensor.

The memory is divided into granules of the size of the tensor's elements. There are four kinds of access: weak and
strong reads and writes. A strong access is atomic or has a memory order. For each kind, a `Trace` keeps the last block
that accessed a granule. One block is enough, because only the later of two ordered accesses matters. If accesses are
not ordered, the granule's entry becomes ``MANY`` or ``LISTED``. Two accesses of different blocks conflict if at least
one access writes and at least one access is weak.

Vector clocks show the order. A block's clock advances with each release. The release stores, at the granule, a snapshot
of all clocks that the block knows. A block that acquires the granule then knows these clocks, too. The epoch of an
access is the clock of the accessing block at the time of the access.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tilewright.tileir.watch.arrays import Bytes, Indices, Int32s, Mask

Blocks: TypeAlias = "int | Int32s"
"""One block, or the block of each element."""
MANY = -1  # several unknown blocks, whose accesses came before the kernel first synchronised
LISTED = -2  # several blocks, which are in the trace's list
WEAK_READ, WEAK_WRITE, STRONG_READ, STRONG_WRITE = range(4)
CONFLICTS = {
    WEAK_READ: (WEAK_WRITE, STRONG_WRITE),
    WEAK_WRITE: (WEAK_WRITE, WEAK_READ, STRONG_WRITE, STRONG_READ),
    STRONG_READ: (WEAK_WRITE,),
    STRONG_WRITE: (WEAK_WRITE, WEAK_READ),
}
TENSORS = 8  # at most this many tensors may share memory: each has a bit of a byte


class Clocks:
    """The clocks of all blocks that each block knows. They are ``active`` after the first release. Before the first
    release, every epoch is 0 and no accesses are ordered."""

    def __init__(self) -> None:
        self.active = False
        self._known: dict[int, Int32s] = {}
        self._own = np.zeros(16, np.int32)
        self._snapshots: dict[int, Int32s] = {}
        self._last = 0
        self._limit = 256
        self._numbers: list[Int32s] = []

    def epoch(self, block: Blocks) -> Blocks:
        """Returns the current clock of one block, or of each of several blocks."""
        if isinstance(block, int):
            return int(self._own[block]) if block < len(self._own) else 0
        self._own = _longer(self._own, int(block.max()) + 1)
        return self._own[block]

    def before(self, block: int, others: Int32s, epochs: Int32s) -> Mask:
        """Returns a mask over accesses of other blocks: True if ordered before an access by ``block`` at this time.

        others: the block of each access.
        epochs: the clock of this block at the time of the access.
        """
        known = _longer(self._known.get(block, self._own[:0]), int(others.max(initial=0)) + 1)
        return np.asarray(known[others] > epochs)

    def acquire(self, block: int, snapshots: Int32s) -> None:
        """Adds the clocks in ``snapshots`` to the clocks that ``block`` knows.

        snapshots: the numbers of the snapshots at the elements that the block read; 0 for no snapshot.
        """
        for snapshot in np.unique(snapshots):
            if snapshot:
                self._known[block] = _joined(self._known.get(block), self._snapshots[int(snapshot)])

    def release(self, block: int, earlier: int = 0) -> int:
        """Makes a snapshot when ``block`` releases, and returns the snapshot's number.

        earlier: the number of an older snapshot, whose clocks the new snapshot includes; 0 for none. A
            read-modify-write passes the number of the element's snapshot.
        """
        self.active = True
        self._own = _longer(self._own, block + 1)
        self._own[block] += 1
        known = _longer(self._known.get(block, self._own[:0]), block + 1).copy()
        known[block] = self._own[block]
        self._known[block] = known
        snapshot = _joined(known, self._snapshots[earlier]) if earlier else known
        if len(self._snapshots) >= self._limit:
            self._drop_unused()
        self._last += 1
        self._snapshots[self._last] = snapshot
        return self._last

    def numbers(self, size: int) -> Int32s:
        """Returns a new array for the number of each granule's snapshot. ``size``: the number of granules."""
        new = np.zeros(size, np.int32)
        self._numbers.append(new)
        return new

    def _drop_unused(self) -> None:
        """Drops the snapshots to which no granule refers."""
        used = {int(number) for numbers in self._numbers for number in np.unique(numbers)} | {self._last}
        self._snapshots = {number: one for number, one in self._snapshots.items() if number in used}
        self._limit = max(256, 2 * len(self._snapshots))


def _longer(values: Int32s, size: int) -> Int32s:
    if size <= len(values):
        return values
    grown = np.zeros(max(size, 2 * len(values)), np.int32)
    grown[: len(values)] = values
    return grown


def _joined(one: Int32s | None, other: Int32s) -> Int32s:
    if one is None:
        return other.copy()
    size = max(len(one), len(other))
    return np.maximum(_longer(one, size)[:size], _longer(other, size)[:size])


class Trace:
    """The last block that made one kind of access to each granule.

    who: for each granule, the number of the block (the first is 1); 0 if there is none; MANY or LISTED if there are
        several.
    early: the blocks that made such an access before the first release.
    """

    def __init__(self, size: int) -> None:
        self.who = np.zeros(size, np.int32)
        self._epochs: Int32s | None = None
        self.early: set[int] = set()
        self._listed: dict[tuple[int, int, int, int], list[Indices]] = {}

    def others(self, blocks: Blocks, granules: Indices, clocks: Clocks) -> Int32s | None:
        """Returns, for each granule, a block whose earlier access is not ordered before the access by ``blocks``.

        The number is 0 if there is no such block. Returns None instead of an array of zeros.
        """
        who = np.take(self.who, granules)
        if not who.any():
            return None
        unordered = (who != blocks) & (who != 0)
        if clocks.active and unordered.any():
            at = np.flatnonzero(unordered)
            unordered[at] = ~self._before(_at(blocks, at), who[at], granules[at], clocks)
        return np.where(unordered, who, np.int32(0)) if unordered.any() else None

    def record(self, blocks: Blocks, granules: Indices, clocks: Clocks) -> Mask | None:
        """Records that ``blocks[i]`` touches ``granules[i]``, for each element i of an access.

        Two elements of one access may touch the same granule for different blocks. Then one record replaces the other
        record. Returns the mask of the elements whose record was replaced; None if no record was replaced.
        """
        old = np.take(self.who, granules)
        now: Blocks = blocks
        if old.any():
            mine = (old == 0) | (old == blocks)
            if clocks.active:
                at = np.flatnonzero(~mine & (old > 0))
                if len(at):
                    mine[at] = self._before(_at(blocks, at), old[at], granules[at], clocks)
            if not mine.all():
                several = np.where(old == MANY, MANY, LISTED if clocks.active else MANY).astype(np.int32)
                now = np.where(mine, blocks, several).astype(np.int32)
        self.who[granules] = now
        again = None if isinstance(blocks, int) else np.take(self.who, granules) != now
        if again is not None and again.any():
            self.who[granules[again]] = LISTED if clocks.active else MANY
        else:
            again = None
        self._date(blocks, granules, old, clocks)
        return again

    def _date(self, blocks: Blocks, granules: Indices, old: Int32s, clocks: Clocks) -> None:
        """Records the epoch of the access."""
        if not clocks.active:
            self.early.update([blocks] if isinstance(blocks, int) else _runs(blocks).tolist())
            return
        if self._epochs is None:
            self._epochs = np.zeros(len(self.who), np.int32)
        now = np.take(self.who, granules)
        shared = np.flatnonzero(now < 0)
        if len(shared):
            before = shared[old[shared] > 0]
            self._list(old[before], self._epochs[granules[before]], granules[before])
            epochs = np.broadcast_to(np.asarray(clocks.epoch(blocks), np.int32), granules.shape)
            self._list(np.broadcast_to(np.int32(blocks), granules.shape)[shared], epochs[shared], granules[shared])
        self._epochs[granules] = clocks.epoch(blocks)

    def _list(self, blocks: Int32s, epochs: Int32s, granules: Indices) -> None:
        for block in np.unique(blocks):
            of_block = blocks == block
            for epoch in np.unique(epochs[of_block]):
                some = granules[of_block & (epochs == epoch)]
                key = (int(block), int(epoch), int(some.min()), int(some.max()))
                known = self._listed.setdefault(key, [])
                if not any(np.array_equal(one, some) for one in known):
                    known.append(some)

    def _before(self, blocks: Blocks, who: Int32s, granules: Indices, clocks: Clocks) -> Mask:
        """Returns, for each granule, whether all recorded accesses are ordered before an access by ``blocks`` now."""
        done = np.zeros(len(who), np.bool_)
        mine = np.broadcast_to(np.asarray(blocks, np.int32), who.shape)
        for block in np.unique(mine):
            at = np.flatnonzero(mine == block)
            one = at[who[at] > 0]
            epochs = np.zeros(len(one), np.int32) if self._epochs is None else self._epochs[granules[one]]
            done[one] = clocks.before(int(block), who[one], epochs)
            several = at[who[at] < 0]
            if len(several):
                done[several] = self._all_before(int(block), who[several], granules[several], clocks)
        return done

    def _all_before(self, block: int, who: Int32s, granules: Indices, clocks: Clocks) -> Mask:
        done = np.ones(len(granules), np.bool_)
        early = np.array(sorted(self.early - {block}), np.int32)
        if not clocks.before(block, early, np.zeros_like(early)).all():
            done[who == MANY] = False
        low, high = granules.min(), granules.max()
        for (other, epoch, first, last), entries in self._listed.items():
            if other == block or last < low or first > high:
                continue
            if not clocks.before(block, np.array([other], np.int32), np.array([epoch], np.int32))[0]:
                for some in entries:
                    done &= ~np.isin(granules, some)
        return done


def _at(blocks: Blocks, places: Indices) -> Blocks:
    return blocks if isinstance(blocks, int) else blocks[places]


def _runs(blocks: Int32s) -> Int32s:
    """Returns the blocks of the elements in order, with adjacent equal blocks only once."""
    return np.asarray(blocks[np.concatenate([[True], blocks[1:] != blocks[:-1]])])


class Shadow:
    """The record of one piece of memory, which several tensors may share. ``names``: the tensors' names, by bit."""

    def __init__(self, nbytes: int, grain: int, offset: int) -> None:
        self._nbytes = nbytes
        self._traces: list[Trace | None] = [None] * 4
        self._unwritten: Mask | None = None
        self._snapshots: Int32s | None = None
        self.names: list[str] = []
        self._apart = [0] * TENSORS
        self._through: tuple[Bytes, Bytes] | None = None
        self._set_grain(grain, offset)

    def _set_grain(self, grain: int, offset: int) -> None:
        self.grain = grain
        self._shift = grain.bit_length() - 1
        assert grain == 1 << self._shift, f"elements of {grain} bytes"
        self._pad = -offset % grain
        self.size = (self._nbytes + self._pad + grain - 1) // grain

    def fit(self, element_bytes: int, offset: int) -> bool:
        """Makes the granules small enough for another tensor, before the kernel runs.

        Returns whether the size of the granules changed.
        """
        grain = min(self.grain, element_bytes)
        if (offset + self._pad) % grain:
            grain = 1
        if grain == self.grain:
            return False
        old, pad, unwritten = self.grain, self._pad, self._unwritten
        self._set_grain(grain, -pad % grain)
        if unwritten is not None:
            bytes_ = np.repeat(unwritten, old)[pad:]
            self._unwritten = np.resize(bytes_[::grain], self.size)
        return True

    def join(self, name: str, may_alias: bool) -> int:
        """Adds a tensor in this memory, and returns the tensor's bit.

        may_alias: whether a kernel may access an element both through this tensor and through another tensor.
        """
        assert len(self.names) < TENSORS, f"more than {TENSORS} tensors over the same memory"
        bit = 1 << len(self.names)
        for other in range(0 if may_alias else len(self.names)):
            self._apart[len(self.names)] |= 1 << other
            self._apart[other] |= bit
        self.names.append(name)
        return bit

    def unwrite(self, granules: Indices) -> None:
        """Marks granules as uninitialised until the kernel writes them."""
        if self._unwritten is None:
            self._unwritten = np.zeros(self.size, np.bool_)
        self._unwritten[granules] = True

    def restart(self) -> None:
        """Forgets all accesses. Memory that was written stays initialised."""
        self._traces = [None] * 4
        self._snapshots = self._through = None

    def granules(self, offsets: Indices, width: int) -> tuple[Indices, int]:
        """Returns the granules of the elements of ``width`` bytes at ``offsets``, and the granules per element."""
        begin = offsets + self._pad if self._pad else offsets
        count = max(width // self.grain, 1)
        inside = min(width, self.grain) - 1
        if inside and len(begin) and int(np.bitwise_or.reduce(begin)) & inside:
            count += 1
        first = begin >> self._shift
        if count == 1:
            return first, 1
        last = (begin + (width - 1)) >> self._shift
        return np.minimum(first[:, None] + np.arange(count), last[:, None]).reshape(-1), count

    def unwritten(self, granules: Indices) -> Mask | None:
        """Returns which granules were never written, or None if all were written."""
        if self._unwritten is None:
            return None
        found = np.take(self._unwritten, granules)
        return found if found.any() else None

    def enter(
        self, kind: int, blocks: Blocks, granules: Indices, clocks: Clocks
    ) -> tuple[list[tuple[int, Int32s]], Mask | None]:
        """Records an access of one kind. Returns the conflicts with earlier accesses, and a mask of granules.

        A conflict is the kind of the earlier access, and for each granule the block that made the earlier access (0
        for none). The mask has the granules to which one weak write writes for several blocks; None if there are none.
        """
        conflicts = []
        for other in CONFLICTS[kind]:
            trace = self._traces[other]
            if trace and (who := trace.others(blocks, granules, clocks)) is not None:
                conflicts.append((other, who))
        own = self._traces[kind] = self._traces[kind] or Trace(self.size)
        again = own.record(blocks, granules, clocks)
        if kind in (WEAK_WRITE, STRONG_WRITE) and self._unwritten is not None:
            self._unwritten[granules] = False
        return conflicts, again if kind == WEAK_WRITE else None

    def shared_by(self, blocks: list[int]) -> None:
        """Records that all of ``blocks`` made the recorded accesses, before the clocks were active."""
        for trace in filter(None, self._traces):
            trace.early.update(blocks)

    def other_tensors(self, bit: int, writes: bool, granules: Indices) -> Bytes | None:
        """Records that an access goes through the tensor with ``bit``. Returns the forbidden accesses, or None.

        Two accesses to a granule through different tensors are forbidden if the tensors must not alias and one of the
        accesses writes. The result has, for each granule, the bits of the other tensors.
        """
        apart = self._apart[bit.bit_length() - 1]
        if not apart:
            return None
        if self._through is None:
            self._through = np.zeros(self.size, np.uint8), np.zeros(self.size, np.uint8)
        reads, wrote = self._through
        found = np.take(wrote, granules) & apart
        if writes:
            found |= np.take(reads, granules) & apart
        (wrote if writes else reads)[granules] |= bit
        return np.asarray(found, np.uint8) if found.any() else None

    def released(self, granules: Indices) -> Int32s | None:
        """Returns the numbers of the snapshots at ``granules``, or None if there were no releases."""
        return None if self._snapshots is None else np.take(self._snapshots, granules)

    def release(self, block: int, granules: Indices, clocks: Clocks, update: bool) -> None:
        """Records a release by ``block``. An update (read-modify-write) continues earlier releases."""
        if self._snapshots is None:
            self._snapshots = clocks.numbers(self.size)
        before = self._snapshots[granules]
        for earlier in np.unique(before) if update else (0,):
            new = clocks.release(block, int(earlier))
            self._snapshots[granules[before == earlier] if update else granules] = new

    def overwrite(self, granules: Indices) -> None:
        """Records a write that does not release and does not continue an earlier release."""
        if self._snapshots is not None:
            self._snapshots[granules] = 0
