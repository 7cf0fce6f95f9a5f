"""Finds which accesses of a kernel wait for other accesses, and which of these pairs never access the same byte.

Tile IR orders memory by tokens: a load waits for the earlier stores that may access the same array. The interpreter
runs the kernel on every workload, with extents reduced to one or two tiles and an equal remainder. For each access, it
compares its bytes with the bytes that the awaited access used before in the same block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from tilewright.errors import ToolFailed
from tilewright.playbook.base import KernelFacts
from tilewright.records import Failed, Workload
from tilewright.tileir.analysis.accesses import direction
from tilewright.tileir.analysis.tokens import TokenChains
from tilewright.tileir.read.tree import KernelEntry, Location, Op
from tilewright.tileir.run.interpreter import run
from tilewright.tileir.run.launching import Launcher
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.registry import Array, NeedsData, Unsupported
from tilewright.tileir.watch.watch import Touched
from tilewright.verify.images import storage
from tilewright.verify.interpreted import FEW_SMS
from tilewright.verify.shapes import moduli, reduced
from tilewright.verify.tolerance import draw

Position: TypeAlias = tuple[int, int]  # line (from 1) and column (from 0) in the source
Pair: TypeAlias = tuple[str, Position, str, Position]  # the first four fields of `Waiting`
ORDERED = ("load", "store")
MOST_COMPARISONS = 1 << 20  # of two accesses byte by byte, in one run: about ten seconds


@dataclass(frozen=True)
class Waiting:
    """An access at ``place`` waits for the access at ``awaited_place``. At least one of the two is a store.

    ``what`` and ``awaited`` are ``load`` or ``store``. ``earlier_iteration``: whether the awaited access is in an
    earlier iteration of a loop around both. ``independent``: whether the two accesses have no common byte in any
    workload.
    """

    what: str
    place: Position
    awaited: str
    awaited_place: Position
    earlier_iteration: bool
    independent: bool

    def __str__(self) -> str:
        when = " of an earlier iteration" if self.earlier_iteration else ""
        proof = "they touch no byte in common" if self.independent else "they touch the same bytes"
        awaited = f"the {self.awaited} in line {self.awaited_place[0]}{when}"
        return f"the {self.what} in line {self.place[0]} waits for {awaited}; {proof}"


def waiting(facts: KernelFacts) -> tuple[Waiting, ...] | str:
    """Returns the waits in the incumbent, checked on all workloads; or the reason why the waits are not known."""
    found: dict[Pair, tuple[bool, bool]] = {}
    for workload in facts.workloads:
        memory = _recorded(facts, workload)
        if isinstance(memory, str):
            return memory
        for pair, earlier, independent in memory.waits():
            before = found.get(pair, (True, True))
            found[pair] = before[0] and earlier, before[1] and independent
    return tuple(Waiting(*pair, *flags) for pair, flags in sorted(found.items()))


def _recorded(facts: KernelFacts, workload: Workload) -> _Recording | str:
    """Runs the incumbent on one reduced workload. Returns its memory, or the reason why it could not be run."""
    task, configuration, rng = facts.task, facts.task.space.shipped, np.random.default_rng(0)
    dims = reduced(task, workload.dims, moduli(task, configuration, workload.dims))
    arrays, addresses = task.arrays(dims), {}
    try:
        runnable = Launcher(task, replace(facts.board, sms=FEW_SMS)).runnable(configuration, dims, arrays)
        if isinstance(runnable, Failed):
            return runnable.reason
        memory = _Recording(runnable.module.entry())
        for name, array in arrays.items():
            given = name in task.inputs
            data = draw(task.distribution(name, dims), array.shape, rng) if given else np.zeros(array.shape)
            addresses[name] = memory.allocate(name, data.astype(storage(array.dtype))).address
        run(runnable.module, runnable.bound(addresses, memory), runnable.launch.grid, memory)
    except (Unsupported, NeedsData, ToolFailed) as reason:
        return str(reason)
    return memory


class _Recording(Memory):
    """A memory that compares the bytes of each access with the bytes of the accesses for which it waits."""

    def __init__(self, entry: KernelEntry) -> None:
        super().__init__(watch=False)
        chains = TokenChains(entry)
        self._before = {
            op: {wait.op: wait.earlier_iteration for wait in chains.all_before(op)}
            for op in chains.ops
            if direction(op) in ORDERED
        }
        self._spans: dict[tuple[Op, int], list[_Span]] = {}
        """The accesses of each block by one operation."""
        self._shared: set[tuple[Op, Op]] = set()
        self._compared = 0

    def show(self, part: Any, picked: Any) -> None:
        """Compares an access with the earlier accesses for which it waits, and records it."""
        touched: Touched = part.touched
        op, start = touched.access.op, touched.allocation.start
        for each in touched.by_block():
            span, block = _Span(each.offsets + start, touched.width), each.block_of(0)
            for other in self._before.get(op, ()):
                if (op, other) not in self._shared and self._meets(span, self._spans.get((other, block), ())):
                    self._shared.add((op, other))
            known = self._spans.setdefault((op, block), [])
            if not any(map(span.is_equal, known[-1:])):
                known.append(span)

    def _meets(self, span: _Span, others: Sequence[_Span]) -> bool:
        """Returns whether an access has a byte in common with one of the others. Raises `Unsupported` if this would
        take too long."""
        near = [other for other in others if span.is_near(other)]
        self._compared += len(near)
        if self._compared > MOST_COMPARISONS:
            raise Unsupported("the kernel has too many accesses to compare them")
        return any(map(span.meets, near))

    def waits(self) -> Iterator[tuple[Pair, bool, bool]]:
        """Yields each pair of accesses in which one waits for the other and at least one is a store, with the last two
        fields of `Waiting`."""
        for op, other, earlier in ((op, *wait) for op, before in self._before.items() for wait in before.items()):
            mine, others = direction(op), direction(other)
            if others in ORDERED and "store" in (mine, others):
                yield (mine, _place(op), others, _place(other)), earlier, (op, other) not in self._shared


class _Span:
    """The addresses of the elements of one access. Only accesses whose first and last bytes overlap are compared."""

    def __init__(self, addresses: Array, width: int) -> None:
        self.addresses, self.width = addresses, width
        self.first, self.end = int(addresses.min()), int(addresses.max()) + width

    def is_near(self, other: _Span) -> bool:
        """Returns whether the bytes from the first to the last overlap."""
        return self.first < other.end and other.first < self.end

    def meets(self, other: _Span) -> bool:
        """Returns whether the two accesses have a byte in common."""
        return bool(np.isin(self._bytes(), other._bytes()).any())

    def is_equal(self, other: _Span) -> bool:
        return (self.first, self.end) == (other.first, other.end) and np.array_equal(self.addresses, other.addresses)

    def _bytes(self) -> Array:
        return (self.addresses[:, None] + np.arange(self.width)).ravel()


def _place(op: Op) -> Position:
    """Returns the position in the user's source; for an operation inside cuda.tile, the position of its caller."""
    location: Location | None = op.location
    while location is not None and location.caller is not None and location.file.endswith("/cuda/tile/_stub.py"):
        location = location.caller
    return (0, 0) if location is None else (location.line, location.column)
