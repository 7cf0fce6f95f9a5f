"""Whether the reference of a backward task is the gradient of the forward reference.

Along a random direction v of one input, the derivative of Σ out · d_out that the backward reference gives,
⟨d_in, v⟩, is compared with the central difference of the forward reference, both in float64.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.errors import TaskError
from tilewright.task.task import Task
from tilewright.task.tensors import Dims, is_whole
from tilewright.verify.arrays import Array
from tilewright.verify.tolerance import draw, reference_outputs

STEPS = (1e-7, 1e-5)
"""Relative to the size of the input. The small step seldom crosses a kink, the large one rounds less. The better of
the two results counts."""
TOLERANCE = 1e-4
"""Of the gradient's norm; a wrong factor or sign is far above, differences in float64 far below."""
DIRECTIONS = 2


def check_gradients(task: Task, dims: Dims, seed: int) -> None:
    """Raises TaskError, naming the input, where the backward reference is not the gradient."""
    backward = task.backward
    assert backward is not None
    rng = np.random.default_rng(seed)
    arrays = task.arrays(dims)
    inputs = {name: draw(task.distribution(name, dims), arrays[name].shape, rng) for name in task.inputs}
    towards = {f"d_{name}": rng.normal(size=arrays[name].shape) for name in task.outputs}
    offered = {**inputs, **towards}
    with np.errstate(all="ignore"):
        gradients = reference_outputs(backward, dims, {name: offered[name] for name in backward.inputs})
        for output, gradient in gradients.items():
            name = output.removeprefix("d_")
            if is_whole(task.tensors[name].dtype):
                raise TaskError(f"backward of task '{task.name}': '{name}' is whole numbers, it has no gradient")
            for _ in range(DIRECTIONS):
                _compare(task, dims, inputs, towards, name, gradient, rng)


def _compare(
    task: Task, dims: Dims, inputs: Mapping[str, Array], towards: Mapping[str, Array], name: str,
    gradient: Array, rng: np.random.Generator,
) -> None:  # fmt: skip
    direction = rng.normal(size=gradient.shape)
    predicted = float((gradient * direction).sum())
    size = float(np.sqrt(np.mean(np.square(inputs[name], dtype=np.float64)))) or 1.0
    measured = [_slope(task, dims, inputs, towards, name, direction, step * size) for step in STEPS]
    scale = float(np.linalg.norm(gradient.ravel()))
    off = [abs(predicted - time) / max(scale, abs(time), 1e-300) for time in measured]
    best = int(np.argmin(off))
    if not off[best] <= TOLERANCE:
        raise TaskError(
            f"backward of task '{task.name}': along a random direction 'd_{name}' gives {predicted:.6g}, "
            f"finite differences of the forward reference {measured[best]:.6g}"
        )


def _slope(
    task: Task, dims: Dims, inputs: Mapping[str, Array], towards: Mapping[str, Array], name: str,
    direction: Array, step: float,
) -> float:  # fmt: skip
    def total(sign: int) -> float:
        moved = {**inputs, name: inputs[name] + sign * step * direction}
        outputs = reference_outputs(task, dims, moved)
        return sum(float((value * towards[f"d_{output}"]).sum()) for output, value in outputs.items())

    return (total(1) - total(-1)) / (2 * step)
