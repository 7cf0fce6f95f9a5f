"""Holds the part of the interpreter that handlers use: the running blocks, their memory, and the collected findings.

`World` is the state of one run of a grid. `Context` gives a handler this state and the blocks that run the operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tilewright.tileir.read.tree import Location, Op, Region
from tilewright.tileir.run.counting import Counter
from tilewright.tileir.run.memory import Access, Memory
from tilewright.tileir.run.registry import Array, Elements
from tilewright.tileir.run.samples import Samples
from tilewright.tileir.watch.arrays import DType
from tilewright.tileir.watch.decisions import Decisions
from tilewright.tileir.watch.findings import Finding, Findings, block_of

Grid: TypeAlias = tuple[int, int, int]
CHANGED = 0x94  # bits to flip in a poison byte for ``changed_padding``: 0xFF (NaN) becomes 0x6B (a large number)


@dataclass(frozen=True)
class Printed:
    """The text that one block of the kernel printed."""

    block: Grid
    text: str


@dataclass
class World:
    """One run of a grid: the state that all its blocks share.

    poison: the byte that undefined values consist of.
    dry: whether only addresses and control flow are computed.
    changed_padding: the location of a load whose undefined elements consist of another byte than ``poison``.
    needed: the values that a dry run computes.
    steering: the needed values that addresses and control flow depend on.
    strides: the assumptions about strides (`tiles.assumed_strides`).
    checks_assumptions: whether false assumptions are findings.
    undefined: locations of loads that returned undefined elements: outside a view without padding, or masked out. Such
        a load is a mistake only if a result depends on the elements.
    wait: called after each iteration of a ``loop``, because a block may wait there for another block. Lets other blocks
        run.
    stopped: whether the run has ended, so that no block continues a loop.
    decisions: records the ``recorded`` values and the lengths of loops, by block.
    recorded: maps the name of a value to whether the value is telling (`dependence.BlockValue`).
    samples: the data that all blocks load, in a run without memory; None in all other runs.
    until: the time, by `time.monotonic`, after which a loop ends the run.
    on_progress: called with the share of the run that is done (0 to 1).
    literals: the results of operations without operands, such as constants. All blocks share them.
    batch: the share of the run (0 to 1) before the current batch of blocks, and the share of this batch.
    """

    grid: Grid
    memory: Memory
    counter: Counter
    findings: Findings = field(default_factory=Findings)
    poison: int = 0xFF
    dry: bool = False
    needed: frozenset[str] = frozenset()
    steering: frozenset[str] = frozenset()
    strides: Mapping[str, int] = field(default_factory=dict)
    checks_assumptions: bool = True
    prints: list[Printed] = field(default_factory=list)
    undefined: dict[Location | None, None] = field(default_factory=dict)
    changed_padding: Location | None = None
    wait: Callable[[Op], None] = lambda op: None
    stopped: bool = False
    decisions: Decisions | None = None
    recorded: Mapping[str, bool] = field(default_factory=dict)
    samples: Samples | None = None
    until: float = math.inf
    on_progress: Callable[[float], None] = lambda share: None
    batch: tuple[float, float] = (0.0, 1.0)
    literals: dict[Op, Array] = field(default_factory=dict)

    def advanced(self, share: float) -> None:
        """Reports that this share of the current batch is done."""
        before, part = self.batch
        self.on_progress(before + part * share)


class Context:
    """The state that a handler of an operation gets: the run, and the blocks that run the operation.

    blocks: the number of each active block.
    run_region: runs a region on arrays, and returns the values that the region yields. The arrays' first axis need not
        be the blocks.
    """

    def __init__(
        self, world: World, blocks: Array, run_region: Callable[[Region, Sequence[Array]], tuple[Array, ...]]
    ) -> None:
        self.world, self.blocks, self.lanes = world, blocks, len(blocks)
        self.grid, self.memory, self.dry, self.poison = world.grid, world.memory, world.dry, world.poison
        self.run_region = run_region

    def loads(self, op: Op, addresses: Array, mask: Array | None = None) -> bool:
        """Tells whether a dry run loads from ``addresses``.

        Three conditions must be true: addresses or control flow depend on the result, the access has no memory order,
        and the data is known.
        """
        if self.world.needed.isdisjoint(op.results) or access_of(self, op).order != "weak":
            return False
        if mask is not None:
            shape = np.broadcast_shapes(addresses.shape, mask.shape)
            addresses = np.broadcast_to(addresses, shape)[np.broadcast_to(mask, shape)]
        return self.memory.has_data(addresses)

    def sampled(self, addresses: Callable[[Array], Array], dtype: DType) -> Elements | None:
        """Returns the data that the first block loads, to be used for all blocks. None if each block loads its own.

        addresses: returns the addresses of some blocks, given by their positions in ``blocks``.
        """
        samples = self.world.samples
        return None if samples is None else samples.loaded(self.memory, addresses(np.zeros(1, np.int64)), dtype)

    @property
    def samples_parts(self) -> bool:
        return self.world.samples is not None and self.world.samples.in_parts

    def finding(self, op: Op, kind: str, message: str, lane: int | None = None) -> None:
        """Reports a finding about the active block at position ``lane``, or about the operation if ``lane`` is None."""
        block = block_of(int(self.blocks[lane]), self.grid) if lane is not None and lane < self.lanes else None
        self.world.findings.add(Finding(kind, message, op.location, block))

    def traffic(self, op: Op, direction: str, total_bytes: int, starts: Array, run_bytes: int) -> None:
        """Counts memory traffic: ``total_bytes`` over all blocks, ``run_bytes`` from each address in ``starts``."""
        self.world.counter.traffic(op, direction, total_bytes, starts, run_bytes)

    def decided(self, name: str, results: Array) -> None:
        """Records which part of a tile each of the active blocks loads (`watch.decisions`)."""
        if self.world.decisions is not None:
            self.world.decisions.add(name, results, self.blocks, telling=False, pattern=True)

    def undefined(self, op: Op) -> int:
        """Records that ``op`` loads undefined elements. Returns the byte that these elements consist of."""
        self.world.undefined[op.location] = None
        changed = op.location is not None and op.location == self.world.changed_padding
        return self.poison ^ CHANGED if changed else self.poison

    def print(self, op: Op, text: str, lane: int = 0) -> None:
        self.world.prints.append(Printed(block_of(int(self.blocks[lane]), self.grid), text))


def access_of(context: Context, op: Op) -> Access:
    """Returns the access of ``op`` by the active blocks, for the methods of `Memory`."""
    order = op.attributes.get("memory_ordering_semantics", "weak")
    return Access(op, context.blocks, order, op.attributes.get("memory_scope"), context)
