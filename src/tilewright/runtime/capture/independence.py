"""Finds the dimensions of a drafted task that its outputs are independent along, by running the captured kernel.

Independent: some indices alone give the same outputs as among all indices. A check then needs a reference for some
indices only.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright.errors import TilewrightError
from tilewright.hardware.architectures import default_board
from tilewright.race.stats import Array
from tilewright.records import Failed, Value
from tilewright.runtime.capture.deciding import deciding_numbers
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
        tried: list[dict[str, Value]] = []
        for shape in _shapes(task, name, numbers, small, captured):
            if shape is None or (shape not in tried and not _is_independent(task, shape, name)):
                return False
            tried.append(shape)
        return True

    return tuple(filter(is_independent, names))


def _shapes(
    task: Task, name: str, numbers: Iterable[list[int]], small: Dims, captured: Dims
) -> Iterator[dict[str, Value] | None]:
    """Yields the shapes on which a dimension is tried: its indices alone, and flattened with those of other dimensions,
    pass the numbers that they pass in the captured launch. Any of these dimensions may be extended for it. Yields None
    if such a shape is too large."""
    others = [other for other, size in small.items() if other != name and isinstance(size, int)]
    for axes in itertools.chain.from_iterable(itertools.combinations(others, n) for n in range(len(others) + 1)):
        orders = ((name, *axes), (*axes, name))
        each = (_beyond(some, order, small, captured) for some in numbers for order in orders)
        yield next((dims for dims in each if not too_large(task, dims, MOST)), None)


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


def _beyond(numbers: Iterable[int], axes: Sequence[str], small: Dims, captured: Dims) -> dict[str, Value]:
    """Returns a shape in which the flattened indices of some dimensions are beyond the numbers that they pass in the
    captured launch. A kernel may compare an index with these numbers or divide it by them, as with the number of rows
    that share a scale; a smaller shape does not show it. The first dimensions grow first."""
    shape, whole = dict(small), _extent(captured, axes)
    passed = max((number for number in numbers if _extent(small, axes) <= number < whole), default=0)
    for axis in axes:
        if _extent(shape, axes) <= passed:
            more = passed // _extent(shape, axes) + 2
            shape[axis] = min(extent(captured, axis), extent(small, axis) * more)
    return shape


def _extent(dims: Dims, axes: Iterable[str]) -> int:
    return math.prod(extent(dims, axis) for axis in axes)


def _is_independent(task: Task, dims: dict[str, Value], name: str) -> bool:
    """Returns whether some indices of a dimension alone give the same outputs, as they do among all indices, and
    whether NaN and other values at an index affect only outputs there. A kernel may use the index itself, as a random
    mask does. A comparison may hide a NaN, so other values must change an output. Their magnitudes differ, because a
    comparison may be with a large or a small number."""
    size, tensors = dims[name], task.tensors
    axes = {tensor: spec.shape.index(name) for tensor, spec in tensors.items() if spec.shape.count(name) == 1}
    entries = [str(entry) for spec in tensors.values() for entry in spec.shape]
    often = sum(name in re.findall(r"\w+", entry) for entry in entries) > len(axes)  # also as a part of another axis
    if often or not isinstance(size, int) or size < 2 or not set(task.outputs) <= set(axes):
        return False
    inputs = [tensor for tensor in task.inputs if tensor in axes]
    if not inputs or any(task.inputs[tensor].dtype.startswith(WHOLE) for tensor in inputs):
        return False
    rng = np.random.default_rng(0)
    with suppress(TilewrightError, Unsupported):
        drawn = drawn_inputs(task, dims, rng)
        outputs = reference_outputs(task, dims, drawn)
        for count in {1, min(3, size - 1), size // 2}:
            some = spread(size, count, rng)
            part = {
                tensor: array.take(some, axes[tensor]) if tensor in axes else array for tensor, array in drawn.items()
            }
            alone = reference_outputs(task, {**dims, name: count}, part)
            if not all(_are_close(alone[out], array.take(some, axes[out])) for out, array in outputs.items()):
                return False
        others = {
            tensor: array * 10.0 ** rng.uniform(-2, 4, array.shape)
            for tensor, array in drawn_inputs(task, dims, rng).items()
        }
        for index in (0, size - 1, int(rng.integers(size))):
            with_nan = {tensor: _with(drawn[tensor], axes[tensor], index, np.nan) for tensor in inputs}
            for out, array in reference_outputs(task, dims, {**drawn, **with_nan}).items():
                if np.delete(_is_changed(np.isnan(array), axes[out]), index).any():
                    return False
            redrawn = {
                tensor: _with(drawn[tensor], axes[tensor], index, others[tensor].take(index, axes[tensor]))
                for tensor in inputs
            }
            for out, array in reference_outputs(task, dims, {**drawn, **redrawn}).items():
                changed = _is_changed(array != outputs[out], axes[out])
                if not changed[index] or np.delete(changed, index).any():
                    return False
        return True
    return False


def _are_close(array: Array, other: Array) -> bool:
    """Returns whether outputs differ by rounding only, which may be that of float32 sums."""
    return bool(np.allclose(array, other, rtol=1e-3, atol=1e-3 * float(np.abs(other).max(initial=0.0))))


def _with(array: Array, axis: int, index: int, values: float | Array) -> Array:
    changed = array.copy()
    np.moveaxis(changed, axis, 0)[index] = values
    return changed


def _is_changed(changed: Mask, axis: int) -> Mask:
    """Returns for each index of an axis whether an element there is marked."""
    return np.array([slices.any() for slices in np.moveaxis(changed, axis, 0)])
