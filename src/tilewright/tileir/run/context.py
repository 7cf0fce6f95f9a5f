"""What an operation may use of the interpreter: which blocks run, their memory, and where to report.

`World` is one run of a grid; `Context` is one operation's view of it, for the lanes that are active.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.tileir.read.tree import Location, Op, Region
from tilewright.tileir.run.counting import Counter
from tilewright.tileir.run.memory import Access, Memory
from tilewright.tileir.run.registry import Array
from tilewright.tileir.watch.findings import Finding, Findings, block_of

Grid: TypeAlias = tuple[int, int, int]
Element: TypeAlias = tuple[str, tuple[int, ...]]
"""A tensor's name and an index."""


@dataclass(frozen=True)
class Printed:
    """What a ``print`` of the kernel wrote, and which block."""

    block: Grid
    text: str


@dataclass
class World:
    """One run of a grid: what all its blocks share."""

    grid: Grid
    memory: Memory
    counter: Counter
    findings: Findings = field(default_factory=Findings)
    poison: int = 0xFF
    dry: bool = False
    irrelevant: frozenset[str] = frozenset()
    """Promises that need not hold (`assumptions.irrelevant`)."""
    prints: list[Printed] = field(default_factory=list)
    undefined: dict[Location | None, None] = field(default_factory=dict)
    """Where undefined elements were loaded: outside a view without padding. That is a mistake only if a result depends
    on them."""
    wait: Callable[[Op], None] = lambda op: None
    """Called where a block may be waiting for another, with the loop in which: lets the others run."""

    def place(self, block: int) -> Grid:
        """The block's index along x, y and z."""
        return block_of(block, self.grid)


class Context:
    """One operation's view of the run; the active lanes are those of ``blocks``."""

    def __init__(
        self, world: World, blocks: Array, run_region: Callable[[Region, Sequence[Array]], tuple[Array, ...]]
    ) -> None:
        self.world, self.blocks, self.lanes = world, blocks, len(blocks)
        self.grid, self.memory, self.dry, self.poison = world.grid, world.memory, world.dry, world.poison
        self.run_region = run_region
        """Runs a region over arrays with any leading axis; the operands of its terminator."""

    def finding(self, op: Op, kind: str, message: str, lane: int | None = None, element: Element | None = None) -> None:
        """Reports a finding. ``lane``: which of the active lanes; ``element``: a tensor's name and the index."""
        block = self.world.place(int(self.blocks[lane])) if lane is not None and lane < self.lanes else None
        tensor, index = element if element else (None, None)
        self.world.findings.add(Finding(kind, message, op.location, block, tensor, index, 1))

    def traffic(self, op: Op, direction: str, total_bytes: int, starts: Array, run_bytes: int) -> None:
        """Counts memory traffic: ``total_bytes`` over all lanes, in runs of ``run_bytes`` from ``starts``."""
        self.world.counter.traffic(op, direction, total_bytes, starts, run_bytes)

    def undefined(self, op: Op) -> None:
        """Notes that ``op`` loads elements that have no value."""
        self.world.undefined[op.location] = None

    def print(self, op: Op, text: str, lane: int = 0) -> None:
        self.world.prints.append(Printed(self.world.place(int(self.blocks[lane])), text))


def access_of(context: Context, op: Op) -> Access:
    """Who makes an access, in which order and scope: as ``op`` says."""
    order = op.attributes.get("memory_ordering_semantics", "weak")
    return Access(op, context.blocks, order, op.attributes.get("memory_scope"), context)
