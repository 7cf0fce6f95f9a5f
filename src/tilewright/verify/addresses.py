"""Checks the addresses that a kernel computes in tensors of more than 2³¹ elements.

No memory of that size is needed: a dry run computes all addresses of some blocks, without data. Each address must lie
within its tensor. If a kernel computes an index in 32 bits, the index overflows and the address lies outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tilewright.errors import ToolFailed
from tilewright.hardware.architectures import Board
from tilewright.records import Configuration, Correctness, Failed, Value
from tilewright.task.task import Task
from tilewright.task.tensors import Dims, is_whole
from tilewright.tileir.run.launching import Launcher
from tilewright.tileir.run.registry import Array, NeedsData, Unsupported
from tilewright.tileir.watch.allocations import Allocation
from tilewright.tileir.watch.findings import Finding
from tilewright.verify.images import storage
from tilewright.verify.shapes import Tiles, extent
from tilewright.verify.tolerance import draw

ELEMENTS = 1 << 31
LONGEST = 1 << 31
BEYOND = 1.25  # the largest tensor has 1.25 × `ELEMENTS`, so that a fifth of the blocks lies beyond 2³¹ elements
BLOCKS = 128  # number of blocks that are sampled
MOST_INDICES = 1 << 24  # the most elements of an integer input from which addresses are computed
SECONDS = 10.0  # time limit of all blocks; one block that loops over all tiles would take hours
MANY_SMS = 1 << 20
"""The number of SMs that a launch function sees. With fewer, a block of a persistent kernel would loop over too many
tiles."""


@dataclass(frozen=True)
class Reached:
    """The verdict on the addresses of one launch."""

    verdict: Correctness
    reason: str
    findings: tuple[Finding, ...] = ()


Reaches = Callable[[Configuration, Dims, int], Reached]


def huge(task: Task, dims: Dims, tiles: Tiles) -> dict[str, Value] | None:
    """Lengthens one dimension until the largest tensor has more than 2³¹ elements. Returns all dimensions.

    The dimension keeps its remainder modulo the tile size. Returns None if the task does not support such a shape.
    """
    names = [name for name in (*task.independent, *tiles) if name in tiles]
    elements = max(math.prod(array.shape) for array in task.arrays(dims).values())
    for name in dict.fromkeys(names):
        step, size = tiles[name].sizes[0], extent(dims, name)
        wanted = math.ceil(BEYOND * ELEMENTS / max(elements, 1) * size)
        changed = {**dims, name: size % step + step * math.ceil(wanted / step)}
        shapes = [array.shape for array in task.arrays(changed).values()]
        if max(max(shape, default=0) for shape in shapes) >= LONGEST:
            continue  # extents are 32-bit arguments
        if max(map(math.prod, shapes)) > ELEMENTS and task.promises(changed):
            return changed
    return None


class Reaching:
    """Computes the addresses that launches of one task access, and tests whether the addresses lie in the tensors."""

    def __init__(self, task: Task, board: Board) -> None:
        self._launcher = Launcher(task, replace(board, sms=MANY_SMS))

    def __call__(self, configuration: Configuration, dims: Dims, seed: int) -> Reached:
        """Judges the addresses of `BLOCKS` blocks, which are drawn with ``seed``."""
        arrays = self._launcher.task.arrays(dims)
        try:
            runnable = self._launcher.runnable(configuration, dims, arrays)
            if isinstance(runnable, Failed):
                return Reached("unverified", f"{runnable.stage}: {runnable.reason}")
            data = partial(self._indices, dims, np.random.default_rng(seed))
            done, placed = runnable.dry_run(arrays, sample=BLOCKS, seed=seed, seconds=SECONDS, data=data)
        except NeedsData as operation:
            return Reached("unverified", f"the addresses of {operation} depend on data")
        except (Unsupported, ToolFailed, MemoryError) as error:
            return Reached("unverified", str(error) or type(error).__name__)
        if done.findings:
            return Reached("incorrect", str(done.findings[0]), done.findings)
        for way, runs in (("reads", done.counts.loaded_runs), ("writes", done.counts.stored_runs)):
            if (place := outside(runs, placed)) is not None:
                return Reached("incorrect", f"{way} {place}")
        return Reached("correct", f"every address of {done.blocks} blocks lies within its tensor")

    def _indices(self, dims: Dims, rng: np.random.Generator, name: str) -> Array | None:
        """Draws an integer input, from which a kernel may compute addresses.

        Returns None for an input that is not of integers or has too many elements.
        """
        spec = self._launcher.task.inputs.get(name)
        if spec is None or not is_whole(spec.dtype):
            return None
        shape = self._launcher.task.arrays(dims)[name].shape
        if math.prod(shape) > MOST_INDICES:
            return None
        return draw(self._launcher.task.distribution(name, dims), shape, rng).astype(storage(spec.dtype))


def outside(runs: Array, placed: Sequence[Allocation]) -> str | None:
    """Describes the first range of addresses outside all tensors; None if there is none.

    runs: the ranges, shape (n, 2): the first address, and the address after the last byte.
    """
    inside = np.zeros(len(runs), bool)
    for tensor in placed:
        inside |= (runs[:, 0] >= tensor.address) & (runs[:, 1] <= tensor.address + tensor.nbytes)
    if inside.all():
        return None
    first = int(runs[inside.argmin(), 0])
    near = min(placed, key=lambda tensor: min(abs(first - tensor.address), abs(first - tensor.address - tensor.nbytes)))
    return f"outside every tensor, {first - near.address} bytes from the start of '{near.name}'"
