"""Do addresses hold beyond 2³¹ elements?

A shape of that size needs no memory here: a dry run of some of its blocks follows every address, and each
must lie within its tensor. An index that a kernel computes in 32 bits wraps round and does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tilewright.errors import CompilerMissing
from tilewright.hardware.architectures import Board
from tilewright.records import Configuration, Failed, Value
from tilewright.task.task import Task
from tilewright.task.tensors import Dims
from tilewright.tileir.run.launching import Launcher
from tilewright.tileir.run.registry import Array, NeedsData, Unsupported
from tilewright.tileir.watch.allocations import Allocation
from tilewright.tileir.watch.findings import Finding
from tilewright.verify.shapes import Moduli, extent

ELEMENTS = 1 << 31
LONGEST = 1 << 31
BEYOND = 1.25
"""Times `ELEMENTS`, so that a good share of the blocks lies beyond it."""
BLOCKS = 128
"""A sample: a fifth of them lies beyond 2³¹ elements."""
Word = Literal["correct", "unverified", "incorrect"]
MANY_SMS = 1 << 20
"""What the launch function is told that the board has, lest a few persistent blocks walk over all of it."""


@dataclass(frozen=True)
class Reached:
    """What became of the addresses; ``reason`` says it in words."""

    verdict: Word
    reason: str
    findings: tuple[Finding, ...] = ()


Reaches = Callable[[Configuration, Dims, int], Reached]


def huge(task: Task, dims: Dims, tiles: Mapping[str, Moduli]) -> dict[str, Value] | None:
    """``dims`` with one dimension so long that the largest tensor has more than 2³¹ elements and every tile's
    remainder stays; None where the task serves no such shape."""
    names = [name for name in (*task.independent, *tiles) if name in tiles]
    elements = max(math.prod(array.shape) for array in task.arrays(dims).values())
    for name in dict.fromkeys(names):
        step, size = tiles[name].sizes[0], extent(dims, name)
        wanted = math.ceil(BEYOND * ELEMENTS / max(elements, 1) * size)
        changed = {**dims, name: size % step + step * math.ceil(wanted / step)}
        shapes = [array.shape for array in task.arrays(changed).values()]
        if max(max(shape, default=0) for shape in shapes) >= LONGEST:
            continue  # extents are arguments of 32 bits
        if max(map(math.prod, shapes)) > ELEMENTS and task.promises(changed):
            return changed
    return None


class Reaching:
    """Follows the addresses of one task's launches."""

    def __init__(self, task: Task, board: Board) -> None:
        self._launcher = Launcher(task, replace(board, sms=MANY_SMS))

    def __call__(self, configuration: Configuration, dims: Dims, seed: int) -> Reached:
        """Runs a sample of the blocks, drawn with ``seed``."""
        arrays = self._launcher.task.arrays(dims)
        try:
            runnable = self._launcher.runnable(configuration, dims, arrays)
            if isinstance(runnable, Failed):
                return Reached("unverified", f"does not compile: {runnable.reason}")
            done, placed = runnable.dry_run(arrays, sample=BLOCKS, seed=seed)
        except NeedsData as operation:
            return Reached("unverified", f"the addresses of {operation} depend on data")
        except (Unsupported, CompilerMissing, MemoryError) as error:
            return Reached("unverified", str(error) or type(error).__name__)
        if done.findings:
            return Reached("incorrect", str(done.findings[0]), done.findings)
        for way, runs in (("reads", done.counts.loaded_runs), ("writes", done.counts.stored_runs)):
            if (outside := _outside(runs, placed)) is not None:
                return Reached("incorrect", f"{way} {outside}")
        return Reached("correct", f"every address of {done.blocks} blocks lies within its tensor")


def _outside(runs: Array, placed: Sequence[Allocation]) -> str | None:
    """The first run of addresses that no tensor holds, in words."""
    inside = np.zeros(len(runs), bool)
    for one in placed:
        inside |= (runs[:, 0] >= one.address) & (runs[:, 1] <= one.address + one.nbytes)
    where = np.flatnonzero(~inside)
    if not where.size:
        return None
    first = int(runs[where[0], 0])
    near = min(placed, key=lambda one: min(abs(first - one.address), abs(first - one.address - one.nbytes)))
    return f"outside every tensor, {first - near.address} bytes from the start of '{near.name}'"
