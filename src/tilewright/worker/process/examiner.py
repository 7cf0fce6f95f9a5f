"""Runs candidates on poisoned, guarded buffers and judges their outputs.

A `DeviceExaminer` judges all candidates of a workload. It draws inputs twice. For each draw, it has the float64
reference of a slice of the outputs. If the task has a trusted implementation, the examiner also has this
implementation's whole outputs. Otherwise the reference in float32 sets the allowed error, as in `tilewright check`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tilewright.errors import TaskError, first_line
from tilewright.records import Checked
from tilewright.task.task import Task
from tilewright.task.tensors import Dims
from tilewright.verify import tolerance
from tilewright.verify.arrays import Array, NamedArrays
from tilewright.verify.images import POISONS, memory_of_machine, over_share, reference_bytes
from tilewright.verify.judge import Wanted, Wrong, judge_memory, judge_values, judge_whole
from tilewright.verify.reference import FloatReference
from tilewright.verify.shapes import moduli, reduced
from tilewright.verify.tolerance import Error, Slice, squares_of
from tilewright.worker.process.backends import Backend, Runner, Tensor
from tilewright.worker.process.buffers import SWAPPED_BYTES, Buffers, DeviceMemory, InputSets
from tilewright.worker.process.choosing import chosen

Tensors = Mapping[str, Tensor]

TIMING_DRAW = 7919  # added to the seed for the inputs that are timed, so that no check has seen them


@dataclass(frozen=True)
class Draw:
    """One set of inputs and its expected outputs."""

    seed: int
    poison: int
    part: Slice
    wanted: Mapping[str, Wanted]  # on the slice ``part``
    trusted: Mapping[str, Array] | None  # the whole outputs of the trusted implementation
    errors: Mapping[str, Error] = field(default_factory=dict)  # of the trusted implementation on the slice


class DeviceExaminer:
    def __init__(self, task: Task, dims: Dims, backend: Backend, seed: int, draws: int = len(POISONS)) -> None:
        """Draws the inputs and computes the references.

        draws: how often inputs are drawn. One draw is enough for a candidate that was already checked on two draws.
        """
        self.task, self.dims, self.seed, self.backend = task, dict(dims), seed, backend
        self.buffers = Buffers(task, dims, backend)
        self._agreed: dict[int, dict[str, Array]] = {}
        self._checksums: dict[int, dict[str, int]] = {}
        """The checksums of the inputs by their seed: equal seeds give equal inputs."""
        self._squares: dict[tuple[int, str], float] = {}
        """The sum of the squares of each output that candidates are compared with, by seed and name."""
        rng = np.random.default_rng(seed)
        self.draws = tuple(self._prepared(seed + n, poison, rng) for n, poison in enumerate(POISONS[:draws]))
        values = [{name: wanted.values for name, wanted in draw.wanted.items()} for draw in self.draws]
        shapes = {name: array.shape for name, array in task.arrays(dims).items()}
        redrawn = any(not task.distribution(name, dims).kept(shapes[name]) for name in task.inputs)
        if draws > 1 and redrawn and (reason := tolerance.degenerate(*values)):
            raise TaskError(f"task '{task.name}': {reason}; a check against it would prove nothing")

    def described(self) -> list[str]:
        return [f"seed {draw.seed}: {draw.part} against float64" for draw in self.draws]

    def check(self, bind: Callable[[Tensors], Runner]) -> Checked:
        """Judges a candidate on each draw of inputs. ``bind``: makes the candidate's runner for given tensors.

        If an output of the task may overwrite an input, judges the candidate again, with output and input in the same
        memory.
        """
        worst, cases = 0.0, []
        try:
            for draw in self.draws:
                tensors = self.buffers.tensors()
                worst = max(worst, self._examined(draw, tensors, bind(tensors)))
                cases.append(f"seed {draw.seed}: {draw.part}; every element was written and compared")
            if self.task.in_place:
                tensors = self.buffers.tensors(in_place=True)
                worst = max(worst, self._examined(self.draws[0], tensors, bind(tensors), in_place=True))
                cases.append("in place, as deployed")
        except Wrong as wrong:
            return Checked("incorrect", str(wrong), None, tuple(cases))
        how = next(iter(self.draws[0].wanted.values())).allowed.why
        return Checked("correct", f"{worst:.0%} of the allowed error ({how})", worst, tuple(cases))

    def timing_sets(self) -> InputSets:
        """Draws the inputs for timing: a set that no check has used, and one whose outputs are known."""
        return InputSets(self.buffers, (self.seed + TIMING_DRAW, self.draws[-1].seed))

    def trusted_runner(self) -> Runner:
        """Returns a runner that computes the trusted implementation on the timing buffers."""

        def run(stream: int | None) -> None:
            self._trusted()

        return run

    def check_timed(self, again: Runner) -> str | None:
        """Checks a candidate on the buffers that were timed. Returns the mistake, or None if there is none.

        again: repeats a timed launch, with the second set of `timing_sets`.
        """
        try:
            self._examined(self.draws[-1], self.buffers.tensors(), again)
        except Wrong as wrong:
            return f"after timing: {wrong}"
        return None

    def _prepared(self, seed: int, poison: int, rng: np.random.Generator) -> Draw:
        self.buffers.draw(seed)
        part = tolerance.pick_slice(self.task, self.dims, rng)
        dims, trusted = tolerance.sliced_dims(self.dims, part), self._trusted()
        if trusted is not None and self._is_its_own_reference(dims):
            part = tolerance.pick_sample(self.task, self.dims, rng)
            values = {name: self.backend.arrays.host(self._sliced(name, trusted, part)) for name in trusted}
            return self._draw(seed, poison, part, values, trusted)
        inputs = self.buffers.input_slices(part)
        if trusted is None:
            wanted = FloatReference(self.task).wanted(dims, inputs, "declared")
            if not isinstance(wanted, str):
                within = {
                    name: replace(one, within="the slice", squares=squares_of(one.values, special=one.special))
                    for name, one in wanted.items()
                }
                return Draw(seed, poison, part, within, None)
        return self._draw(seed, poison, part, tolerance.reference_outputs(self.task, dims, inputs), trusted)

    def _draw(
        self, seed: int, poison: int, part: Slice, values: NamedArrays, trusted: Mapping[str, Array] | None
    ) -> Draw:
        wanted, errors = {}, {}
        for name, value in values.items():
            dtype, error, squares = self.task.outputs[name].dtype, None, squares_of(value)
            if trusted is not None:
                got = self._sliced(name, trusted, part)
                limit = tolerance.negligible(dtype)
                error = tolerance.error_of(got, value, self.backend.arrays, negligible=limit, squares=squares)
                if not error.total <= tolerance.TRUSTED_AT_MOST:
                    raise tolerance.untrustworthy(self.task, name, error)
                if error.total == 0 and self._reduced is not None:
                    error = _of_both(self._reduced.errors[name], self._reduced.wanted[name].values.size, value.size)
                errors[name] = error
            allowed = tolerance.allowance(dtype, error, precision=self.task.precision)
            wanted[name] = Wanted(value, dtype, allowed, within="the slice", squares=squares)
        return Draw(seed, poison, part, wanted, trusted, errors)

    def _sliced(self, name: str, outputs: Mapping[str, Array], part: Slice) -> Array:
        return self.buffers.slice_of(name, outputs[name], part)

    def _is_its_own_reference(self, dims: Dims) -> bool:
        """Returns whether the reference of a slice is the captured kernel on the GPU, as the trusted implementation is,
        and the slice is large. A reference of its own would run the same code, and convert large arrays on the host."""
        most = tolerance.INTERPRETED_FLOP, tolerance.INTERPRETED_ELEMENTS
        return tolerance.takes_configuration(self.task) and not tolerance.affordable(self.task, dims, *most)

    @cached_property
    def _reduced(self) -> Draw | None:
        """The inputs and results on a reduced shape, for which a captured kernel has a float64 reference; None if the
        shape cannot be reduced, or if the task has its own reference."""
        task = self.task
        dims = reduced(task, self.dims, moduli(task, task.space.shipped, self.dims))
        if not tolerance.takes_configuration(task) or dims == self.dims:
            return None
        return DeviceExaminer(task, dims, self.backend, self.seed, draws=1).draws[0]

    def _trusted(self) -> dict[str, Array] | None:
        if self.task.trusted is None:
            return None
        from tilewright.worker.process import trusted  # imports torch

        inputs = {name: self.buffers.all[name].tensor for name in self.task.inputs}
        try:
            return trusted.computed(self.task, self.dims, inputs)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TaskError(f"trusted of task '{self.task.name}' failed: {first_line(str(error))}") from error

    def _examined(self, draw: Draw, tensors: Tensors, runner: Runner, *, in_place: bool = False) -> float:
        """Runs a candidate on one draw. Returns error / allowed error, or raises `Wrong`."""
        self.buffers.draw(draw.seed)
        replaced = [*self.task.in_place.values()] if in_place else []
        if draw.seed not in self._checksums:
            self._checksums[draw.seed] = self.buffers.checksums()
        memory = DeviceMemory(self.buffers, self._checksums[draw.seed], replaced)
        self.buffers.poison(draw.poison)
        self.backend.run(runner)
        try:
            judge_memory(memory)
            outputs = {name: self.backend.fetched(tensors[name]) for name in draw.wanted}
            got = {name: self.buffers.slice_of(name, output, draw.part) for name, output in outputs.items()}
            worst = judge_values(draw.wanted, got, self.backend.arrays)
            self._judge_whole(draw, outputs)
        except Wrong as wrong:
            dims = ", ".join(f"{name}={value}" for name, value in self.dims.items())
            raise Wrong(f"{wrong} ({dims}; seed {draw.seed}, poison 0x{draw.poison:02X})") from None
        return worst.share

    def _judge_whole(self, draw: Draw, outputs: NamedArrays) -> None:
        """Compares the whole outputs with those of the trusted implementation, or of the first correct candidate."""
        whose, others = "the trusted implementation", draw.trusted
        if others is None:
            whose, others = "the first correct candidate", self._agreed.get(draw.seed, outputs)
        for name, wanted in draw.wanted.items():
            key = draw.seed, name
            if others is not outputs and key not in self._squares:
                self._squares[key] = squares_of(others[name], self.backend.arrays)
            judge_whole(name, outputs[name], others[name], whose, wanted, self.backend.arrays, self._squares.get(key))
        if others is outputs:
            self._agreed[draw.seed] = {name: self.backend.kept(output) for name, output in outputs.items()}


def _of_both(error: Error, few: int, many: int) -> Error:
    """Returns the error to assume if reference and trusted implementation are the same captured kernel.

    For large work, there is no float64 reference of a captured kernel: its own output is the reference, and has an
    error, too. A candidate that is as precise then differs by both errors.

    As for any trusted implementation, the error is at most `TRUSTED_AT_MOST` of the norm.

    error, few: the kernel's error on a reduced shape, and the number of its elements. many: the number of elements now.
    """
    both = 1 + 1 / tolerance.FACTOR  # the candidate may have FACTOR times the error, and the reference has it once
    worst = both * tolerance.growth_of_largest(few, many) * error.worst
    return replace(error, worst=worst, total=min(both * error.total, tolerance.TRUSTED_AT_MOST))


# The examiners of several workloads ------------------------------------------------------------------


SHARE = 0.5  # share of the memory for examiners; the rest is for launches and comparisons
COPIES_OF_OUTPUTS = 4
"""The largest number of copies of the outputs that an examiner holds besides its buffers. Two copies are kept: for each
draw, the outputs of the trusted implementation or of the first correct candidate. Two more exist while these are
computed."""


class Prepared:
    """The examiners of several workloads.

    chosen: returns the backend for a workload of the task.
    free: returns the number of bytes that can be allocated now. The default asks the backend.
    """

    def __init__(
        self, task: Task, chosen: Callable[[Task, Dims], Backend] = chosen, free: Callable[[], int] | None = None
    ) -> None:
        self.task, self._chosen, self._free = task, chosen, free
        self._held: OrderedDict[tuple[str, int], DeviceExaminer] = OrderedDict()
        self._passing: int | None = None

    def too_large(self, workload: str) -> str | None:
        """Returns the reason why a workload is too large; None if it fits.

        Its tensors must fit into the memory of the GPU, and the compared slice into the memory of the machine.
        """
        dims = self.task.workload(workload).dims
        part = tolerance.pick_slice(self.task, dims, np.random.default_rng(0))
        compared = reference_bytes(self.task, tolerance.sliced_dims(dims, part))
        return over_share(compared, memory_of_machine()) or over_share(
            sum(array.nbytes for array in self.task.arrays(dims).values()),
            self._chosen(self.task, dims).total(), "the GPU",
        )  # fmt: skip

    def get(self, workload: str, seed: int, *, passing: bool = False) -> tuple[DeviceExaminer, bool]:
        """Returns the examiner, and whether it was made now.

        passing: whether the seed is used only once, as in a confirmation. Then the examiner has only one draw of
            inputs, because the candidates were already checked on two draws. The examiner is removed when another
            passing seed is used.
        """
        if passing and seed != self._passing:
            for key in [key for key in self._held if key[1] == self._passing]:
                del self._held[key]
            self._passing = seed
        if (workload, seed) in self._held:
            self._held.move_to_end((workload, seed))
            return self._held[workload, seed], False
        dims = self.task.workload(workload).dims
        backend = self._chosen(self.task, dims)
        self._make_room(bytes_needed(self.task, dims), self._free or backend.free)
        draws = 1 if passing else len(POISONS)
        try:
            made = DeviceExaminer(self.task, dims, backend, seed, draws)
        except backend.out_of_memory:
            self._held.clear()
            backend.release()
            made = DeviceExaminer(self.task, dims, backend, seed, draws)
        self._held[workload, seed] = made
        return made, True

    def _make_room(self, needed: int, free: Callable[[], int]) -> None:
        held = sum(bytes_needed(self.task, examiner.dims) for examiner in self._held.values())
        room = SHARE * (free() + held)
        while self._held and held + needed > room:
            _, gone = self._held.popitem(last=False)
            held -= bytes_needed(self.task, gone.dims)


def bytes_needed(task: Task, dims: Dims) -> int:
    """Returns the device memory of an examiner, without the guard zones."""
    arrays = task.arrays(dims)
    outputs = sum(arrays[name].nbytes * (1 + COPIES_OF_OUTPUTS) for name in task.outputs)
    return outputs + sum(arrays[name].nbytes + 2 * min(arrays[name].nbytes, SWAPPED_BYTES) for name in task.inputs)
