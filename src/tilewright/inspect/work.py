"""Counts the work of a workload (FLOP and bytes) in the kernel's Tile IR, and computes the bound from it.

There are three methods; the result says which of them was used:

- A dry run of all blocks counts the floating-point operations, also on masked and padded elements. It counts each
  accessed byte once. Random data is made only for inputs on which addresses depend.
- If addresses depend on values that the kernel itself writes, a sample of the blocks runs with random inputs.
- If that is impossible, too, the numbers that the task declares are used.

`classify` compares the work with the roofline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilewright.compile.screen import work_of
from tilewright.errors import RequestError, ToolFailed
from tilewright.hardware.boards import Board
from tilewright.hardware.diagnosis import Diagnosis, diagnose
from tilewright.records import Bound, Configuration, Failed, MachineCode, Workload
from tilewright.task.task import Task
from tilewright.task.tensors import ArraySpec, Dims
from tilewright.tileir.run.counting import Counts
from tilewright.tileir.run.interpreter import largest_tile, run
from tilewright.tileir.run.launching import Launcher, Runnable
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.numbers import dtype_of
from tilewright.tileir.run.registry import Array, NeedsData, Unsupported
from tilewright.tileir.run.slicing import needed
from tilewright.verify.images import storage
from tilewright.verify.tolerance import draw

SAMPLED_BLOCKS = 64
DRY_ELEMENTS = 1 << 22
"""The limit for the number of blocks times the elements of the largest tile of addresses. Above this limit, the dry run
takes a sample of the blocks."""
MOST_ELEMENTS = 1 << 25
"""No more blocks of a dry run are counted once an operation has computed so many elements of addresses, because each of
few blocks may loop over many tiles (a persistent grid)."""
DRY_BLOCKS = 1 << 17
"""The most blocks of a dry run. If each block has 50 tiles, a dry run of this many blocks takes some seconds."""
DATA_BYTES = 1 << 28
"""The most bytes of inputs for which random data is made."""
HOPELESS_AFTER, HOPELESS = 0.25, 3.0
"""After ``HOPELESS_AFTER`` of its time, a count ends if at its speed so far it needs ``HOPELESS`` times its time."""


@dataclass(frozen=True)
class CountedWork:
    """FLOP and bytes of one launch of a workload.

    bytes: the bytes that are accessed, each counted once.
    source: a sentence that says how FLOP and bytes were found.
    counts: the work of each operation of the kernel; None if the task declares FLOP and bytes.
    static: True if the work was counted and no address depends on data.
    """

    flops: float
    bytes: float
    source: str
    counts: Counts | None = None
    static: bool = False

    @property
    def written(self) -> float:
        """The bytes that are stored. Each byte counts once."""
        return self.counts.scaled(self.counts.distinct_stored_bytes) if self.counts else 0.0

    @property
    def moved(self) -> float:
        """The bytes of all loads and stores, each access counted; 0 if the task declares the work."""
        return self.counts.scaled(self.counts.loaded_bytes + self.counts.stored_bytes) if self.counts else 0.0

    @property
    def products(self) -> float:
        """The FLOP of matrix products; 0 if the task declares the work."""
        return self.counts.scaled(self.counts.tensor_flop) if self.counts else 0.0

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of the factors in products, the dtype with the most FLOP first. tf32 is called tfloat32."""
        products = sorted(self.counts.ops if self.counts else (), key=lambda op: -op.tensor_flop)
        elements = [op.op.tile("lhs").element for op in products if op.tensor_flop]
        return tuple(dict.fromkeys("tfloat32" if each == "tf32" else dtype_of(each).name for each in elements))


def count(task: Task, workload: Workload, board: Board, configuration: Configuration | None = None) -> CountedWork:
    """Counts the work of ``configuration`` (default: the shipped one) on a workload."""
    configuration = configuration or task.space.shipped
    arrays = task.arrays(workload.dims)
    try:
        runnable = Launcher(task, board).runnable(configuration, workload.dims, arrays)
        if isinstance(runnable, Failed):
            return _declared(task, workload, runnable.reason)
        counts, static = _counts(task, workload.dims, runnable, arrays)
    except (Unsupported, ToolFailed) as reason:
        return _declared(task, workload, str(reason))
    if isinstance(counts, str):
        return _declared(task, workload, counts)
    return _counted(counts, arrays, str(configuration) or "the only configuration", static)


