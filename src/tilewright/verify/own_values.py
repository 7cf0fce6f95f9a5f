"""Runs some blocks of a launch on data, and compares the stored values with the float64 reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tilewright.progress import Progress
from tilewright.task.task import Task
from tilewright.task.tensors import ITEM_BYTES, Dims
from tilewright.tileir.run.interpreter import run
from tilewright.tileir.run.launching import Runnable
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.watch.allocations import Allocation
from tilewright.tileir.watch.arrays import DType
from tilewright.verify import judge, tolerance
from tilewright.verify.arrays import Array
from tilewright.verify.data import drawn
from tilewright.verify.images import POISONS, held_before, storage
from tilewright.verify.judge import Compared, Unverified, Wanted, Wrong
from tilewright.verify.reference import FloatReference
from tilewright.verify.tolerance import Allowance, Slice

PERIOD = 1_048_573
"""Large inputs repeat after this many elements. It is the largest prime below 2²⁰."""
REFERENCE_RATE = 1e9
"""FLOP per second of a reference. The number is low, because the reference runs several times, in float64 and in
float32.
"""
WHOLE_FLOP, WHOLE_ELEMENTS = tolerance.REFERENCE_FLOP / 4, 1 << 22
"""Limits of the reference for all elements of a block, which is evaluated once."""
LEFT = 16  # of the elements that no block stores, this many at both ends are compared
MOST_ELEMENTS = 1 << 24
"""The most elements of an output of the reference, where slices cannot reduce them. The reference of a captured kernel
is interpreted, which takes about 300 bytes for each."""
PART_FLOP, PART_ELEMENTS = tolerance.REFERENCE_FLOP / 8, tolerance.REFERENCE_ELEMENTS / 4
"""Limits of the reference for one block: FLOP, and elements of a tensor."""


@dataclass(frozen=True)
class OnData:
    """The blocks that run on data.

    declared: blocks that run on data as declared.
    hostile: kinds of hostile data, each with the block that runs on it. If the reference has no valid outputs for this
        data, the block runs on data as declared.
    stored: maps an output to the ranges of its bytes that the whole grid stores.
    """

    declared: Sequence[int]
    hostile: Sequence[tuple[str, int]]
    stored: Mapping[str, Array]


@dataclass(frozen=True)
class OwnValues:
    """Compares blocks of launches of one task.

    seconds: limit for the estimated time of the reference.
    most_blocks: the number of blocks for which this time is estimated.
    """

    task: Task
    seconds: float
    most_blocks: int

    def compared(
        self, runnable: Runnable, dims: Dims, seed: int, reference: FloatReference, chosen: OnData, progress: Progress
    ) -> Compared:
        """Runs the chosen blocks and compares their stored values. Returns the element with the largest error.

        Raises `Wrong` for a mistake of the kernel, `Unverified` if nothing can be compared.
        """
        arrays = self.task.arrays(dims)
        memory, placed = Memory(watch=False, poison=POISONS[0]), {}
        for name, array in arrays.items():
            placed[name] = memory.allocate(name, np.empty(array.shape, storage(array.dtype)))
            if held_before(self.task, name) is None:
                placed[name].raw.fill(POISONS[0])
        arguments = runnable.bound({name: tensor.address for name, tensor in placed.items()}, memory)
        number = len(chosen.declared) + len(chosen.hostile)
        told = percents(progress, "values", f"of {number} blocks at full size", number)
        worst: Compared | None = None
        groups = [("declared", list(chosen.declared)), *((kind, [block]) for kind, block in chosen.hostile)]
        ran_on_declared = {*chosen.declared}
        done = 0
        for kind, some in groups:
            inputs = drawn(self.task, dims, kind, seed, PERIOD)
            for name, tensor in placed.items():
                if (source := held_before(self.task, name)) is not None:
                    _elements_of(tensor, inputs[source].dtype)[...] = inputs[source]
            if not done:
                kept = {name: self._left(placed[name], chosen.stored[name]) for name in self.task.outputs}
                self._of_block(dims, inputs, placed, kept, reference, "an element that no block stores", kind)
            for block in some:
                ran = run(
                    runnable.module, arguments, runnable.launch.grid, memory, only=(block,), poison=POISONS[0],
                    on_progress=partial(told, done),
                )  # fmt: skip
                if ran.findings:
                    raise Wrong(f"block {block}: {ran.findings[0]}")
                for name, stored in chosen.stored.items():
                    own, tensor = ran.counts, placed[name]
                    read = _first_foreign(within(own.loaded_runs, tensor), stored, within(own.stored_runs, tensor))
                    if read is not None:
                        element = element_named(self.task, dims, name, read)
                        raise Wrong(f"race: block {block} reads {element}, which another block stores")
                stores = {name: _elements(ran.counts.stored_runs, placed[name]) for name in self.task.outputs}
                whose = f"block {block} of the workload's own grid"
                compared = self._of_block(dims, inputs, placed, stores, reference, whose, kind)
                if isinstance(compared, str):
                    if kind == "declared":
                        raise Unverified(compared)
                    if block not in ran_on_declared:  # each block runs on some data
                        groups.append(("declared", [block]))
                        ran_on_declared.add(block)
                    continue
                done = min(done + 1, number - 1)
                if compared is not None and (worst is None or compared.share > worst.share):
                    worst = compared
        if worst is None:
            raise Unverified("none of the blocks that ran stores an output")
        return worst

    def _of_block(
        self, dims: Dims, inputs: Mapping[str, Array], placed: Mapping[str, Allocation], stored: Mapping[str, Array],
        reference: FloatReference, whose: str, kind: str,
    ) -> Compared | str | None:  # fmt: skip
        """Compares the elements that a block stored, and returns the element with the largest error.

        A part of the elements sets the allowed error. If time allows, the other elements are also compared with the
        float64 reference, and may have twice this error.

        stored: maps an output to the indices of its stored elements.
        whose: the block that stored the elements, in words, for the message of `Wrong`.
        Returns None if nothing was stored. Returns the reason as a string if the reference has no valid outputs.
        """
        if not any(places.size for places in stored.values()):
            return None
        whole = self._whole(dims, stored)
        part = self._part(dims, whole, np.random.default_rng(sum(int(p.sum()) for p in stored.values())))
        cuts = {name: tolerance.cut(self.task, name, array, part) for name, array in inputs.items()}
        wanted = reference.wanted(tolerance.sliced_dims(dims, part), cuts, kind)
        if isinstance(wanted, str):
            return wanted
        try:
            worst = judge.judge_values(wanted, self._found(placed, stored, part, wanted))
            whole_dims = tolerance.sliced_dims(dims, whole)
            if part != whole and tolerance.affordable(self.task, whole_dims, WHOLE_FLOP, WHOLE_ELEMENTS):
                cuts = {name: tolerance.cut(self.task, name, array, whole) for name, array in inputs.items()}
                with np.errstate(all="ignore"):
                    values = tolerance.reference_outputs(self.task, whole_dims, cuts)
                looser = {
                    name: replace(one, values=values[name], exact=None, allowed=_doubled(one.allowed))
                    for name, one in wanted.items()
                }
                judge.judge_values(looser, self._found(placed, stored, whole, looser))
        except Wrong as wrong:
            where = ", ".join(f"{name}={value}" for name, value in dims.items())
            data = f", data '{kind}'" if kind != "declared" else ""
            raise Wrong(f"{whose} ({where}{data}): {wrong}", wrong.compared) from None
        return worst

    def _found(
        self, placed: Mapping[str, Allocation], stored: Mapping[str, Array], part: Slice, wanted: Mapping[str, Wanted]
    ) -> dict[str, Array]:
        """Returns a part of the outputs: memory's values for stored elements, and expected values for all others."""
        outputs = {}
        for name, expected in wanted.items():
            tensor = placed[name]
            own = np.zeros(tensor.shape, bool)
            own.reshape(-1)[stored[name]] = True
            values = _elements_of(tensor, storage(self.task.outputs[name].dtype))
            with np.errstate(invalid="ignore"):  # elements that no block stored may be NaN
                cut = tolerance.cut(self.task, name, values, part).astype(np.float64)
            outputs[name] = np.where(tolerance.cut(self.task, name, own, part), cut, expected.values)
        return outputs

    def _whole(self, dims: Dims, stored: Mapping[str, Array]) -> Slice:
        """Returns the slice of the outputs that a block stored: the indices along each independent dimension."""
        indices: dict[str, tuple[int, ...]] = {}
        shapes = self.task.arrays(dims)
        for name, places in stored.items():
            axes = np.unravel_index(places, shapes[name].shape)
            for axis, entry in enumerate(self.task.outputs[name].shape):
                if str(entry) in self.task.independent and places.size:
                    both = np.union1d(axes[axis], indices.get(str(entry), axes[axis]))
                    indices[str(entry)] = tuple(map(int, both))
        return Slice(indices)

    def _left(self, tensor: Allocation, stored: Array) -> Array:
        """Returns some elements of an output that no block stores. Only an updated output may have such elements."""
        if held_before(self.task, tensor.name) is None:
            return np.zeros(0, np.int64)
        ends = np.concatenate([[0], stored.ravel(), [tensor.nbytes]]).reshape(-1, 2) // tensor.element_bytes
        gaps = ends[ends[:, 1] > ends[:, 0]]
        return np.unique(np.concatenate([gaps[:LEFT, 0], gaps[-LEFT:, 1] - 1]))

    def _part(self, dims: Dims, whole: Slice, rng: np.random.Generator) -> Slice:
        """Returns some of the indices in ``whole``, so that the reference takes little time."""
        indices = dict(whole.indices)
        while True:
            reduced = tolerance.sliced_dims(dims, Slice(indices))
            if tolerance.affordable(self.task, reduced, PART_FLOP, PART_ELEMENTS):
                return Slice(indices)
            name = max(indices, key=lambda one: len(indices[one]), default="")
            if not name or len(indices[name]) < 2:  # the rest cannot be reduced further
                arrays = self.task.arrays(reduced)
                elements = max(math.prod(arrays[output].shape) for output in self.task.outputs)
                if elements > MOST_ELEMENTS:
                    raise Unverified(f"an output has {elements} elements and cannot be cut into slices")
                seconds = self.task.work(reduced) / REFERENCE_RATE * self.most_blocks
                refuse_long(seconds, self.seconds, "the reference of some of the blocks")
                return Slice(indices)
            count = len(indices[name])
            indices[name] = tuple(indices[name][at] for at in tolerance.spread(count, -(-count // 2), rng))


def refuse_long(seconds: float, limit: float, what: str) -> None:
    if seconds > limit:
        raise Unverified(f"{what} would take about {seconds:.0f} s, more than the budget of {limit:g} s")


def element_named(task: Task, dims: Dims, name: str, byte: int) -> str:
    """Returns the name of the tensor's element that contains the byte ``byte``, such as ``'y'[3, 5]``."""
    array = task.arrays(dims)[name]
    return f"'{name}'[{', '.join(map(str, np.unravel_index(byte // ITEM_BYTES[array.dtype], array.shape)))}]"


def _doubled(allowed: Allowance) -> Allowance:
    return replace(allowed, worst=2 * allowed.worst, total=2 * allowed.total)


def percents(progress: Progress, stage: str, note: str, parts: int = 1) -> Callable[[int, float], None]:
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


def _elements_of(tensor: Allocation, dtype: DType) -> Array:
    """Returns the elements of a tensor as an array that shares the tensor's memory."""
    return tensor.raw[tensor.offset :][: tensor.nbytes].view(dtype).reshape(tensor.shape)


def _elements(runs: Array, tensor: Allocation) -> Array:
    """Returns the elements of a tensor whose addresses are in ``runs``, as indices into the flat tensor."""
    spans = within(runs, tensor) // tensor.element_bytes
    return np.concatenate([np.arange(start, end) for start, end in spans]) if len(spans) else np.zeros(0, np.int64)


def within(runs: Array, tensor: Allocation) -> Array:
    """Returns the parts of ``runs`` inside a tensor. The new ranges count from the tensor's first byte."""
    return runs[(runs[:, 1] > tensor.address) & (runs[:, 0] < tensor.address + tensor.nbytes)] - tensor.address


def _first_foreign(loaded: Array, stored: Array, own: Array) -> int | None:
    """Returns the first byte that is in ``loaded`` and ``stored``, but not in ``own``; None if there is none.

    All arguments are disjoint, sorted ranges, shape (n, 2).
    """
    starts = np.concatenate([loaded[:, 0], stored[:, 0], own[:, 1]])  # a part that is foreign begins at one of these
    inside = [np.searchsorted(runs[:, 0], starts, "right") > np.searchsorted(runs[:, 1], starts, "right")
              for runs in (loaded, stored, own)]  # fmt: skip
    foreign = starts[inside[0] & inside[1] & ~inside[2]]
    return int(foreign.min()) if len(foreign) else None
