"""Compares all blocks of a grid by the values that depend on the block number.

A kernel that treats one block differently must compute some value differently in this block. The run that follows all
addresses computes the values on which addresses depend. This module computes the other values, by runs without memory.
If a value depends on some axes of the grid only, one block for each position along these axes is enough. Values that
also depend on data are computed with the same data in all blocks, so only the block number can make them differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.errors import ToolFailed
from tilewright.task.task import Task
from tilewright.task.tensors import Dims
from tilewright.tileir.read.tree import Op, TileType
from tilewright.tileir.run.counting import Counts
from tilewright.tileir.run.dependence import BlockValue, block_values, needed_for
from tilewright.tileir.run.launching import Runnable
from tilewright.tileir.run.registry import NeedsData, Unsupported
from tilewright.tileir.run.samples import Samples
from tilewright.tileir.run.slicing import needed
from tilewright.tileir.watch.arrays import Array
from tilewright.tileir.watch.decisions import Decisions
from tilewright.verify.data import drawn
from tilewright.verify.images import held_before
from tilewright.verify.judge import Unverified
from tilewright.verify.own_values import PERIOD

FOLLOWED = 1e8
"""The number of elements that a run without memory computes in a second, on one CPU core of 2026."""
TENSOR_FLOP = 1e9
POOL = 1 << 20  # elements of a tensor from which data is taken


@dataclass(frozen=True)
class BlockNumbers:
    """The values of one launch by which its blocks are compared."""

    task: Task
    runnable: Runnable
    dims: Dims
    seed: int
    in_parts: bool = False  # whether blocks also differ in the parts of tiles that they load

    @cached_property
    def values(self) -> list[BlockValue]:
        return block_values(self.runnable.module.entry(), self.in_parts)

    @cached_property
    def by_addresses(self) -> dict[str, bool]:
        """The values that the run of all addresses computes and that may differ in each block.

        Maps the name of a value to whether the value is telling (`BlockValue`).
        """
        steering = needed(self.runnable.module.entry())
        return {one.name: one.telling for one in self.values if one.name in steering and self._axes(one) == self._full}

    @cached_property
    def others(self) -> Mapping[frozenset[int], dict[str, bool]]:
        """The values that are not in `by_addresses`, by the axes of the grid on which the values depend.

        Maps the name of a value to whether the value is telling (`BlockValue`).
        """
        groups: dict[frozenset[int], dict[str, bool]] = defaultdict(dict)
        for one in self.values:
            if one.name not in self.by_addresses and (axes := self._axes(one)):
                groups[axes][one.name] = one.telling
        return groups

    @property
    def _full(self) -> frozenset[int]:
        return frozenset(axis for axis, extent in enumerate(self.runnable.launch.grid) if extent > 1)

    def _axes(self, value: BlockValue) -> frozenset[int]:
        return value.axes & self._full

    def alike(self, axes: Iterable[int]) -> Array:
        """Returns, for each block, the first block at the same position along ``axes``."""
        x, y, z = (*self.runnable.launch.grid, 1, 1)[:3]
        number = np.arange(x * y * z)
        parts = (number % x, number // x % y * x, number // (x * y) * x * y)
        return np.asarray(sum((parts[axis] for axis in axes), np.zeros_like(number)))

    def seconds(self, counts: Counts) -> float:
        """Estimates the time of `follow`. ``counts``: the work of all blocks."""
        return sum(self._seconds(axes, names, counts) for axes, names in self.others.items())

    def _seconds(self, axes: frozenset[int], names: Iterable[str], counts: Counts) -> float:
        computed = needed_for(self.runnable.module.entry(), names, self.in_parts)
        part = len(np.unique(self.alike(axes))) / max(counts.blocks, 1)
        ops = [one for one in counts.ops if not computed.isdisjoint(one.op.results)]
        elements = sum(one.executed * _elements(one.op) for one in ops)
        return part * (elements / FOLLOWED + sum(one.tensor_flop for one in ops) / TENSOR_FLOP)

    def follow(self, decisions: Decisions, seconds: float, on_progress: Callable[[float], None]) -> None:
        """Adds the results of the values in `others` to ``decisions``. Raises `Unverified` if a value is unknown."""
        arrays, samples = self.task.arrays(self.dims), Samples(self._data, self.in_parts)
        for axes, names in self.others.items():
            alike = self.alike(axes)
            found = Decisions(len(alike), self.seed)
            try:
                self.runnable.dry_run(
                    arrays, seed=None, seconds=seconds, decisions=found, recorded=names, samples=samples,
                    only=np.unique(alike).tolist(), checks_assumptions=False, on_progress=on_progress,
                )  # fmt: skip
            except NeedsData as operation:
                raise Unverified(f"the {operation} of a block depends on data") from None
            except (Unsupported, ToolFailed, MemoryError) as error:
                raise Unverified(str(error) or type(error).__name__) from None
            if (op := found.unknown) is not None:
                place = f" ({op.location})" if op.location else ""
                raise Unverified(f"{op.name}{place} combines the block number with data that is not known in advance")
            decisions.join(found, alike)

    def _data(self, name: str) -> Array | None:
        """Returns the first elements that a tensor has before a launch; None if the tensor has no defined values."""
        known = name in self.task.tensors
        source = held_before(self.task, name) if known else None
        return None if source is None else self._inputs[source]

    @cached_property
    def _inputs(self) -> Mapping[str, Array]:
        inputs = drawn(self.task, self.dims, "declared", self.seed, PERIOD)
        return {name: array.reshape(-1)[:POOL].copy() for name, array in inputs.items()}


def _elements(op: Op) -> int:
    kinds = [kind for kind in op.result_types if isinstance(kind, TileType)]
    return max((kind.size for kind in kinds), default=1)
