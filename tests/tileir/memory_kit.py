"""Accesses to memory without an interpreter: what the tests of memory, sanitizer and atomics share."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.tileir.read.tree import Location, Op, TileType
from tilewright.tileir.run.memory import Access, Allocation, Memory
from tilewright.tileir.watch.findings import Finding

GRID = (4, 8, 2)


def access(blocks: Any, name: str = "load_ptr_tko", line: int = 7, order: str = "weak", scope: Any = None) -> Access:
    """An access by these blocks, from kernel.py:``line``."""
    op = Op(name, ("%0",), (TileType((), "i32"),), {}, {}, location=Location("/home/kernel.py", line))
    scope = scope or (None if order == "weak" else "device")
    return Access(op, np.atleast_1d(np.asarray(blocks, np.int64)), order, scope, SimpleNamespace(grid=GRID))


def at(allocation: Allocation, elements: Any) -> Any:
    """Addresses (L, *tile) of elements, by their place from the first in memory; one row for a flat list."""
    elements = np.asarray(elements, np.int64)
    elements = elements[None] if elements.ndim < 2 else elements
    return allocation.address + elements * allocation.element_bytes


class Machine:
    """Memory, and accesses by block and element."""

    def __init__(self, **options: Any) -> None:
        self.memory = Memory(**options)

    def tensor(self, name: str, size: int = 64, dtype: Any = np.int32, **options: Any) -> Allocation:
        return self.memory.allocate(name, np.zeros(size, dtype), **options)

    def load(self, tensor: Allocation, blocks: Any, elements: Any, mask: Any = None, **how: Any) -> Any:
        dtype = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[tensor.element_bytes]
        return self.memory.load(access(blocks, **how), at(tensor, elements), mask, dtype)

    def store(
        self, tensor: Allocation, blocks: Any, elements: Any, values: Any = None, mask: Any = None, **how: Any
    ) -> None:
        addresses = at(tensor, elements)
        if values is None:  # a different one for each block
            values = np.broadcast_to(np.asarray(blocks).reshape(-1, *[1] * (addresses.ndim - 1)) + 1, addresses.shape)
        values = np.asarray(values, np.int32)
        self.memory.store(
            access(blocks, "store_ptr_tko", **how), addresses, mask, np.broadcast_to(values, addresses.shape)
        )

    def atomic(
        self, tensor: Allocation, blocks: Any, elements: Any, values: Any = 1, mode: str = "add", compare: Any = None,
        order: str = "relaxed", mask: Any = None, **how: Any,
    ) -> Any:  # fmt: skip
        addresses = at(tensor, elements)
        values = np.broadcast_to(np.asarray(values, np.int32), addresses.shape)
        if compare is not None:
            compare = np.broadcast_to(np.asarray(compare, np.int32), addresses.shape)
        name = "atomic_rmw_tko" if compare is None else "atomic_cas_tko"
        return self.memory.atomic(access(blocks, name, order=order, **how), addresses, mask, values, mode, compare)

    @property
    def findings(self) -> list[Finding]:
        return list(self.memory.findings)

    @property
    def kinds(self) -> list[str]:
        return [one.kind for one in self.memory.findings]


def lanes(count: int, width: int) -> Any:
    """Elements of ``count`` lanes side by side, ``width`` each."""
    return np.arange(count * width).reshape(count, width)


def orders(items: Sequence[Any]) -> list[list[Any]]:
    """A few orders of the items: as given, reversed, shuffled."""
    shuffled = [items[i] for i in np.random.default_rng(1).permutation(len(items))]
    return [list(items), list(items)[::-1], shuffled]
