"""Checks a launch at a workload's full size (its *own shape*), with the interpreter.

A kernel may be correct on small shapes and wrong on large ones: its grid is limited, its loop stops early, or it
branches on an extent. Two kinds of runs show this without computing the whole output:

* All blocks of the full grid run without data. Every address must lie within its tensor, and the stores
  together must reach every byte of every output.
* The first, the last and randomly drawn blocks run on data. So do blocks that branch differently from most blocks
  (`tileir.watch.decisions`). Some of the values that a block stored are compared with the float64 reference.

Blocks that depend on one another (atomics, locks, two blocks that store the same element) cannot run alone. The full
size then stays unverified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.errors import ToolFailed
from tilewright.hardware.architectures import Board
from tilewright.progress import Progress, silent
from tilewright.records import Configuration, Failed
from tilewright.task.task import Task
from tilewright.task.tensors import ITEM_BYTES, Dims
from tilewright.tileir.read.tree import KernelEntry
from tilewright.tileir.run.counting import Counts
from tilewright.tileir.run.interpreter import largest_tile, may_wait, run
from tilewright.tileir.run.launching import Launcher, Runnable
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.registry import NeedsData, Unsupported
from tilewright.tileir.run.slicing import needed
from tilewright.tileir.watch.allocations import Allocation
from tilewright.tileir.watch.arrays import DType
from tilewright.tileir.watch.decisions import MOST_BLOCKS as MOST_DECISIONS
from tilewright.tileir.watch.decisions import Decisions
from tilewright.verify import judge, tolerance
from tilewright.verify.addresses import outside
from tilewright.verify.arrays import Array
from tilewright.verify.data import FAR_FROM_ZERO, drawn
from tilewright.verify.images import POISONS, held_before, storage
from tilewright.verify.judge import Compared, Unverified, Wrong
from tilewright.verify.reference import FloatReference
from tilewright.verify.tolerance import Slice

SECONDS = 60.0
BLOCKS = 4
"""Number of randomly drawn blocks that run on data, besides the first and the last block."""
HOSTILE = ("large", "rows of zeros", FAR_FROM_ZERO, "outliers")
"""Kinds of data for the drawn blocks, one kind for each block. Reduced shapes may not show the effect of such data: for
large shapes, a launch may choose another kernel, or the kernel may branch."""
UNUSUAL = 6
"""The most blocks that run on data because they branch differently from most blocks."""
MOST_RARE = 32
"""The most such blocks if their branches are rare. Only as many run as `RARE_SECONDS` suffice for."""
RARE_SECONDS = 5.0
MOST_RUN = BLOCKS + 2 + UNUSUAL
COMPARED = (1 << 16, 1 << 12, 1 << 8, 1)
"""Only conditions with at most this many elements are evaluated. The limits are tried from the largest, until the time
suffices."""
WALKED = 2e7
"""The number of addresses that a run without data computes in a second, on one CPU core of 2026."""
FLOP, TENSOR_FLOP = 1e8, 1e9
"""The number of FLOP that a run with data executes in a second: outside matrix products, and inside them."""
BYTES = 4 << 30
"""The most bytes of the tensors and of the float64 numbers from which they are drawn."""
MOST_BLOCKS = 2**31 - 1, 2**16 - 1, 2**16 - 1
"""The most blocks of a CUDA launch along x, y and z, on every device."""
PERIOD = 1_048_573
"""Large inputs repeat after this many elements. It is the largest prime below 2²⁰."""
REFERENCE_RATE = 1e9
"""The number of FLOP that a reference executes in a second. It is evaluated several times, in float64 and float32."""
PART_FLOP, PART_ELEMENTS = tolerance.REFERENCE_FLOP / 8, tolerance.REFERENCE_ELEMENTS / 4
"""Limits of the reference for one block: FLOP, and elements of a tensor."""


class OwnShapes:
    """Checks the launches of one task at full size. ``seconds``: limit for the estimated time of one case."""

    def __init__(self, task: Task, board: Board, seconds: float = SECONDS) -> None:
        self.task, self.seconds = task, seconds
        self._launcher = Launcher(task, board)

    def check(
        self, configuration: Configuration, dims: Dims, seed: int, reference: FloatReference,
        progress: Progress = silent,
    ) -> Compared:  # fmt: skip
        """Returns the compared element with the largest error. Raises `Wrong` for a mistake of the kernel.

        Raises `Unverified` if the check proves nothing or would take too long.
        """
        arrays = self.task.arrays(dims)
        runnable = self._runnable(configuration, dims)
        entry = runnable.module.entry()
        blocks = math.prod(runnable.launch.grid)
        self._refuse_long(_walk_seconds(entry, blocks, 0), "following all blocks")
        decisions = Decisions(blocks, seed) if blocks <= MOST_DECISIONS else None
        limits = (most for most in COMPARED if decisions and _walk_seconds(entry, blocks, most) < self.seconds / 4)
        try:
            walked, placed = runnable.dry_run(
                arrays, seed=None, seconds=self.seconds, decisions=decisions, distinguishing=next(limits, 0),
                on_progress=partial(_percents(progress, "addresses", f"of all {blocks} blocks at full size"), 0),
            )  # fmt: skip
        except NeedsData as operation:
            raise Unverified(f"the addresses of {operation} depend on data") from None
        except (Unsupported, ToolFailed, MemoryError) as error:
            raise Unverified(str(error) or type(error).__name__) from None
        if walked.findings:
            raise Wrong(str(walked.findings[0]))
        self._judge_addresses(dims, walked.counts, placed)
        self._refuse_dependent(entry, walked.counts)
        seconds = walked.counts.flop / FLOP + walked.counts.tensor_flop / TENSOR_FLOP
        self._refuse_long(seconds * min(1, MOST_RUN / blocks), "running some of the blocks")
        chosen = _drawn_blocks(blocks, seed)
        hostile = dict(zip(HOSTILE, chosen[1:-1], strict=False)) if blocks > len(chosen) else {}
        if decisions is not None:
            affordable = int(RARE_SECONDS * blocks / max(seconds, 1e-9))
            chosen = sorted({*chosen, *decisions.unusual(UNUSUAL, chosen, min(MOST_RARE, affordable))})
        stored = {one.name: _within(walked.counts.stored_runs, one) for one in placed if one.name in self.task.outputs}
        return self._values(runnable, dims, seed, reference, _OnData(chosen, hostile, stored), progress)

    def _runnable(self, configuration: Configuration, dims: Dims) -> Runnable:
        try:
            runnable = self._launcher.runnable(configuration, dims, self.task.arrays(dims))
        except ToolFailed as error:
            raise Unverified(str(error)) from None
        if isinstance(runnable, Failed):
            raise (Unverified if runnable.stage == "tool" else Wrong)(f"{runnable.stage} failed: {runnable.reason}")
        for axis, number, most in zip("xyz", runnable.launch.grid, MOST_BLOCKS, strict=False):
            if number > most:
                raise Wrong(f"the launch has {number} blocks along {axis}; a GPU takes at most {most}")
        return runnable

    def _refuse_long(self, seconds: float, what: str) -> None:
        if seconds > self.seconds:
            raise Unverified(f"{what} would take about {seconds:.0f} s, more than the budget of {self.seconds:g} s")

    # Addresses

    def _judge_addresses(self, dims: Dims, counts: Counts, placed: Sequence[Allocation]) -> None:
        for way, runs in (("reads", counts.loaded_runs), ("writes", counts.stored_runs)):
            if (place := outside(runs, placed)) is not None:
                raise Wrong(f"{way} {place}")
        for tensor in placed:
            output = self.task.outputs.get(tensor.name)
            if output is None or output.updates is not None:
                continue  # an updated output may keep its old values
            missing = _first_gap(counts.stored_runs, tensor.address, tensor.nbytes)
            if missing is not None:
                raise Wrong(f"no block stores {self._element(dims, tensor.name, missing)} at the workload's full size")

    def _refuse_dependent(self, entry: KernelEntry, counts: Counts) -> None:
        if may_wait(entry) or any(op.name.startswith("atomic") for op in entry.walk()):
            raise Unverified("blocks depend on one another (atomics), so some of them cannot run alone")
        if counts.stored_bytes > counts.distinct_stored_bytes:
            raise Unverified("some elements are stored more than once, so one block alone may not give the final value")

    def _element(self, dims: Dims, name: str, byte: int) -> str:
        """Names the element of a tensor that begins at ``byte``, or holds it."""
        array = self.task.arrays(dims)[name]
        return f"'{name}'[{', '.join(map(str, np.unravel_index(byte // ITEM_BYTES[array.dtype], array.shape)))}]"

    # Values

    def _values(
        self, runnable: Runnable, dims: Dims, seed: int, reference: FloatReference, chosen: _OnData, progress: Progress
    ) -> Compared:
        """Runs the chosen blocks, and compares what they store."""
        arrays = self.task.arrays(dims)
        needs = sum(math.prod(array.shape) * 8 + array.nbytes for array in arrays.values())
        if needs > BYTES:
            raise Unverified(f"its tensors need {needs / 2**30:.1f} GiB; the limit is {BYTES >> 30} GiB")
        memory, placed = Memory(watch=False, poison=POISONS[0]), {}
        for name, array in arrays.items():
            placed[name] = memory.allocate(name, np.empty(array.shape, storage(array.dtype)))
            if held_before(self.task, name) is None:
                placed[name].raw.fill(POISONS[0])
        arguments = runnable.bound({name: tensor.address for name, tensor in placed.items()}, memory)
        told = _percents(progress, "values", f"of {len(chosen.blocks)} blocks at full size", len(chosen.blocks))
        worst: Compared | None = None
        groups = [("declared", [block for block in chosen.blocks if block not in chosen.hostile.values()])]
        groups += [(kind, [block]) for kind, block in chosen.hostile.items()]
        done = 0
        for kind, some in groups:
            inputs = drawn(self.task, dims, kind, seed, PERIOD)
            for name, tensor in placed.items():
                if (source := held_before(self.task, name)) is not None:
                    _elements_of(tensor, inputs[source].dtype)[...] = inputs[source]
            for block in some:
                ran = run(
                    runnable.module, arguments, runnable.launch.grid, memory, only=(block,), poison=POISONS[0],
                    on_progress=partial(told, done),
                )  # fmt: skip
                if ran.findings:
                    raise Wrong(f"block {block}: {ran.findings[0]}")
                for name, stored in chosen.stored.items():
                    own, tensor = ran.counts, placed[name]
                    read = _first_foreign(_within(own.loaded_runs, tensor), stored, _within(own.stored_runs, tensor))
                    if read is not None:
                        element = self._element(dims, name, read)
                        raise Wrong(f"race: block {block} reads {element}, which another block stores")
                compared = self._compared(dims, inputs, placed, ran.counts.stored_runs, reference, block, kind)
                if isinstance(compared, str):
                    if kind == "declared":
                        raise Unverified(compared)
                    groups.append(("declared", [block]))
                    continue
                done += 1
                if compared is not None and (worst is None or compared.share > worst.share):
                    worst = compared
        if worst is None:
            raise Unverified("none of the blocks that ran stores an output")
        return worst

    def _compared(
        self, dims: Dims, inputs: Mapping[str, Array], placed: Mapping[str, Allocation], runs: Array,
        reference: FloatReference, block: int, kind: str,
    ) -> Compared | str | None:  # fmt: skip
        """Compares some elements that a block stored. Returns the one with the largest error.

        Returns None if the block stored nothing, and the reason if the reference has no answer.
        """
        stored = {name: _elements(runs, placed[name]) for name in self.task.outputs}
        if not any(places.size for places in stored.values()):
            return None
        part = self._part(dims, stored, np.random.default_rng(block))
        sliced = tolerance.sliced_dims(dims, part)
        cuts = {name: tolerance.cut(self.task, name, array, part) for name, array in inputs.items()}
        wanted = reference.wanted(sliced, cuts, kind)
        if isinstance(wanted, str):
            return wanted
        outputs = {}
        for name, expected in wanted.items():
            tensor = placed[name]
            own = np.zeros(tensor.shape, bool)
            own.reshape(-1)[stored[name]] = True
            values = _elements_of(tensor, storage(self.task.outputs[name].dtype))
            with np.errstate(invalid="ignore"):  # elements that no block stored may be NaN
                cut = tolerance.cut(self.task, name, values, part).astype(np.float64)
            outputs[name] = np.where(tolerance.cut(self.task, name, own, part), cut, expected.values)
        try:
            return judge.judge_values(wanted, outputs)
        except Wrong as wrong:
            where = ", ".join(f"{name}={value}" for name, value in dims.items())
            data = f", data '{kind}'" if kind != "declared" else ""
            raise Wrong(f"block {block} of the workload's own grid ({where}{data}): {wrong}", wrong.compared) from None

    def _part(self, dims: Dims, stored: Mapping[str, Array], rng: np.random.Generator) -> Slice:
        """Returns some of the indices that a block stored, along each independent dimension."""
        indices: dict[str, tuple[int, ...]] = {}
        shapes = self.task.arrays(dims)
        for name, places in stored.items():
            axes = np.unravel_index(places, shapes[name].shape)
            for axis, entry in enumerate(self.task.outputs[name].shape):
                if str(entry) in self.task.independent and places.size:
                    both = np.union1d(axes[axis], indices.get(str(entry), axes[axis]))
                    indices[str(entry)] = tuple(map(int, both))
        while True:
            reduced = tolerance.sliced_dims(dims, Slice(indices))
            if tolerance.affordable(self.task, reduced, PART_FLOP, PART_ELEMENTS):
                return Slice(indices)
            name = max(indices, key=lambda one: len(indices[one]), default="")
            if not name or len(indices[name]) < 2:  # the rest cannot be reduced further
                seconds = self.task.work(reduced) / REFERENCE_RATE * MOST_RUN
                self._refuse_long(seconds, "the reference of some of the blocks")
                return Slice(indices)
            count = len(indices[name])
            indices[name] = tuple(indices[name][at] for at in tolerance.spread(count, -(-count // 2), rng))


@dataclass(frozen=True)
class _OnData:
    """The blocks that run on data.

    blocks: in ascending order.
    hostile: kind of hostile data → the block that runs on it, if the reference has an answer for this data. All other
        blocks run on data as declared.
    stored: output → the ranges of its bytes that the whole grid stores.
    """

    blocks: Sequence[int]
    hostile: Mapping[str, int]
    stored: Mapping[str, Array]


def _percents(progress: Progress, stage: str, note: str, parts: int = 1) -> Callable[[int, float], None]:
    """Returns a function that reports each new percent of a stage.

    The function takes the number of finished ``parts``, and the finished share of the next part (0 to 1).
    """
    last = -1

    def tell(done: int, share: float) -> None:
        nonlocal last
        if (percent := int(100 * (done + share) / parts)) > last:
            last = percent
            progress(stage, percent, 100, note)

    return tell


def _walk_seconds(entry: KernelEntry, blocks: int, distinguishing: int) -> float:
    """Estimates the time of a run without data. ``distinguishing``: the argument of `slicing.needed`."""
    names = needed(entry, distinguishing)
    return blocks * (largest_tile(entry, names) + len(names)) / WALKED


def _drawn_blocks(blocks: int, seed: int) -> Sequence[int]:
    """Returns the first block, the last block, and random blocks in between."""
    if blocks <= BLOCKS + 2:
        return range(blocks)
    return tolerance.spread(blocks, BLOCKS + 2, np.random.default_rng(seed))


def _first_gap(runs: Array, address: int, nbytes: int) -> int | None:
    """Returns the first byte of a tensor that is in no range; None if there is none.

    runs: start and end of disjoint, sorted ranges, shape (n, 2).
    """
    reached = address
    for start, end in runs[(runs[:, 1] > address) & (runs[:, 0] < address + nbytes)]:
        if start > reached:
            break
        reached = max(reached, int(end))
    return None if reached >= address + nbytes else reached - address


def _elements_of(tensor: Allocation, dtype: DType) -> Array:
    """Returns the elements of a tensor as an array that shares the tensor's memory."""
    return tensor.raw[tensor.offset :][: tensor.nbytes].view(dtype).reshape(tensor.shape)


