"""Computes the expected outputs and the allowed errors from the float64 reference, and checks gradients.

If the dtypes of the outputs cannot represent the reference's outputs, the case is reported as not applicable.

The reference of a backward task must be the gradient of the forward reference. `check_gradients` compares two
derivatives of Σ out · d_out in float64, for a random direction v of one input. The first is ⟨d_in, v⟩, from the
backward reference. The second is the central difference of the forward reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from tilewright.errors import TaskError
from tilewright.records import Configuration
from tilewright.task.task import Task
from tilewright.task.tensors import Dims, is_whole
from tilewright.verify import tolerance
from tilewright.verify.arrays import Array, NamedArrays
from tilewright.verify.data import FAR_FROM_ZERO, SPECIAL, drawn, limits, rounded
from tilewright.verify.images import storage, too_large
from tilewright.verify.judge import Wanted, compared
from tilewright.verify.tolerance import NO_ERROR, Allowance, Error, draw, error_of, negligible, reference_outputs
from tilewright.verify.trusted import yardstick

EXACT_UP_TO = 2**20  # integer outputs up to this are exact in float32, in every order of adding
EXACT_FROM = 16  # an output needs this many elements to show that the task maps integers to integers
DRAWS = 4  # sets of inputs whose outputs must not all be equal; on a small shape two may be equal by chance
CONDITION = 4.0
"""The number of unit roundoffs by which the inputs are changed. A kernel may have the error that this change causes in
the reference, because rounding inside a kernel has at least this effect.

