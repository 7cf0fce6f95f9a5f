"""The work of a workload, counted in the kernel's own Tile IR instead of taken from its author.

A dry run of the configuration shipped today, over all blocks: floating-point work as it is executed
(masked and padded parts too), and each byte of memory that is touched, once. Where addresses depend on
data, a sample of the blocks runs on drawn inputs, and the result says so. Where neither works, the
author's numbers are used, and the reason is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.errors import CompilerMissing
from tilewright.hardware.architectures import Board
from tilewright.hardware.roofline import classify
from tilewright.records import Bound, Configuration, Failed, Workload
from tilewright.task.task import Task
from tilewright.task.tensors import ArraySpec, Dims
from tilewright.tileir.run.counting import Counts
from tilewright.tileir.run.interpreter import largest_tile, run
from tilewright.tileir.run.launching import Launcher, Runnable
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.registry import NeedsData, Unsupported
from tilewright.tileir.run.slicing import needed
from tilewright.verify.images import storage
from tilewright.verify.tolerance import draw

SAMPLED_BLOCKS = 64
DRY_ELEMENTS = 1 << 22
"""Elements of the largest tile of addresses, times the blocks of a dry run; above it, only a sample of blocks runs."""
DATA_BYTES = 1 << 28
"""Inputs that a sampled run may draw."""


@dataclass(frozen=True)
class CountedWork:
    """FLOP and bytes of one workload, and where they come from."""

    flops: float
    bytes: float
    """Each byte that is touched, once."""
    source: str
    counts: Counts | None = None


def count(task: Task, workload: Workload, board: Board, configuration: Configuration | None = None) -> CountedWork:
    """The work of ``configuration``, by default the one shipped today."""
    configuration = configuration or task.space.shipped
    arrays = task.arrays(workload.dims)
    try:
        runnable = Launcher(task, board).runnable(configuration, workload.dims, arrays)
        if isinstance(runnable, Failed):
            return _declared(task, workload, runnable.reason)
        counts = _counts(task, workload.dims, runnable, arrays)
    except (Unsupported, CompilerMissing) as reason:
        return _declared(task, workload, str(reason))
    if isinstance(counts, str):
        return _declared(task, workload, counts)
    blocks = f"{counts.blocks} of {counts.grid_blocks} blocks" if counts.sampled else f"all {counts.blocks} blocks"
    touched = counts.distinct_loaded_bytes + counts.distinct_stored_bytes
    return CountedWork(
        flops=counts.scaled(counts.tensor_flop + counts.flop),
        bytes=min(counts.scaled(touched), float(sum(array.nbytes for array in arrays.values()))),
        source=f"counted in Tile IR of {configuration}, {blocks}",
        counts=counts,
    )


def bound_of(task: Task, workload: Workload, board: Board) -> Bound:
    """The roofline on counted work. The author's stated minimum still sets the speed of light."""
    work = count(task, workload, board)
    return classify(
        work.flops,
        work.bytes,
        task.compute_dtype,
        board,
        least_flops=min(work.flops, task.work(workload.dims)),
        least_bytes=min(work.bytes, task.traffic(workload.dims)),
        source=work.source,
    )


def _counts(task: Task, dims: Dims, runnable: Runnable, arrays: dict[str, ArraySpec]) -> Counts | str:
    """Counts over all blocks without data, or a sample where blocks compute large tiles of addresses. Where addresses
    depend on data, a sample with data. A reason where neither works."""
    entry = runnable.module.entry()
    affordable = DRY_ELEMENTS // largest_tile(entry, needed(entry))
    sample = max(SAMPLED_BLOCKS, affordable) if math.prod(runnable.launch.grid) > affordable else None
    try:
        return runnable.dry_run(arrays, sample=sample)[0].counts
    except NeedsData as reason:
        why = f"{reason} depends on data"
    if sum(array.nbytes for array in arrays.values()) > DATA_BYTES:
        return f"{why}, and the inputs are larger than {DATA_BYTES >> 20} MiB"
    return _sampled(task, dims, runnable, arrays)


def _sampled(task: Task, dims: Dims, runnable: Runnable, arrays: dict[str, ArraySpec]) -> Counts:
    memory, rng = Memory(watch=False), np.random.default_rng(0)
    addresses = {}
    for name, array in arrays.items():
        if name in task.inputs:
            data = draw(task.distribution(name, dims), array.shape, rng).astype(storage(array.dtype))
        else:
            data = np.zeros(array.shape, storage(array.dtype))
        addresses[name] = memory.allocate(name, data, written=True).address
    return run(
        runnable.module, runnable.bound(addresses, memory), runnable.launch.grid, memory, sample=SAMPLED_BLOCKS
    ).counts


def _declared(task: Task, workload: Workload, reason: str) -> CountedWork:
    flops, moved = task.work(workload.dims), task.traffic(workload.dims)
    return CountedWork(flops, moved, f"as the task declares: not counted, {reason}")