def _elements(runs: Array, tensor: Allocation) -> Array:
    """Returns the elements of a tensor in ``runs``, as indices into the flat tensor."""
    spans = _within(runs, tensor) // tensor.element_bytes
    return np.concatenate([np.arange(start, end) for start, end in spans]) if len(spans) else np.zeros(0, np.int64)


def _within(runs: Array, tensor: Allocation) -> Array:
    """Returns the ranges of ``runs`` in a tensor, from the tensor's first byte."""
    return runs[(runs[:, 1] > tensor.address) & (runs[:, 0] < tensor.address + tensor.nbytes)] - tensor.address


def _first_foreign(loaded: Array, stored: Array, own: Array) -> int | None:
    """Returns the first byte that is in ``loaded`` and ``stored``, but not in ``own``; None if there is none. All are
    disjoint, sorted ranges."""
    starts = np.concatenate([loaded[:, 0], stored[:, 0], own[:, 1]])  # a part that is foreign begins at one of these
    inside = [np.searchsorted(runs[:, 0], starts, "right") > np.searchsorted(runs[:, 1], starts, "right")
              for runs in (loaded, stored, own)]  # fmt: skip
    foreign = starts[inside[0] & inside[1] & ~inside[2]]
    return int(foreign.min()) if len(foreign) else None