For data of one sign, the number is the square root of the sum's length, if that is larger. A float32 sum that adds one
number after another has this error. Numbers that the reference makes itself cannot be changed. If such numbers make
NumPy compute an output in float64, the output is assumed to have an error of this many unit roundoffs.
"""
PROMOTED = (
    ", assumed because NumPy computes this output in float64; fix: keep float32 with np.arange(N, dtype=x.dtype) and "
    "math.sqrt, or declare a `trusted` implementation"
)
STEPS = (1e-7, 1e-5)
"""Steps of the central difference, relative to the size of the input. The small step rarely crosses a point without
derivative. The large step has less rounding error. The better of the two results counts."""
TOLERANCE = 1e-4  # fraction of the gradient's norm; float64 errors are smaller, a wrong factor or sign is larger
DIRECTIONS = 2


class Trusting(Protocol):
    """The protocol of an object that computes outputs in the declared precision, such as `trusted.Trusted`."""

    def outputs(self, dims: Dims, inputs: NamedArrays) -> dict[str, Array] | str: ...


class FloatReference:
    """The float64 reference of one task.

    yardstick: the name of the implementation whose error determines the allowed error.
    """

    def __init__(self, task: Task, trusted: Trusting | None = None) -> None:
        self.task, self.trusted = task, trusted
        self.yardstick = "the trusted implementation" if trusted else "the reference in float32"

    def wanted(self, dims: Dims, inputs: NamedArrays, data: str) -> dict[str, Wanted] | str:
        """Returns the expected outputs for ``inputs`` in their declared dtypes, or the reason why there are none."""
        special = data in SPECIAL
        with np.errstate(all="ignore"):
            values = reference_outputs(self.task, dims, inputs)
            for name, value in values.items():
                if reason := self._unfit(name, value, special):
                    return reason
            found = self._measured(dims, inputs, values, special, data == "declared")
            if isinstance(found, str):
                return found
            measured, promoted = found
            allowed = self._allowed(dims, inputs, values, measured, promoted, data)
        if isinstance(allowed, str):
            return allowed
        exact = self._exact(dims, inputs, values) if data == "small integers" else {}
        dtypes = {name: output.dtype for name, output in self.task.outputs.items()}
        return {
            name: Wanted(value, dtypes[name], allowed[name], measured[name].worst, special, exact.get(name))
            for name, value in values.items()
        }

    def of_configuration(
        self, dims: Dims, inputs: NamedArrays, wanted: Mapping[str, Wanted], config: Configuration
    ) -> dict[str, Wanted] | None:
        """Returns the expected outputs of ``config``; None if they do not depend on the configuration, or if the
        captured kernel cannot run with it, or computes another result with it for declared data, too.

        A captured kernel is its own reference. On unusual data, its result may depend on its tiles: a finite number in
        place of -inf, for example, is then the maximum of a row, and each tile has another number of them.
        """
        if not tolerance.takes_configuration(self.task):
            return None
        try:
            with np.errstate(all="ignore"):
                values = reference_outputs(self.task, dims, inputs, config)
                differs = self._differs_for_declared(dims, config)
        except TaskError:
            return None
        others = {name: replace(each, values=values[name], exact=None) for name, each in wanted.items()}
        return others if compared(wanted, values).share > 1 and not differs else None

    def _differs_for_declared(self, dims: Dims, config: Configuration) -> bool:
        """Returns whether the captured kernel computes another result with ``config``, by more than rounding."""
        inputs, outputs = drawn(self.task, dims, "declared", 0), self.task.outputs
        expected = {
            name: Wanted(value, outputs[name].dtype, tolerance.allowance(outputs[name].dtype, None))
            for name, value in reference_outputs(self.task, dims, inputs).items()
        }
        return not compared(expected, reference_outputs(self.task, dims, inputs, config)).share <= 1

    def refuse_degenerate(self, dims: Dims, seed: int) -> None:
        """Raises TaskError if outputs do not depend on the inputs.

        dims: the dimensions of a workload, not of an edge case, where a constant output may be right.
        """
        if too_large(self.task, dims, dims) is not None:
            return  # with these dimensions, nothing was compared either
        whole = all(is_whole(tensor.dtype) for tensor in self.task.inputs.values())  # draws may all use `like`
        kinds = ("declared" if number == 0 or not whole else "normal" for number in range(DRAWS))
        draws = (drawn(self.task, dims, kind, seed + number) for number, kind in enumerate(kinds))
        with np.errstate(all="ignore"):
            first, *others = (reference_outputs(self.task, dims, inputs) for inputs in draws)
        for name, output in self.task.outputs.items():
            if output.updates is not None and self.task.distribution(output.updates, dims).one_value:
                del first[name]  # a counter that begins at zero has a final value that depends only on the dimensions
        reasons = [tolerance.degenerate(first, other) for other in others]
        if all(reasons):
            raise TaskError(f"task '{self.task.name}': {reasons[0]}; a check against it would prove nothing")

    def _error(self, name: str, out: Array, ref: Array, special: bool) -> Error:
        return error_of(out, ref, negligible=negligible(self.task.outputs[name].dtype), special=special)

    def _unfit(self, name: str, value: Array, special: bool) -> str | None:
        """Returns the reason why an output's dtype cannot hold the expected values; None if it can hold them."""
        dtype = self.task.outputs[name].dtype
        finite = value[np.isfinite(value)]
        if finite.size < value.size and not special:
            return f"not applicable: the reference's '{name}' is not finite"
        largest = float(np.abs(finite).max(initial=0.0))
        if is_whole(dtype):
            return None
        if not np.isfinite(np.asarray(largest).astype(storage(dtype)).astype(np.float64)):
            return f"not applicable: the reference's '{name}' overflows {dtype}"
        rms = math.sqrt(float(np.mean(np.square(finite / largest)))) * largest if largest else 0.0
        if 0 < rms < float(limits(dtype).smallest_normal):
            return f"not applicable: the reference's '{name}' vanishes in {dtype}"
        return None

    def _measured(
        self, dims: Dims, inputs: NamedArrays, values: NamedArrays, special: bool, declared: bool
    ) -> tuple[dict[str, Error], frozenset[str]] | str:
        """Returns the error of the trusted implementation for each output, or the reason if the case is not applicable.

        Without a trusted implementation, these are the errors of the reference in float32. Also returns the names of
        the outputs that NumPy computed in float64 although the inputs are float32 (`trusted.Single`).
        """
        outputs: Mapping[str, Array] | str = self.trusted.outputs(dims, inputs) if self.trusted else "none"
        promoted: frozenset[str] = frozenset()
        if isinstance(outputs, str):
            if self.trusted:
                self.trusted, self.yardstick = None, f"the reference in float32 ({outputs})"
            single, declared = yardstick(self.task, dims, inputs), False
            if isinstance(single, str):
                self.yardstick = f"the dtype alone ({single})"
                return dict.fromkeys(values, NO_ERROR), promoted
            outputs, promoted = single.outputs, single.promoted
        errors = {name: self._error(name, outputs[name], values[name], special) for name in values}
        errors |= {name: self._of_float32(name, errors[name]) for name in promoted}
        for name, error in errors.items():
            if error.total <= tolerance.TRUSTED_AT_MOST:
                continue
            if declared:
                raise tolerance.untrustworthy(self.task, name, error)
            return f"not applicable: {self.yardstick} differs by {error.total:.2g} of the norm of '{name}' from float64"
        return errors, promoted

    def _of_float32(self, name: str, error: Error) -> Error:
        """Returns the error to assume for an output that NumPy computed in float64.

        The result is ``error``, but at least `CONDITION` unit roundoffs of float32 (float64 for a float64 output).
        """
        dtype = self.task.outputs[name].dtype
        if is_whole(dtype):
            return error
        least = CONDITION * tolerance.UNIT_ROUNDOFF["float64" if dtype == "float64" else "float32"]
        return replace(error, worst=max(error.worst, least), total=max(error.total, least))

    def _allowed(
        self, dims: Dims, inputs: NamedArrays, values: NamedArrays,
        measured: Mapping[str, Error], promoted: frozenset[str], data: str,
    ) -> dict[str, Allowance] | str:  # fmt: skip
        special = data in SPECIAL
        deep = max(CONDITION, math.sqrt(self._depth(inputs)))

        def condition(dtype: str) -> float:
            """A sum of float64 is compared with one whose own rounding grows with its length, too."""
            return deep if data == FAR_FROM_ZERO or dtype == "float64" else CONDITION

        moved = {
            dtype: [
                reference_outputs(self.task, dims, changed)
                for changed in self._perturbed(inputs, dtype, condition(dtype))
            ]
            for dtype in {spec.dtype for spec in self.task.outputs.values() if not is_whole(spec.dtype)}
        }
        whose = "the trusted implementation" if self.trusted else "the float32 reference"
        allowed = {}
        for name, value in values.items():
            dtype = self.task.outputs[name].dtype
            allowance = tolerance.allowance(dtype, measured[name], precision=self.task.precision, whose=whose)
            if name in promoted and whose in allowance.why:
                allowance = replace(allowance, why=allowance.why + PROMOTED)
            errors = [self._error(name, other[name], value, special) for other in moved.get(dtype, ())]
            worst = max((error.worst for error in errors), default=0.0)
            total = max((error.total for error in errors), default=0.0)
            if tolerance.FACTOR * worst > allowance.worst:
                if total > max(tolerance.TRUSTED_AT_MOST, CONDITION * self._roundoff(dtype, dtype)):
                    return f"not applicable: rounding of the inputs changes '{name}' by {total:.2g} of its norm"
                why = f"{tolerance.FACTOR:g} × the change that rounding of the inputs causes, {worst:.2g}"
                total = max(allowance.total, tolerance.FACTOR * total)
                allowance = Allowance(tolerance.FACTOR * worst, total, why)
            allowed[name] = allowance
        return allowed

    def _depth(self, inputs: NamedArrays) -> int:
        """Returns an upper bound of the length of a sum: the largest extent of a dimension that is not independent."""
        shapes = ((spec.shape, inputs[name].shape) for name, spec in self.task.inputs.items())
        axes = (axis for declared, shape in shapes for axis in zip(declared, shape, strict=True))
        return max((extent for name, extent in axes if str(name) not in self.task.independent), default=1)

    def _perturbed(
        self, inputs: NamedArrays, output: str, condition: float
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Returns the inputs twice, with rounding errors of random signs, and with rounding errors upwards.

        output: the dtype of the output. The roundoff depends on this dtype and on the input's dtype.
        condition: the number of unit roundoffs.
        """
        rng = np.random.default_rng(0)
        apart, together = dict(inputs), dict(inputs)
        for name, array in inputs.items():
            spec = self.task.inputs[name]
            if is_whole(spec.dtype) or spec.distribution.kind in ("integers", "offsets"):
                continue
            exact, sign = array.astype(np.float64), np.where(rng.random(array.shape) < 0.5, -1.0, 1.0)
            roundoff = condition * tolerance.UNIT_ROUNDOFF["float64" if spec.dtype == "float64" else "float32"]
            apart[name] = exact * (1 + max(roundoff, self._roundoff(spec.dtype, output)) * sign)
            together[name] = exact * (1 + roundoff)
        return apart, together

    def _roundoff(self, dtype: str, output: str) -> float:
        """Returns the allowed roundoff of intermediate values between an input in ``dtype`` and an output in
        ``output``.

        Without a trusted implementation, intermediate values may have the finer of the two dtypes, or the task's
        precision if that is coarser. So a kernel must not round to bfloat16 between float8 and float32.
        """
        if self.trusted:
            return 0.0
        within = tolerance.UNIT_ROUNDOFF.get
        return max(min(within(dtype, 0.0), within(output, 0.0)), within(self.task.precision or "", 0.0))

    def _exact(self, dims: Dims, inputs: NamedArrays, values: NamedArrays) -> dict[str, Array]:
        """Returns, by output, a mask of the elements that must be exact: integers that float32 represents exactly."""
        single = yardstick(self.task, dims, inputs)
        if isinstance(single, str):
            return {}
        exact = {}
        for name, value in values.items():
            fits = rounded(value, self.task.outputs[name].dtype).astype(np.float64) == value
            shows = value.size >= EXACT_FROM and np.ptp(value) > 0 and np.abs(value).max() <= EXACT_UP_TO
            same = np.array_equal(single.outputs[name].astype(np.float64)[fits], value[fits])
            if shows and same and np.array_equal(value, np.rint(value)):
                exact[name] = fits
        return exact


def check_gradients(task: Task, dims: Dims, seed: int) -> None:
    """Raises TaskError, naming the input, if the backward reference is not the gradient of the forward reference."""
    backward, rng, arrays = task.backward, np.random.default_rng(seed), task.arrays(dims)
    assert backward is not None
    inputs = {name: draw(task.distribution(name, dims), arrays[name].shape, rng) for name in task.inputs}
    towards = {f"d_{name}": rng.normal(size=arrays[name].shape) for name in task.outputs}
    offered = {**inputs, **towards}

    def total(name: str, moved: Array) -> float:
        outputs = reference_outputs(task, dims, {**inputs, name: inputs[name] + moved})
        return sum(float((value * towards[f"d_{output}"]).sum()) for output, value in outputs.items())

    with np.errstate(all="ignore"):
        gradients = reference_outputs(backward, dims, {name: offered[name] for name in backward.inputs})
        for output, gradient in gradients.items():
            name = output.removeprefix("d_")
            if is_whole(task.tensors[name].dtype):
                raise TaskError(f"backward of task '{task.name}': '{name}' has integers, which have no gradient")
            size = float(np.sqrt(np.mean(np.square(inputs[name], dtype=np.float64)))) or 1.0
            scale = float(np.linalg.norm(gradient.ravel()))
            for _ in range(DIRECTIONS):
                direction = rng.normal(size=gradient.shape)
                predicted = float((gradient * direction).sum())
                moves = [(step * size, step * size * direction) for step in STEPS]
                measured = [(total(name, move) - total(name, -move)) / (2 * far) for far, move in moves]
                off = [abs(predicted - slope) / max(scale, abs(slope), 1e-300) for slope in measured]
                best = int(np.argmin(off))
                if not off[best] <= TOLERANCE:
                    raise TaskError(
                        f"backward of task '{task.name}': along a random direction 'd_{name}' gives {predicted:.6g}, "
                        f"finite differences of the forward reference give {measured[best]:.6g}"
                    )
