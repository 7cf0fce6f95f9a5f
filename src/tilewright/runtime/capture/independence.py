"""Finds the dimensions of a drafted task that its outputs are independent along, by running the captured kernel.

Independent: some indices alone give the same outputs as among all indices. A check then needs a reference for some
indices only.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright.errors import TilewrightError
from tilewright.hardware.architectures import default_board
from tilewright.race.stats import Array
from tilewright.records import Failed, Value
from tilewright.runtime.capture.described import WHOLE
from tilewright.runtime.capture.facts import ARCH
from tilewright.runtime.capture.trying import drawn_inputs, small_shape, too_large
from tilewright.task.task import Task
from tilewright.tileir.read.tree import Op
from tilewright.tileir.run.launching import Launcher
from tilewright.tileir.run.registry import Unsupported
from tilewright.verify.tolerance import reference_outputs, spread

Mask: TypeAlias = npt.NDArray[np.bool_]
MOST = 1 << 22, 1 << 13
"""The most elements of all arrays, and the most blocks, of a shape on which independence is tried."""
DIVIDING, COMPARING = frozenset({"divi", "remi", "for"}), frozenset({"cmpi", "mini", "maxi"})
BITS = frozenset({"andi", "ori"})
SAME_VALUE = frozenset({"broadcast", "reshape", "exti", "trunci", "assume"})
COMPUTED = {"addi": operator.add, "subi": operator.sub, "muli": operator.mul, "divi": operator.floordiv}
"""Operations of Tile IR."""


def independent(task: Task, names: Iterable[str]) -> tuple[str, ...]:
    """Returns those of some dimensions along which the outputs are independent."""
    captured = task.selected(None)[0].dims
    small = {name: 2 if size == 1 else size for name, size in small_shape(task).items()}
    if too_large(task, small, MOST):
        return ()
    numbers = _numbers(task, small)
    found = []
    for name in names:
        each = ({**small, name: _beyond(some, small[name], captured[name])} for some in numbers)
        dims = next((dims for dims in each if not too_large(task, dims, MOST)), None)
        if dims is not None and _is_independent(task, dims, name):
            found.append(name)
    return tuple(found)


def _numbers(task: Task, dims: dict[str, Value]) -> tuple[list[int], list[int]]:
    """Returns the whole numbers that the kernel may compare an index with, or divide it by: those that it computes from
    constants and arguments, its arguments, and the largest number in each integer array.

    The second list has neither the arguments nor the numbers with which only tiles are compared. Mostly, these are
    masks of the columns of a row.
    """
    runnable = Launcher(task, default_board(ARCH)).runnable(task.space.shipped, dims, task.arrays(dims))
    if isinstance(runnable, Failed):
        return [], []
    drawn = drawn_inputs(task, dims, np.random.default_rng(0))
    largest = [array.max() for name, array in drawn.items() if task.inputs[name].dtype.startswith(WHOLE) and array.size]
    entry, given = runnable.module.entry(), [arg for arg in runnable.launch.args if type(arg) is int]
    words = zip(entry.parameters, runnable.arguments, strict=True)
    known = {name: [word] for (name, _), word in words if type(word) is int and word in given}
    every, certain = [*given, *map(int, largest)], [*map(int, largest)]
    for op in entry.walk():
        numbers = list(_deciding(op, known))
        every += numbers
        if op.name not in COMPARING or not op.tile().shape:
            certain += numbers
    return every, certain


def _deciding(op: Op, known: dict[str, list[int]]) -> Iterator[int]:
    """Yields the known numbers by which an operation may decide about an index. Adds its results to ``known``."""
    operands = [known.get(values[0], []) for values in op.operands.values() if values]
    if op.name == "constant":
        known[op.results[0]] = [number for number in op.attributes["value"].values if type(number) is int]
    elif op.name in SAME_VALUE:
        known[op.results[0]] = operands[0]
    elif op.name in COMPUTED and [*map(len, operands)] == [1, 1]:
        with suppress(ZeroDivisionError):
            known[op.results[0]] = [COMPUTED[op.name](operands[0][0], operands[1][0])]
    numbers = itertools.chain.from_iterable(operands)
    if op.name in DIVIDING | COMPARING:
        yield from numbers
    elif op.name in BITS:  # smaller indices do not differ in the lowest bit that is 1, or that is 0
        yield from (bit for number in numbers for bit in (number & -number, ~number & -~number))
    elif op.name == "shri":
        yield from (1 << number for number in numbers if 0 <= number < 64)


def _beyond(numbers: Iterable[int], small: Value, captured: Value) -> Value:
    """Returns an extent beyond the numbers that indices of the captured launch pass. A kernel may compare an index
    with them or divide it by them, as with the number of rows that share a scale; a smaller extent does not show it."""
    if not isinstance(small, int) or not isinstance(captured, int):
        return small
    passed = max((number for number in numbers if small <= number < captured), default=0)
    return min(captured, small * (passed // small + 2)) if passed else small


def _is_independent(task: Task, dims: dict[str, Value], name: str) -> bool:
    """Returns whether some indices of a dimension alone give the same outputs, as they do among all indices, and
    whether NaN and other values at an index affect only outputs there. A kernel may use the index itself, as a random
    mask does. A comparison may hide a NaN, so other values must change an output. Their magnitudes differ, because a
    comparison may be with a large or a small number."""
    extent, tensors = dims[name], task.tensors
    axes = {tensor: spec.shape.index(name) for tensor, spec in tensors.items() if spec.shape.count(name) == 1}
    entries = [str(entry) for spec in tensors.values() for entry in spec.shape]
    often = sum(name in re.findall(r"\w+", entry) for entry in entries) > len(axes)  # also as a part of another axis
    if often or not isinstance(extent, int) or extent < 2 or not set(task.outputs) <= set(axes):
        return False
    inputs = [tensor for tensor in task.inputs if tensor in axes]
    if not inputs or any(task.inputs[tensor].dtype.startswith(WHOLE) for tensor in inputs):
        return False
    rng = np.random.default_rng(0)
    with suppress(TilewrightError, Unsupported):
        drawn = drawn_inputs(task, dims, rng)
        outputs = reference_outputs(task, dims, drawn)
        for count in {1, min(3, extent - 1), extent // 2}:
            some = spread(extent, count, rng)
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
        for index in (0, extent - 1, int(rng.integers(extent))):
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
