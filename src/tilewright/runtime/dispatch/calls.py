"""Reads the dimensions of a task from the arrays of a call, and checks the arrays against the task's declarations.

A dimension is read from an axis whose declared extent is its plain name. Axes that are expressions are checked
afterwards. Dimensions that no axis shows, such as ``causal``, are arguments of the call.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.errors import RequestError, UnknownChoice
from tilewright.records import Value
from tilewright.runtime.arrays import ArrayFacts, facts_of
from tilewright.runtime.environment import device_of
from tilewright.task.task import Task
from tilewright.task.tensors import DIVISOR, ITEM_BYTES, ArraySpec, row_major, span


@dataclass(frozen=True)
class TaskCall:
    """A call of a task: its dimensions, and for each array its specification and address.

    in_place: the outputs that share the memory of the input that they overwrite.
    device: the index of the GPU that holds the arrays.
    """

    dims: Mapping[str, Value]
    arrays: Mapping[str, ArraySpec]
    addresses: Mapping[str, int]
    in_place: tuple[str, ...]
    device: int


def flags_of(task: Task) -> dict[str, bool]:
    """Returns the dimensions that no axis shows. The value tells whether all workloads have the dimension."""
    shown = {entry for spec in task.tensors.values() for entry in spec.shape if _is_plain(entry)}
    names = dict.fromkeys(name for dims in task.workloads.values() for name in dims if name not in shown)
    return {name: all(name in dims for dims in task.workloads.values()) for name in names}


def call_of(task: Task, given: Mapping[str, object]) -> TaskCall:
    """Returns the call with the arguments ``given`` by name. Raises RequestError, in one line, if it does not fit."""
    flags = flags_of(task)
    if unknown := [name for name in given if name not in task.tensors and name not in flags]:
        raise UnknownChoice(f"argument of task '{task.name}'", unknown[0], [*task.tensors, *flags])
    values = _with_updated(task, given)
    facts = {name: _facts(task, name, values) for name in task.tensors}
    dims = {**_extents(task, facts), **_flag_values(task, flags, given)}
    _check_shapes(task, facts, dims)
    specs = {name: _spec(task, name, fact) for name, fact in facts.items()}
    if not task.promises(dims):
        sizes = ", ".join(f"{name}={value}" for name, value in dims.items())
        raise RequestError(f"task '{task.name}' does not support {sizes}")
    devices = {name: device_of(values[name]) for name in task.tensors}
    if len({*devices.values()}) > 1:
        raise RequestError(f"the arrays are on several GPUs: {devices}; move them to one")
    return TaskCall(
        dims, specs, {name: fact.address for name, fact in facts.items()}, _in_place(task, facts),
        next(iter(devices.values())) or 0,
    )  # fmt: skip


def _is_plain(entry: str | int) -> bool:
    return isinstance(entry, str) and entry.isidentifier() and not keyword.iskeyword(entry)


def _with_updated(task: Task, given: Mapping[str, object]) -> dict[str, object]:
    """Adds the inputs that an output updates: the kernel reads them from the output, which the caller passes alone."""
    values = dict(given)
    for name, output in task.outputs.items():
        if output.updates is None or name not in given:
            continue
        if given.get(output.updates, given[name]) is not given[name]:
            raise RequestError(
                f"the kernel reads '{output.updates}' from '{name}', which it updates; fix: pass only '{name}'"
            )
        values[output.updates] = given[name]
    return values


def _facts(task: Task, name: str, values: Mapping[str, object]) -> ArrayFacts:
    spec = task.tensors[name]
    shape = f"({', '.join(map(str, spec.shape))})"
    if name not in values:
        raise RequestError(f"task '{task.name}' needs '{name}': pass an array {shape} of {spec.dtype}")
    facts = facts_of(values[name])
    if facts is None or device_of(values[name]) is None:
        where = "on the CPU" if facts else f"a {type(values[name]).__name__}"
        raise RequestError(f"'{name}' is {where}; pass an array {shape} of {spec.dtype} on the GPU")
    if facts.dtype != spec.dtype:
        raise RequestError(f"'{name}' has dtype {facts.dtype}; task '{task.name}' declares {spec.dtype}")
    if len(facts.shape) != len(spec.shape):
        raise RequestError(f"'{name}' has shape {facts.shape}; task '{task.name}' declares {shape}")
    return facts


def _extents(task: Task, facts: Mapping[str, ArrayFacts]) -> dict[str, Value]:
    found: dict[str, tuple[int, str]] = {}
    for name, spec in task.tensors.items():
        for entry, extent in zip(spec.shape, facts[name].shape, strict=True):
            if not _is_plain(entry):
                continue
            before, where = found.setdefault(str(entry), (extent, name))
            if before != extent:
                raise RequestError(f"'{entry}' is {before} in '{where}' and {extent} in '{name}'")
    return {name: extent for name, (extent, _) in found.items()}


def _flag_values(task: Task, flags: Mapping[str, bool], given: Mapping[str, object]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, needed in flags.items():
        if name not in given:
            if needed:
                raise RequestError(f"task '{task.name}' needs {name}=…: the arrays do not show it")
            continue
        value = given[name]
        if not isinstance(value, (bool, int, float, str)) and value is not None:
            raise RequestError(f"'{name}' is a {type(value).__name__}; pass a number, True, False, a string or None")
        values[name] = value
    return values


def _check_shapes(task: Task, facts: Mapping[str, ArrayFacts], dims: Mapping[str, Value]) -> None:
    for name, array in task.arrays(dims).items():
        if array.shape != facts[name].shape:
            declared = ", ".join(map(str, task.tensors[name].shape))
            raise RequestError(
                f"'{name}' has shape {facts[name].shape}; task '{task.name}' declares ({declared}), which is "
                f"{array.shape} here"
            )


def _spec(task: Task, name: str, facts: ArrayFacts) -> ArraySpec:
    """Returns the specification as compilers see it. Raises RequestError for a layout that the task does not allow."""
    layout, shape, strides = "", facts.shape, facts.strides
    if not _is_dense(shape, strides):
        layout = "sliced" if _is_sliced(shape, strides) else "transposed" if _is_transposed(shape, strides) else "other"
    elif facts.alignment:
        layout = "misaligned"
    if layout and layout not in task.layouts:
        what = f"starts {facts.alignment} bytes after a multiple of {DIVISOR}"
        what = what if layout == "misaligned" else f"has strides {strides}, and is not row-major"
        allowed = f"only {', '.join(task.layouts)} besides" if task.layouts else "no other layouts"
        raise RequestError(f"'{name}' {what}; task '{task.name}' allows {allowed}; fix: pass a contiguous copy")
    dense = strides == row_major(shape)
    return ArraySpec(name, shape, facts.dtype, None if dense else strides, facts.alignment)


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    wanted = row_major(shape)
    return all(extent <= 1 or stride == want for extent, stride, want in zip(shape, strides, wanted, strict=True))


def _is_sliced(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Returns whether the array consists of rows of a wider array."""
    outer = [axis for axis in range(len(shape) - 1) if shape[axis] > 1]
    if not outer:
        return False
    width, rest = divmod(strides[outer[-1]], math.prod(shape[outer[-1] + 1 : -1]))
    return not rest and width >= shape[-1] and _is_dense((*shape[:-1], width), (*strides[:-1], 1)) and (
        shape[-1] <= 1 or strides[-1] == 1
    )  # fmt: skip


def _is_transposed(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Returns whether the last two axes are swapped in memory."""
    if len(shape) < 2:
        return False
    return _is_dense((*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]))


def _in_place(task: Task, facts: Mapping[str, ArrayFacts]) -> tuple[str, ...]:
    """Returns the outputs in place of an input. Raises RequestError for any other shared memory."""
    found = []
    for name, output in task.outputs.items():
        for other in facts:
            if other in (name, output.updates) or not _overlap(facts[name], facts[other]):
                continue
            if output.in_place_of != other or facts[name] != facts[other]:
                raise RequestError(
                    f"'{name}' shares memory with '{other}'; fix: pass separate arrays"
                    + (f", or the same array as '{name}' and '{other}'" if output.in_place_of == other else "")
                )
            found.append(name)
    return tuple(found)


def _overlap(one: ArrayFacts, other: ArrayFacts) -> bool:
    first, second = sorted((one, other), key=lambda facts: facts.address)
    return first.address + span(first.shape, first.strides) * ITEM_BYTES[first.dtype] > second.address
