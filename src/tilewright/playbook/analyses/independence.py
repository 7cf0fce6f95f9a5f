"""Finds which accesses of a kernel wait for other accesses, and which of these pairs never access the same byte.

Tile IR orders memory by tokens: a load waits for the earlier stores that may access the same array. The interpreter
runs the kernel on every workload, with extents reduced to one or two tiles and an equal remainder. For each access, it
compares its bytes with the bytes that the awaited access used before in the same block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import ToolFailed
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
Position = tuple[int, int]  # line (from 1) and column (from 0) in the source
ORDERED = ("load", "store")


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
    """Runs the incumbent on one reduced workload. Returns its waits, or the reason why it could not be run."""
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
    except (Unsupported, NeedsData, ToolFailed) as reason:
        return str(reason)
    return memory.waits()


class _Recording(Memory):
    """A memory that compares the bytes of each access with the bytes of the accesses for which it waits."""

    def __init__(self, chains: TokenChains) -> None:
        super().__init__(watch=False)
        self._before = {
            op: {wait.op: wait.earlier_iteration for wait in chains.all_before(op)}
            for op in chains.ops
            if direction(op) in ORDERED
        }
        self._bytes: dict[Op, Keys] = {}
        self._shared: set[tuple[Op, Op]] = set()

    def load(
        self, access: Access, addresses: Array, mask: Array | None, dtype: npt.DTypeLike, fill: Any = None
    ) -> Array:
        self._record(access, addresses, mask, np.dtype(dtype).itemsize)
        return super().load(access, addresses, mask, dtype, fill)

    def store(self, access: Access, addresses: Array, mask: Array | None, values: Array) -> None:
        self._record(access, addresses, mask, values.dtype.itemsize)
        super().store(access, addresses, mask, values)

    def waits(self) -> list[Waiting]:
        """Returns each pair of accesses in which one waits for the other and at least one is a store."""
        found = []
        for op, other, earlier in ((op, *pair) for op, before in self._before.items() for pair in before.items()):
            mine, others = direction(op), direction(other)
            if others in ORDERED and "store" in (mine, others):
                independent = (op, other) not in self._shared
                places = _place(op.location), _place(other.location)
                found.append(Waiting(mine, places[0], others, places[1], earlier, independent))
        return found

    def _record(self, access: Access, addresses: Array, mask: Array | None, width: int) -> None:
        """Records the bytes of an access, ``width`` bytes at each address. The key of a byte is ``address | block <<
        48``."""
        before: Mapping[Op, bool] = self._before.get(access.op, {})
        lanes = len(access.blocks)
        shape = (lanes, *np.broadcast_shapes(addresses.shape, () if mask is None else mask.shape)[1:])
        blocks = np.asarray(access.blocks, np.int64).reshape(lanes, *(1,) * (len(shape) - 1))
        keys = np.broadcast_to(addresses + (blocks << 48), shape)
        chosen = keys.reshape(-1) if mask is None else keys[np.broadcast_to(mask, shape)]
        every = np.unique((chosen[:, None] + np.arange(width)).reshape(-1))
        for other in before:
            if other in self._bytes and np.isin(every, self._bytes[other], assume_unique=True).any():
                self._shared.add((access.op, other))
        known = self._bytes.get(access.op)
        self._bytes[access.op] = every if known is None else np.union1d(known, every)


def _place(location: Location | None) -> Position:
    """Returns the position in the user's source; for an operation inside cuda.tile, the position of its caller."""
    while location is not None and location.caller is not None and location.file.endswith("/cuda/tile/_stub.py"):
        location = location.caller
    return (0, 0) if location is None else (location.line, location.column)
