"""Finds which accesses of a kernel wait for one another, and which of these never touch the same bytes.

Tile IR orders memory by tokens: a load waits for the stores before it that may touch the same array. The interpreter
runs the kernel on every workload, reduced to a tile or two with the same remainders. It compares each byte that a block
touches with the bytes that the awaited access has touched before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import CompilerMissing
from tilewright.playbook.base import KernelFacts
from tilewright.records import Failed, Workload
from tilewright.tileir.analysis.accesses import direction
from tilewright.tileir.analysis.tokens import TokenChains
from tilewright.tileir.read.tree import Location, Op
from tilewright.tileir.run.interpreter import run
from tilewright.tileir.run.launching import Launcher
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.registry import NeedsData, Unsupported
from tilewright.tileir.watch.watch import Access
from tilewright.verify.images import storage
from tilewright.verify.interpreted import FEW_SMS
from tilewright.verify.shapes import moduli, reduced
from tilewright.verify.tolerance import draw

Array = npt.NDArray[Any]
Keys = npt.NDArray[np.int64]
Position = tuple[int, int]
"""Line (from 1) and column (from 0) in the source."""

ORDERED = ("load", "store")


@dataclass(frozen=True)
class Waiting:
    """One access that waits for another one of the kernel, at least one of them a store."""

    what: str
    """``load`` or ``store``."""
    place: Position
    awaited: str
    awaited_place: Position
    earlier_iteration: bool
    """Whether it waits only for an earlier iteration of a loop around both."""
    independent: bool
    """Whether the two touched no common byte in any workload."""

    def __str__(self) -> str:
        when = " of an earlier iteration" if self.earlier_iteration else ""
        proof = "they touch no byte in common" if self.independent else "they touch the same bytes"
        awaited = f"the {self.awaited} in line {self.awaited_place[0]}{when}"
        return f"the {self.what} in line {self.place[0]} waits for {awaited}; {proof}"


def waiting(facts: KernelFacts) -> tuple[Waiting, ...] | str:
    """The waits in the incumbent, checked on all workloads; or why they are not known."""
    found: dict[tuple[str, Position, str, Position], Waiting] = {}
    for workload in facts.workloads:
        waits = _of_workload(facts, workload)
        if isinstance(waits, str):
            return waits
        for wait in waits:
            key = (wait.what, wait.place, wait.awaited, wait.awaited_place)
            known = found.get(key, wait)
            found[key] = replace(
                wait,
                independent=wait.independent and known.independent,
                earlier_iteration=wait.earlier_iteration and known.earlier_iteration,
            )
    return tuple(found[key] for key in sorted(found))


def _of_workload(facts: KernelFacts, workload: Workload) -> list[Waiting] | str:
    task, configuration = facts.task, facts.task.space.shipped
    dims = reduced(task, workload.dims, moduli(task, configuration, workload.dims))
    arrays = task.arrays(dims)
    try:
        runnable = Launcher(task, replace(facts.board, sms=FEW_SMS)).runnable(configuration, dims, arrays)
        if isinstance(runnable, Failed):
            return runnable.reason
        chains = TokenChains(runnable.module.entry())
        memory, rng = _Recording(chains), np.random.default_rng(0)
        addresses = {}
        for name, array in arrays.items():
            data = np.zeros(array.shape, storage(array.dtype))
            if name in task.inputs:
                data = draw(task.distribution(name, dims), array.shape, rng).astype(storage(array.dtype))
            addresses[name] = memory.allocate(name, data, written=True).address
        run(runnable.module, runnable.bound(addresses, memory), runnable.launch.grid, memory)
    except (Unsupported, NeedsData, CompilerMissing) as reason:
        return str(reason)
    return memory.waits()


class _Recording(Memory):
    """A memory that compares the bytes of each access with those of the accesses that it waits for."""

    def __init__(self, chains: TokenChains) -> None:
        super().__init__(watch=False)
        self._before = {
            op: {wait.op: wait.earlier_iteration for wait in chains.all_before(op)}
            for op in chains.ops
            if direction(op) in ORDERED
        }
        self._touched: dict[Op, Keys] = {}
        self._met: set[tuple[Op, Op]] = set()

    def load(
        self, access: Access, addresses: Array, mask: Array | None, dtype: npt.DTypeLike, fill: Any = None
    ) -> Array:
        self._record(access, addresses, mask, np.dtype(dtype).itemsize)
        return super().load(access, addresses, mask, dtype, fill)

    def store(self, access: Access, addresses: Array, mask: Array | None, values: Array) -> None:
        self._record(access, addresses, mask, values.dtype.itemsize)
        super().store(access, addresses, mask, values)

    def waits(self) -> list[Waiting]:
        found = []
        for op, other, earlier in ((op, *pair) for op, before in self._before.items() for pair in before.items()):
            mine, others = direction(op), direction(other)
            if others in ORDERED and "store" in (mine, others):
                independent = (op, other) not in self._met
                places = _place(op.location), _place(other.location)
                found.append(Waiting(mine, places[0], others, places[1], earlier, independent))
        return found

    def _record(self, access: Access, addresses: Array, mask: Array | None, width: int) -> None:
        before: Mapping[Op, bool] = self._before.get(access.op, {})
        lanes = len(access.blocks)
        shape = (lanes, *np.broadcast_shapes(addresses.shape, () if mask is None else mask.shape)[1:])
        blocks = np.asarray(access.blocks, np.int64).reshape(lanes, *(1,) * (len(shape) - 1))
        keys = np.broadcast_to(addresses + (blocks << 48), shape)
        chosen = keys.reshape(-1) if mask is None else keys[np.broadcast_to(mask, shape)]
        every = np.unique((chosen[:, None] + np.arange(width)).reshape(-1))
        for other in before:
            if other in self._touched and np.isin(every, self._touched[other], assume_unique=True).any():
                self._met.add((access.op, other))
        known = self._touched.get(access.op)
        self._touched[access.op] = every if known is None else np.union1d(known, every)


def _place(location: Location | None) -> Position:
    while location is not None and location.caller is not None and location.file.endswith("/cuda/tile/_stub.py"):
        location = location.caller
    return (0, 0) if location is None else (location.line, location.column)
