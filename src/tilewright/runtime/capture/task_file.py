"""Generates a task file from a recorded launch, so that the kernel of a program can be tuned, checked and optimised.

A task needs facts that a launch does not have. These are the grid as a function of the tiles, the tile sizes that give
the captured outputs, the independent dimensions of the outputs, and the growth of the work. Guesses are tried in the
interpreter on small shapes. If no guess works, the captured numbers stay, and the file says so.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright.errors import RequestError, TilewrightError
from tilewright.hardware.architectures import default_board
from tilewright.inspect.work import count
from tilewright.race.stats import Array
from tilewright.records import Failed, Value, Workload
from tilewright.runtime.capture import facts
from tilewright.runtime.capture.described import WHOLE
from tilewright.runtime.capture.facts import ARCH, CapturedLaunch
from tilewright.runtime.capture.guessing import best_draft, loaded
from tilewright.runtime.capture.program_call import ProgramCall
from tilewright.runtime.capture.record import Recorded
from tilewright.runtime.capture.trying import drawn_inputs, small_shape
from tilewright.task.task import Task
from tilewright.tileir.run.launching import Launcher
from tilewright.tileir.run.registry import NeedsData, Unsupported
from tilewright.verify.tolerance import reference_outputs, spread

Mask: TypeAlias = npt.NDArray[np.bool_]


def task_text(recorded: Recorded, folder: Path, *, heading: str = "") -> str:
    """Returns the text of a task file for a captured launch. folder: the folder of the file; drafts are also written
    there, and loaded. Raises RequestError, with the reason, if the launch cannot become a task."""
    launch = recorded.launch
    if launch.problem:
        raise RequestError(f"{launch.kernel} cannot become a task: {launch.problem}")
    heading = heading or f"{launch.kernel} as a program launched it."
    return drafted_text(facts.captured_launch(launch), folder, heading, recorded.call)


def drafted_text(captured: CapturedLaunch, folder: Path, heading: str, call: ProgramCall | None = None) -> str:
    """Returns the text of a task file for a launch, as `task_text` does."""
    draft = best_draft(captured, heading, folder)
    with loaded(draft, folder) as task:
        draft = replace(draft, work=work_of(task), call=call)
    with loaded(replace(draft, independent=draft.free), folder) as task:
        small = {name: 2 if size == 1 else size for name, size in small_shape(task).items()}
        free = [name for name in small if name not in draft.dimensions.indexed]
        return replace(draft, independent=tuple(name for name in free if _is_independent(task, small, name))).text()


def work_of(task: Task) -> tuple[float, dict[str, int]]:
    """Returns the FLOP of a launch as a factor and the power of each dimension, by halving each dimension once."""
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


def _is_independent(task: Task, dims: dict[str, Value], name: str) -> bool:
    """Returns whether some indices of a dimension alone give the same outputs, as they do among all indices, and
    whether NaN and other values at an index affect only outputs there. A kernel may use the index itself, as a random
    mask does. A comparison may hide a NaN, so other values must change an output. Their magnitudes differ, because a
    comparison may be with a large or a small number."""
    extent, tensors = dims[name], task.tensors
    axes = {tensor: spec.shape.index(name) for tensor, spec in tensors.items() if spec.shape.count(name) == 1}
    often = any(spec.shape.count(name) > 1 for spec in tensors.values())
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
