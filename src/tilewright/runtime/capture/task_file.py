"""Generates a task file from a recorded launch, so that the kernel of a program can be tuned, checked and optimised.

A task needs rules that a launch does not have: how the grid depends on the tiles, which tile sizes give the captured
outputs, along which dimensions the outputs are independent, how the work grows. They are tried on small shapes, on the
interpreter. What does not work stays as it was captured, and the file says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilewright.errors import RequestError, TilewrightError
from tilewright.hardware.architectures import default_board
from tilewright.inspect.work import count
from tilewright.race.stats import Array
from tilewright.records import Failed, Value, Workload
from tilewright.runtime.capture.described import CONTENTS_BYTES, WHOLE
from tilewright.runtime.capture.draft import NOTHING, SCALINGS, TaskDraft
from tilewright.runtime.capture.facts import ARCH, CapturedLaunch, Form, captured_launch, grid_forms, is_told, tiles
from tilewright.runtime.capture.record import Recorded
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tileir.run.launching import Launcher
from tilewright.tileir.run.registry import NeedsData, Unsupported
from tilewright.verify import shapes
from tilewright.verify.cases import Case
from tilewright.verify.check import check_on
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.planning import Scope
from tilewright.verify.schedule import Equipment
from tilewright.verify.tolerance import draw, reference_outputs

MOST_FORMS = 6
"""The most rules for the grid that are tried."""
MOST_ELEMENTS = 1 << 23
"""The most elements of a shape that a rule is tried on."""
SECONDS = 60.0
"""The most time for one rule with all its tile sizes."""


def task_text(recorded: Recorded, folder: Path, *, heading: str = "") -> str:
    """The text of a task file for one captured launch. ``folder``: of the file; drafts are tried there.

    Raises RequestError, with the reason, if it cannot become a task.
    """
    launch = recorded.launch
    if launch.problem:
        raise RequestError(f"{launch.kernel} cannot become a task: {launch.problem}")
    captured = captured_launch(launch)
    heading = heading or f"{launch.kernel} as a program launched it."
    draft = _with_tiles(captured, heading, folder)
    with _loaded(draft, folder) as task:
        draft = replace(draft, work=work_of(task))
    with _loaded(replace(draft, independent=draft.free), folder) as task:
        small = {name: 2 if size == 1 else size for name, size in small_shape(task).items()}
        free = [name for name in small if name not in draft.dimensions.steered]
        return replace(draft, independent=tuple(name for name in free if _is_independent(task, small, name))).text()


# Tiles and the grid -----------------------------------------------------------------------------------


def _with_tiles(captured: CapturedLaunch, heading: str, folder: Path) -> TaskDraft:
    """The most general draft that works, with the rule for the grid for which most other tile sizes give the captured
    outputs."""
    told = any(is_told(captured.launch, argument) for argument in captured.launch.arguments)
    if told:
        captured = replace(captured, persistent=_walks(captured, heading, folder))
    forms: list[tuple[Form, ...] | None] = [*grid_forms(captured)[:MOST_FORMS]]
    if captured.persistent:
        forms.insert(0 if told else len(forms), None)
    seen: set[str] = set()
    reasons: list[str] = []
    for scaling in (*SCALINGS, NOTHING):
        if scaling is NOTHING:
            forms = list(dict.fromkeys((*forms, None)))
        best = _best([TaskDraft(captured, heading, form, scaling=scaling) for form in forms], folder, seen, reasons)
        if best is not None:
            return best
    unread = (  # a possible reason: in a task, integer arrays with unknown contents are zeros
        f"; the numbers in '{array.name}' are not known, since it is larger than {CONTENTS_BYTES >> 10} KiB "
        "or the launch went into a CUDA graph: capture it smaller, or outside of the graph"
        for array in captured.launch.arrays()
        if array.spec.dtype.startswith(WHOLE) and array.contents is None and array.name in captured.touched.read
    )
    raise RequestError(reasons[0] + "".join(unread))


def _best(drafts: list[TaskDraft], folder: Path, seen: set[str], reasons: list[str]) -> TaskDraft | None:
    """The best draft that is not in ``seen``. Adds to ``reasons`` why others do not work."""
    best: TaskDraft | None = None
    for draft in drafts:
        if best is not None and draft.form is None:
            break
        if (text := draft.text()) in seen:
            continue
        seen.add(text)
        try:
            tried, asked = _try(draft, folder)
        except NotAsCaptured as reason:
            reasons.append(str(reason))
            continue
        if best is None or _values(tried) > _values(best):
            best = tried
        if _values(best) >= asked > 0:
            break
    return best


def _walks(captured: CapturedLaunch, heading: str, folder: Path) -> bool:
    """Whether a single block does the work of all, if its argument says that there is one block."""
    launch = captured.launch
    arguments = tuple(replace(one, value=1) if is_told(launch, one) else one for one in launch.arguments)
    outputs = []
    try:
        for one in (launch, replace(launch, grid=(1,) * len(launch.grid), arguments=arguments)):
            draft = TaskDraft(replace(captured, launch=one, persistent=True), heading, None)
            with _loaded(draft, folder) as task:
                outputs.append(outputs_of(task, small_shape(task), np.random.default_rng(0), {}))
    except (TilewrightError, Unsupported):
        return False
    return all(np.allclose(argument, other) for argument, other in zip(*outputs, strict=True))


class NotAsCaptured(Exception):
    """With a rule for the grid, even the captured configuration does not give the captured outputs."""


def _values(draft: TaskDraft) -> int:
    return sum(len(values) for values in draft.knobs.values())


def _try(fixed: TaskDraft, folder: Path) -> tuple[TaskDraft, int]:
    """The draft with the tile sizes that give the captured outputs, and how many sizes were tried."""
    fixed = replace(fixed, notes=_notes(fixed))
    sizes = tiles(fixed.launch) if fixed.form is not None or fixed.captured.persistent else {}
    free = {name: size for name, size in sizes.items() if not _covers(fixed, name, size)}
    nearby: dict[str, tuple[Value, ...]] = {name: (size // 2, size, size * 2) for name, size in free.items()}
    wide = replace(fixed, knobs=nearby, independent=fixed.free)
    with _loaded(wide, folder) as task:
        right = _right(task)
    tried = {name: tuple(value for value in values if (name, value) in right) for name, values in nearby.items()}
    knobs = {name: values for name, values in tried.items() if len(values) > 1}
    return replace(fixed, knobs=knobs, sizes=tuple(free)), _values(wide)


def _covers(draft: TaskDraft, name: str, value: int) -> bool:
    """Whether a tile has the size to hold a whole axis. A tile that divides an axis of the grid does not."""
    if any(factor.tile == name for axis in draft.form or () for factor in axis):
        return False
    held: set[int] = set()  # of a list, the extents that all its arrays have
    for argument in draft.launch.arguments:
        shapes = [set(draft.arrays[array.name][1].shape) for array in argument.arrays()]
        held |= set[int].intersection(*shapes) if shapes else set()
    return any(value // 2 < extent <= value for extent in held & {*draft.dims})


def _right(task: Task) -> set[tuple[str, Value]]:
    """The changes of one tile that give the captured outputs on small shapes. Raises NotAsCaptured if not even the
    captured configuration does."""
    shipped = task.space.shipped
    changes = [(name, value) for name, values in task.space.constants.items() for value in values]
    others = [shipped.replace(**{name: value}) for name, value in changes if shipped[name] != value]
    dims = small_shape(task)
    if (size := sum(math.prod(array.shape) for array in task.arrays(dims).values())) > MOST_ELEMENTS:
        raise NotAsCaptured(f"task '{task.name}': even its smallest shape has {size} elements, too many to interpret")
    tools = Equipment(InterpreterEngine(task, default_board(ARCH)))
    case = Case(tuple(dims.items()), why="asked for")
    first = check_on(task, tools, Scope(case=case))
    if first.verdict != "correct":
        raise NotAsCaptured(
            f"task '{task.name}': the captured launch itself does not pass on small shapes: {first.reason}"
        )
    verdict = check_on(task, tools, Scope(others, case=case, seconds=SECONDS))
    seen = {shipped, *(argument.configuration for argument in verdict.results if argument.verdict == "correct")}
    return {(name, value) for name, value in changes if shipped.replace(**{name: value}) in seen}


def _notes(draft: TaskDraft) -> tuple[str, ...]:
    captured, grid, notes = draft.captured, draft.launch.grid, []
    if draft.form is None and captured.persistent:
        notes.append(f"the kernel walks over its tiles, so the grid of {grid} stays as it was")
    elif draft.form is None:
        sizes = ", ".join(tiles(captured.launch)) or "no tile"
        notes.append(f"no rule of extents and tiles ({sizes}) gives the grid of {grid}, so all stay as they were")
    elif not draft.dims:
        notes.append("on other extents the launch did not work, so all stay as they were")
    elif not draft.scaling.index_arrays:
        notes.append("the numbers in its index arrays fit no other extents, so those that they reach stay as they were")
    if any(argument.kind == "list" for argument in captured.launch.arguments):
        notes.append("a launch with lists of arrays goes into no CUDA graph: tune it with --launch eager")
    if captured.updated:
        updated = ", ".join(sorted(captured.updated))
        notes.append(f"checks begin with what {updated} held before; launches that are timed follow on one another")
    return tuple(notes)


@contextmanager
def _loaded(draft: TaskDraft, folder: Path) -> Iterator[Task]:
    """The draft as a task, from a temporary file in the folder."""
    file = folder / f".{draft.launch.kernel}_draft.py"
    file.write_text(draft.text(), encoding="utf-8")
    try:
        yield load_task(str(file))
    finally:
        file.unlink()


# Runs of a draft ---------------------------------------------------------------------------------------


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


def _is_independent(task: Task, dims: dict[str, Value], name: str) -> bool:
    """Whether a dimension can be cut to any size, and a NaN in the inputs stays at its index along it."""
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
    inputs, arrays = {}, task.arrays(dims)
    for name in task.inputs:
        inputs[name] = np.asarray(draw(task.distribution(name, dims), arrays[name].shape, rng), np.float64)
        if name in spoiled:
            axis, index = spoiled[name]
            np.moveaxis(inputs[name], axis, 0)[index] = np.nan
    return list(reference_outputs(task, dims, inputs).values())


def _only_there(array: Array, axis: int, index: int) -> bool:
    slices = np.isnan(np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1))
    return bool(slices[index].any()) and not np.delete(slices, index, 0).any()
