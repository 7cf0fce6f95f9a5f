"""Finds the dimensions of a drafted task that its outputs are independent along, by running the captured kernel.

Independent: some indices alone give the same outputs as among all indices. A check then needs a reference for some
indices only.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright.errors import TilewrightError
from tilewright.hardware.architectures import default_board
from tilewright.race.stats import Array
from tilewright.records import Failed, Value
from tilewright.runtime.capture.deciding_numbers import deciding_numbers
from tilewright.runtime.capture.described import WHOLE
from tilewright.runtime.capture.facts import ARCH
from tilewright.runtime.capture.trying import drawn_inputs, small_shape, too_large
from tilewright.task.task import Task
from tilewright.task.tensors import Dims
from tilewright.tileir.run.launching import Launcher
from tilewright.tileir.run.registry import Unsupported
from tilewright.verify.shapes import extent
from tilewright.verify.tolerance import reference_outputs, spread

Mask: TypeAlias = npt.NDArray[np.bool_]
MOST = 1 << 22, 1 << 13
"""The most elements of all arrays, and the most blocks, of a shape on which independence is tried."""


def independent(task: Task, names: Iterable[str]) -> tuple[str, ...]:
    """Returns those of some dimensions along which the outputs are independent."""
    captured = task.selected(None)[0].dims
    small = {name: 2 if size == 1 else size for name, size in small_shape(task).items()}
    if too_large(task, small, MOST):
        return ()
    numbers = _numbers(task, small)

    def is_independent(name: str) -> bool:
        shapes = _shapes(task, name, numbers, small, captured)
        return shapes is not None and all(_is_independent(task, shape, name) for shape in shapes)

    return tuple(filter(is_independent, names))


def _shapes(
    task: Task, name: str, numbers: Sequence[list[int]], small: Dims, captured: Dims
) -> list[dict[str, Value]] | None:
    """Returns the few shapes on which a dimension is tried; None if one is too large.

    The dimension's indices alone, and flattened with those of any other dimensions, pass the numbers that they pass in
    the captured launch: each of these indices in one of the shapes.
    """
    others = [other for other, size in small.items() if other != name and isinstance(size, int)]
    combined = itertools.chain.from_iterable(itertools.combinations(others, n) for n in range(len(others) + 1))
    indices = [(name, *axes) for axes in combined]
    shapes: list[dict[str, Value]] = []
    for axes in sorted(indices, key=lambda axes: -_passed(numbers[0], axes, small, captured)):
        for some in numbers:
            passed = _passed(some, axes, small, captured)
            if any(_index_count(shape, axes) > passed for shape in shapes):
                break
            orders = (axes, (*axes[1:], name))
            grown = (_beyond(passed, order, small, captured) for order in orders)
            shape = next((dims for dims in grown if not too_large(task, dims, MOST)), None)
            if shape is not None:
                shapes.append(shape)
                break
        else:
            return None
    return shapes


def _numbers(task: Task, dims: Dims) -> tuple[list[int], list[int]]:
    """Returns the numbers by which the kernel may decide about an index: its arguments, the largest number in each
    integer array, and those in its code. The second list has only numbers that are hardly for something else: neither
    the arguments nor the numbers with which only tiles are compared (`deciding_numbers`)."""
    runnable = Launcher(task, default_board(ARCH)).runnable(task.space.shipped, dims, task.arrays(dims))
    if isinstance(runnable, Failed):
        return [], []
    drawn = drawn_inputs(task, dict(dims), np.random.default_rng(0))
    whole = [array for name, array in drawn.items() if task.inputs[name].dtype.startswith(WHOLE) and array.size]
    largest = [int(array.max()) for array in whole]
    entry, given = runnable.module.entry(), [arg for arg in runnable.launch.args if type(arg) in (int, float)]
    words = zip(entry.parameters, runnable.arguments, strict=True)
    known = {name: word for (name, _), word in words if isinstance(word, (int, float)) and word in given}
    every, certain = deciding_numbers(entry, known)
    return [*(arg for arg in given if type(arg) is int), *largest, *every], [*largest, *certain]


def _passed(numbers: Iterable[int], axes: Sequence[str], small: Dims, captured: Dims) -> int:
    """Returns the largest number that the flattened indices of some dimensions pass in the captured launch, but not in
    the small shape; 0 if there is none. A kernel may compare an index with these numbers or divide it by them, as with
    the number of rows that share a scale; a smaller shape does not show it."""
    few, many = _index_count(small, axes), _index_count(captured, axes)
    return max((number for number in numbers if few <= number < many), default=0)


def _beyond(passed: int, axes: Sequence[str], small: Dims, captured: Dims) -> dict[str, Value]:
    """Returns a shape in which the flattened indices of some dimensions pass a number. The first dimensions grow
    first."""
    shape = dict(small)
    for axis in axes:
        if _index_count(shape, axes) <= passed:
            more = passed // _index_count(shape, axes) + 2
            shape[axis] = min(extent(captured, axis), extent(small, axis) * more)
    return shape


def _index_count(dims: Dims, axes: Iterable[str]) -> int:
    return math.prod(extent(dims, axis) for axis in axes)


def _is_independent(task: Task, dims: dict[str, Value], name: str) -> bool:
    """Returns whether the outputs of a shape are independent along a dimension, as far as a few indices show it."""
    size, tensors = dims[name], task.tensors
    axes = {tensor: spec.shape.index(name) for tensor, spec in tensors.items() if spec.shape.count(name) == 1}
    entries = [str(entry) for spec in tensors.values() for entry in spec.shape]
    often = sum(name in re.findall(r"\w+", entry) for entry in entries) > len(axes)  # also as a part of another axis
    if often or not isinstance(size, int) or size < 2 or not set(task.outputs) <= set(axes):
        return False
    inputs = [tensor for tensor in task.inputs if tensor in axes]
    if not inputs or any(task.inputs[tensor].dtype.startswith(WHOLE) for tensor in inputs):
        return False
    with suppress(TilewrightError, Unsupported):
        tried = _OneDimension(task, dims, name, size, axes, inputs)
        return tried.is_same_alone() and tried.stays_at_its_index()
    return False


class _OneDimension:
    """Launches on a shape with random inputs, to try whether the outputs are independent along a dimension.

    size: the extent of the dimension. axes: the axis of each tensor that is the dimension.
    inputs: the inputs that have the dimension.
    """

    def __init__(
        self, task: Task, dims: dict[str, Value], name: str, size: int, axes: Mapping[str, int], inputs: Sequence[str]
    ) -> None:
        self.task, self.dims, self.name, self.size, self.axes, self.inputs = task, dims, name, size, axes, inputs
        self.rng = np.random.default_rng(0)
        self.drawn = drawn_inputs(task, dims, self.rng)
        self.outputs = reference_outputs(task, dims, self.drawn)

    def is_same_alone(self) -> bool:
        """Returns whether some indices alone give the same outputs as among all indices. A kernel may use the index
        itself, as a random mask does."""
        for count in {1, min(3, self.size - 1), self.size // 2}:
            some = spread(self.size, count, self.rng)
            part = {tensor: self._taken(tensor, array, some) for tensor, array in self.drawn.items()}
            alone = reference_outputs(self.task, {**self.dims, self.name: count}, part)
            if not all(_are_close(alone[out], self._taken(out, array, some)) for out, array in self.outputs.items()):
                return False
        return True

    def stays_at_its_index(self) -> bool:
        """Returns whether NaN, and other values, at an index change only outputs there. A comparison may hide a NaN, so
        other values must change an output. Their magnitudes differ, because a comparison may be with a large or a small
        number."""
        redrawn = drawn_inputs(self.task, self.dims, self.rng)
        others = {name: array * 10.0 ** self.rng.uniform(-2, 4, array.shape) for name, array in redrawn.items()}
        for index in (0, self.size - 1, int(self.rng.integers(self.size))):
            with_nan = self._outputs_with(index, dict.fromkeys(self.inputs, np.nan))
            for out, array in with_nan.items():
                if np.delete(_has_any(np.isnan(array), self.axes[out]), index).any():
                    return False
            values = {name: others[name].take(index, self.axes[name]) for name in self.inputs}
            for out, array in self._outputs_with(index, values).items():
                changed = _has_any(array != self.outputs[out], self.axes[out])
                if not changed[index] or np.delete(changed, index).any():
                    return False
        return True

    def _taken(self, name: str, array: Array, indices: Sequence[int]) -> Array:
        return array.take(indices, self.axes[name]) if name in self.axes else array

    def _outputs_with(self, index: int, values: Mapping[str, float | Array]) -> dict[str, Array]:
        """Returns the outputs of a launch whose inputs have other values at one index."""
        changed = {name: _with(self.drawn[name], self.axes[name], index, new) for name, new in values.items()}
        return reference_outputs(self.task, self.dims, {**self.drawn, **changed})


def _are_close(array: Array, other: Array) -> bool:
    """Returns whether outputs differ by rounding only, which may be that of float32 sums."""
    return bool(np.allclose(array, other, rtol=1e-3, atol=1e-3 * float(np.abs(other).max(initial=0.0))))


def _with(array: Array, axis: int, index: int, values: float | Array) -> Array:
    changed = array.copy()
    np.moveaxis(changed, axis, 0)[index] = values
    return changed


def _has_any(mask: Mask, axis: int) -> Mask:
    """Returns for each index of an axis whether the mask is true anywhere at this index."""
    return np.array([slices.any() for slices in np.moveaxis(mask, axis, 0)])
