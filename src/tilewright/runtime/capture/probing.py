"""Runs a drafted task to find out how its work grows, and along which dimensions its outputs are independent."""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import suppress

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.hardware.architectures import default_board
from tilewright.inspect.work import count
from tilewright.race.stats import Array
from tilewright.records import Failed, Value, Workload
from tilewright.runtime.capture.described import WHOLE
from tilewright.runtime.capture.facts import ARCH
from tilewright.task.task import Task
from tilewright.tileir.run.launching import Launcher
from tilewright.tileir.run.registry import NeedsData, Unsupported
from tilewright.verify import shapes
from tilewright.verify.tolerance import draw, reference_outputs


def small_shape(task: Task) -> dict[str, Value]:
    """A small shape that divides as the captured one."""
    dims = task.selected(None)[0].dims
    return shapes.reduced(task, dims, shapes.moduli(task, task.space.shipped, dims))


def work_of(task: Task) -> tuple[float, dict[str, int]]:
    """FLOP as a factor and powers of the dimensions. Counted once, and once with each dimension halved."""
    dims = {name: int(value) for name, value in task.selected(None)[0].dims.items() if isinstance(value, int)}
    whole = _flop(task, dims)
    powers: dict[str, int] = {}
    for name, extent in dims.items():
        half = _flop(task, {**dims, name: extent // 2}) if whole and extent > 1 else None
        if whole and half:
            powers[name] = max(0, round(math.log(whole / half) / math.log(extent / (extent // 2))))
    product = math.prod(dims[name] ** power for name, power in powers.items())
    return max(whole or 0.0, 1.0) / product, powers


def _flop(task: Task, dims: dict[str, int]) -> float | None:
    arrays = task.arrays(dims)
    runnable = Launcher(task, default_board(ARCH)).runnable(task.space.shipped, dims, arrays)
    if isinstance(runnable, Failed):
        return None
    try:
        counts = runnable.dry_run(arrays, sample=64)[0].counts
    except Unsupported:
        return None
    except NeedsData:
        work = count(task, Workload("captured", dims), default_board(ARCH)) if task.promises(dims) else None
        return None if work is None or work.counts is None else work.flops
    return float(counts.scaled(counts.tensor_flop + counts.flop))


def independent_of(task: Task, steered: Collection[str]) -> tuple[str, ...]:
    """The dimensions that can be cut to any size, and along which a NaN in the inputs stays at its index."""
    small = {name: 2 if size == 1 else size for name, size in small_shape(task).items()}
    return tuple(name for name in small if name not in steered and _is_independent(task, small, name))


def _is_independent(task: Task, dims: dict[str, Value], name: str) -> bool:
    extent = dims[name]
    axes = {tensor: spec.shape.index(name) for tensor, spec in task.tensors.items() if spec.shape.count(name) == 1}
    often = any(spec.shape.count(name) > 1 for spec in task.tensors.values())
    if often or not isinstance(extent, int) or extent < 2 or not set(task.outputs) <= set(axes):
        return False
    inputs = [tensor for tensor in task.inputs if tensor in axes]
    if not inputs or any(task.inputs[tensor].dtype.startswith(WHOLE) for tensor in inputs):
        return False
    rng = np.random.default_rng(0)
    with suppress(TilewrightError, Unsupported):
        for cut in (1, 3):
            outputs_of(task, {**dims, name: cut}, rng, {})
        for index in (0, extent - 1, int(rng.integers(extent))):
            outputs = outputs_of(task, dims, rng, {tensor: (axes[tensor], index) for tensor in inputs})
            if not all(_only_there(array, axes[out], index) for out, array in zip(task.outputs, outputs, strict=True)):
                return False
        return True
    return False


def outputs_of(
    task: Task, dims: dict[str, Value], rng: np.random.Generator, spoiled: dict[str, tuple[int, int]]
) -> list[Array]:
    """The reference's outputs, with NaN at one index of one axis of some inputs."""
    inputs = {}
    for name, array in task.arrays(dims).items():
        if name not in task.inputs:
            continue
        inputs[name] = np.asarray(draw(task.distribution(name, dims), array.shape, rng), np.float64)
        if name in spoiled:
            axis, index = spoiled[name]
            np.moveaxis(inputs[name], axis, 0)[index] = np.nan
    return list(reference_outputs(task, dims, inputs).values())


def _only_there(array: Array, axis: int, index: int) -> bool:
    slices = np.isnan(np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1))
    return bool(slices[index].any()) and not np.delete(slices, index, 0).any()