def count_launch(
    runnable: Runnable, arrays: Mapping[str, ArraySpec], seconds: float, sample: int | None = SAMPLED_BLOCKS
) -> CountedWork | None:
    """Counts the work of a launch whose arrays are only specified, without data.

    sample: the number of blocks to count; None: all blocks.
    Returns None if addresses depend on data, if there are too many blocks, or if counting exceeds ``seconds``, which a
    count notices early (`hopeless`).
    """
    entry, blocks = runnable.module.entry(), math.prod(runnable.launch.grid)
    if sample is None and blocks > min(DRY_BLOCKS, DRY_ELEMENTS // largest_tile(entry, needed(entry))):
        return None
    try:
        counts = runnable.dry_run(
            arrays, sample=sample, seconds=seconds, checks_assumptions=False, on_progress=hopeless(seconds)
        )[0].counts
    except (NeedsData, Unsupported, ToolFailed, TypeError):
        return None
    return _counted(counts, arrays, "the launch", static=True)


def hopeless(seconds: float, clock: Callable[[], float] = time.thread_time) -> Callable[[float], None]:
    """Returns a function for `Runnable.dry_run` that gets the share that is done. It raises Unsupported if the run will
    certainly exceed ``seconds``. A share below an earlier one says nothing, because it is of another loop."""
    started, highest = clock(), 0.0

    def look(share: float) -> None:
        nonlocal highest
        spent = clock() - started
        if share > highest and spent > max(HOPELESS_AFTER, HOPELESS * share) * seconds:
            raise Unsupported("the run will exceed its time limit: its blocks loop over many tiles")
        highest = max(highest, share)

    return look


def _counted(counts: Counts, arrays: Mapping[str, ArraySpec], whose: str, static: bool) -> CountedWork:
    blocks = f"{counts.blocks} of {counts.grid_blocks} blocks" if counts.sampled else f"all {counts.blocks} blocks"
    touched = counts.distinct_loaded_bytes + counts.distinct_stored_bytes
    return CountedWork(
        flops=counts.scaled(counts.tensor_flop + counts.flop),
        bytes=min(counts.scaled(touched), float(sum(array.nbytes for array in arrays.values()))),
        source=f"counted in Tile IR of {whose}, {blocks}",
        counts=counts,
        static=static,
    )


def bound_of(task: Task, workload: Workload, board: Board, counted: CountedWork | None = None) -> Bound:
    """Returns the bound of the counted work. If the task declares less work, that work sets the speed of light.

    counted: the work of the shipped configuration if it is known; otherwise it is counted here.
    """
    work = counted or count(task, workload, board)
    least_flops = min(work.flops, task.work(workload.dims))
    least_bytes = min(work.bytes, task.traffic(workload.dims))
    return classify(
        work.flops, work.bytes, task.compute_dtype, board,
        least_flops=least_flops, least_bytes=least_bytes, source=work.source,
    )  # fmt: skip


def _counts(
    task: Task, dims: Dims, runnable: Runnable, arrays: dict[str, ArraySpec]
) -> tuple[Counts | str, bool]:  # fmt: skip
    """Returns the counts, or the reason why counting is impossible. Also returns whether counting needed no data.

    Counts all blocks, or a sample if tiles of addresses are large. Makes data only for inputs on which addresses or
    control flow depend. If these depend on values that the kernel itself writes, runs a sample with all data.
    """
    rng, drawn = np.random.default_rng(0), 0

    def data(name: str) -> Array | None:
        nonlocal drawn
        drawn += arrays[name].nbytes
        if name not in task.inputs or drawn > DATA_BYTES:
            return None
        return draw(task.distribution(name, dims), arrays[name].shape, rng).astype(storage(arrays[name].dtype))

    entry = runnable.module.entry()
    affordable = min(DRY_BLOCKS, DRY_ELEMENTS // largest_tile(entry, needed(entry)))
    sample = max(SAMPLED_BLOCKS, affordable) if math.prod(runnable.launch.grid) > affordable else None
    try:
        executed, _ = runnable.dry_run(
            arrays, sample=sample, most_elements=MOST_ELEMENTS, data=data, checks_assumptions=False
        )
        return executed.counts, drawn == 0
    except NeedsData as reason:
        why = f"{reason} depends on data"
    if sum(array.nbytes for array in arrays.values()) > DATA_BYTES:
        return f"{why}, and the inputs are larger than {DATA_BYTES >> 20} MiB", False
    memory, drawn, addresses = Memory(watch=False), 0, {}
    for name, array in arrays.items():
        elements = data(name)
        elements = np.zeros(array.shape, storage(array.dtype)) if elements is None else elements
        addresses[name] = memory.allocate(name, elements).address
    arguments, grid = runnable.bound(addresses, memory), runnable.launch.grid
    return run(runnable.module, arguments, grid, memory, sample=SAMPLED_BLOCKS).counts, False


def _declared(task: Task, workload: Workload, reason: str) -> CountedWork:
    flops, moved = task.work(workload.dims), task.traffic(workload.dims)
    return CountedWork(flops, moved, f"as the task declares: not counted, {reason}")


def diagnosis_of(
    task: Task, workload: Workload, launched: tuple[MachineCode, Sequence[int]], bound: Bound, board: Board,
    counted: CountedWork | None = None, measured_us: float | None = None,
) -> Diagnosis:  # fmt: skip
    """Names the resource that limits a launch of a workload.

    launched: the machine code and the grid.
    counted: the work of the launched configuration; without it, traffic is not examined.
    measured_us: the measured time; without it, the predicted time is used.
    """
    moved, products = (counted.moved, counted.products) if counted else (0.0, 0.0)
    least = work_of(task, workload.dims)
    return diagnose(bound, *launched, least, board, moved=moved, products=products, measured_us=measured_us)


MEMORY_BELOW = 10.0
"""A kernel with fewer FLOP per byte is called memory-bound."""
COMPUTE_ABOVE = 50.0
"""A kernel with more FLOP per byte is called compute-bound."""


def classify(
    flops: float, bytes_: float, dtype: str, board: Board, *, least_flops: float | None = None,
    least_bytes: float | None = None, source: str = "",
) -> Bound:  # fmt: skip
    """Returns the bound of a launch of ``flops`` FLOP that moves ``bytes_`` bytes, with its reason.

    The kind of bound follows from fixed thresholds (10 and 50 FLOP per byte). It only decides the order in which
    optimizations are tried. The speed of light follows from the GPU's roofline, whose rates are the vendor's
    peaks: no kernel can be faster. Kind and roofline may disagree: 60 FLOP per byte is above 50, but under the ridge of
    an H200. Then the reason says both.

    flops: 0 for a pure copy.
    dtype: the dtype of the products. A dtype without a tensor path gets the float32 rate of the CUDA cores.
    least_flops, least_bytes: the least work of any kernel for this workload, if the given kernel does more.
    source: a sentence that says where the numbers come from.
    Raises RequestError if ``flops`` is negative, ``bytes_`` is not above 0, or either is not finite.
    """
    if not (math.isfinite(flops) and flops >= 0 and math.isfinite(bytes_) and bytes_ > 0):
        given = f"cannot classify {flops:g} FLOP over {bytes_:g} bytes"
        raise RequestError(f"{given}: FLOP must be 0 or more, bytes above 0")
    intensity = flops / bytes_
    ridge = board.ridge(dtype)
    kind: Literal["memory", "balanced", "compute"]
    if intensity < MEMORY_BELOW:
        kind, threshold = "memory", f"below {MEMORY_BELOW:g}"
    elif intensity > COMPUTE_ABOVE:
        kind, threshold = "compute", f"above {COMPUTE_ABOVE:g}"
    else:
        kind, threshold = "balanced", f"between {MEMORY_BELOW:g} and {COMPUTE_ABOVE:g}"
    work_us = (flops if least_flops is None else least_flops) / (board.tflops(dtype) * 1e6)
    traffic_us = (bytes_ if least_bytes is None else least_bytes) / (board.bandwidth_gbs * 1e3)
    contradicts = (kind == "compute" and intensity < ridge) or (kind == "memory" and intensity > ridge)
    side = "above" if intensity > ridge else "at" if intensity == ridge else "under"
    cores = "" if dtype in board.tensor_tflops else " of the CUDA cores"
    rates = f"{_number(board.tflops(dtype))} TFLOP/s{cores} over {board.bandwidth_gbs / 1e3:.3g} TB/s"
    work, traffic = f"work {_number(work_us)} µs", f"traffic {_number(traffic_us)} µs"
    larger, smaller = (work, traffic) if work_us > traffic_us else (traffic, work)
    terms = f"{larger} is the larger term ({smaller})" if work_us != traffic_us else f"{work} and {traffic} are equal"
    why = (
        f"{_number(intensity)} FLOP/B: {threshold} {'but' if contradicts else 'and'} {side} "
        f"the ridge of {_number(ridge)} ({board.name}, {dtype}: {rates}): {kind}; {terms}"
    )
    return Bound(kind, why, intensity, ridge, max(work_us, traffic_us), source, flops, bytes_)


def _number(value: float) -> str:
    """Formats a number with three significant digits, or from 100 on as a whole number: 1365, 206, 4.37."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
