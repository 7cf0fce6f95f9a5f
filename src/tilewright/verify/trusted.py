"""Computes the outputs of the implementation whose error sets the allowed error.

`Trusted` runs the task's ``trusted`` function in a process that has torch. For a task without this function,
`yardstick` runs the reference in float32. The only error of `yardstick` is rounding, so the allowed error is smaller.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tilewright.errors import MachineError, NoGpu, TaskError
from tilewright.task.loading import where_is
from tilewright.task.task import Task
from tilewright.task.tensors import Dims, is_whole
from tilewright.tools.child import workplace
from tilewright.verify.arrays import Array, NamedArrays
from tilewright.verify.data import rounded
from tilewright.verify.images import storage
from tilewright.verify.tolerance import evaluated
from tilewright.worker.messages import ComputeTrusted, TensorFile
from tilewright.worker.session import Session

COMMAND = (sys.executable, "-m", "tilewright.worker.process.trusted")
SECONDS = 120.0  # wall time of the trusted implementation on one case, on a CPU
DOUBLE_OVER_SINGLE = 2.0**-29  # unit roundoff of float64 / unit roundoff of float32: 2⁻⁵³ / 2⁻²⁴


@dataclass(frozen=True)
class Single:
    """The outputs of the reference in float32, rounded to the declared dtypes.

    promoted: the outputs that NumPy returned in float64 nevertheless. NumPy computes in float64 if an operand is an
        array of integers or a NumPy scalar: ``x + np.arange(N) * 0.01``, ``x / np.sqrt(N)``. Such an output lacks most
        rounding errors of a float32 kernel.
    """

    outputs: Mapping[str, Array]
    promoted: frozenset[str]


class Trusted:
    """A task's trusted implementation, in a child process. The process starts at once and imports torch."""

    def __init__(self, task: Task, device: str = "cpu") -> None:
        self.task, self.device = task, device
        self._session: Session | None = None
        self._unavailable = ""
        if task.trusted is None:
            self._unavailable = f"task '{task.name}' names no trusted implementation"
            return
        try:
            self._session = Session(where_is(task), COMMAND)
        except (TaskError, OSError) as error:
            self._unavailable = str(error)

    def outputs(self, dims: Dims, inputs: NamedArrays) -> dict[str, Array] | str:
        """Returns the outputs, or the reason why there are none. ``inputs`` and outputs have their declared dtypes."""
        if self._session is None:
            return self._unavailable
        with workplace() as directory:
            step = self._step(dims, inputs, Path(directory))
            try:
                outcome = self._session.run(step, silence=SECONDS)
            except NoGpu:
                return self._gone("torch is not installed")
            except (TaskError, MachineError) as error:
                return self._gone(str(error))
            if outcome.answer is None:
                return f"trusted of task '{self.task.name}' failed: {outcome.reason}"
            expected = self.task.arrays(dims)
            return {
                name: np.fromfile(file, storage(expected[name].dtype)).reshape(expected[name].shape)
                for name, file in step.files.items()
            }

    def close(self) -> None:
        if self._session is not None:
            self._session.close(wait=False)
            self._gone("closed")

    def _gone(self, reason: str) -> str:
        """Ends the process. Every later request returns ``reason``."""
        if self._session is not None:
            self._session.close(wait=False)
        self._session, self._unavailable = None, reason
        return reason

    def _step(self, dims: Dims, inputs: NamedArrays, directory: Path) -> ComputeTrusted:
        described = []
        for number, (name, array) in enumerate(inputs.items()):
            file = directory / f"input{number}"
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(file)
            described.append(TensorFile(name, self.task.tensors[name].dtype, tuple(array.shape), str(file)))
        files = {name: str(directory / f"output{number}") for number, name in enumerate(self.task.outputs)}
        return ComputeTrusted(dims, tuple(described), files, self.device)


def yardstick(task: Task, dims: Dims, inputs: NamedArrays) -> Single | str:
    """Returns the float32 reference's outputs, or the reason why there are none.

    Float inputs are first rounded to the precision that the task declares, if this is coarser than float32. A float64
    output is the output of the float64 reference plus a small error. The small error is the error of the float32
    reference, scaled to the roundoff of float64.
    """
    coarse, precision = dict(inputs), task.precision
    if precision is not None:
        floats = [name for name in inputs if not is_whole(task.tensors[name].dtype)]
        coarse |= {name: to_precision(inputs[name], precision) for name in floats}
    single = _evaluated(task, dims, coarse, np.float32)
    if isinstance(single, str):
        return single
    outputs = {}
    double: dict[str, Array] | str | None = None
    for name, spec in task.outputs.items():
        value = single[name]
        if spec.dtype == "float64":
            double = double or _evaluated(task, dims, inputs, np.float64)
            if isinstance(double, str):
                return double
            value = double[name] + (value.astype(np.float64) - double[name]) * DOUBLE_OVER_SINGLE
        with np.errstate(over="ignore", invalid="ignore"):
            outputs[name] = value.astype(storage(spec.dtype))
    return Single(outputs, frozenset(name for name, value in single.items() if value.dtype == np.float64))


def to_precision(array: Array, precision: str) -> Array:
    """Rounds to ``precision`` (nearest, ties to even), and returns float32. tf32 has 10 bits of mantissa."""
    if precision != "tf32":
        return rounded(array, precision).astype(np.float32)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest = (bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(array), nearest.view(np.float32), array).astype(np.float32)


def _evaluated(task: Task, dims: Dims, inputs: NamedArrays, precision: npt.DTypeLike) -> dict[str, Array] | str:
    """Returns the reference's outputs for inputs in ``precision``, or the reason why there are none."""
    try:
        with np.errstate(all="ignore"):
            return evaluated(task, dims, inputs, precision)
    except Exception as error:  # the task's code was written for float64 and may fail
        return f"reference of task '{task.name}' in {np.dtype(precision).name}: {type(error).__name__}: {error}"
