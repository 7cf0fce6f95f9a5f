"""From a captured launch to a task file: the kernel of somebody's program, ready to be tuned, checked, optimised.

The rules that a task needs and a launch does not tell are tried on small shapes, on the interpreter: how the
grid follows from the tiles, which tile sizes give the captured outputs, along which dimensions the outputs are
independent, how the work grows. What does not hold stays as it was captured, and the file says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import RequestError, TilewrightError
from tilewright.hardware import default_board
from tilewright.loading import load_task
from tilewright.records import Failed, Value
from tilewright.runtime.capturing.described import WHOLE
from tilewright.runtime.capturing.draft import Draft
from tilewright.runtime.capturing.facts import ARCH, Facts, Form, facts, grid_forms, tiles
from tilewright.runtime.capturing.record import Recorded
from tilewright.task import Task
from tilewright.tileir.launching import Launcher
from tilewright.tileir.registry import NeedsData, Unsupported
from tilewright.verification import shapes
from tilewright.verification.cases import Case
from tilewright.verification.checking import check
from tilewright.verification.interpreted import InterpreterEngine

MOST_FORMS = 6
"""Rules for the grid that are tried."""
MOST_ELEMENTS = 1 << 23
"""Of a shape to try something on."""
SECONDS = 60.0
"""For trying one rule with all its tile sizes."""


def task_text(recorded: Recorded, folder: Path, *, heading: str = "") -> str:
    """The text of a task file for one captured launch; ``folder``: where the file will lie (drafts are tried there).

    Raises RequestError where no task can be made of it, with the reason.
    """
    launch = recorded.launch
    if launch.problem:
        raise RequestError(f"{launch.kernel} cannot become a task: {launch.problem}")
    found = facts(launch)
    heading = heading or f"{launch.kernel} as a program launched it."
    draft = _with_tiles(found, heading, folder)
    with _loaded(draft, folder) as task:
        draft = replace(draft, work=_work(task))
    with _loaded(replace(draft, independent=draft.free), folder) as task:
        return replace(draft, independent=_independent(task)).text()


# Tiles and the grid -----------------------------------------------------------------------------------


def _with_tiles(found: Facts, heading: str, folder: Path) -> Draft:
    """The draft with that rule for the grid under which most of the other tile sizes give the captured outputs."""
    forms: list[tuple[Form, ...] | None] = [*grid_forms(found)[:MOST_FORMS], None]
    best: Draft | None = None
    refused = ""
    for form in forms:
        if best is not None and form is None:
            break
        try:
            draft, asked = _try(found, heading, form, folder)
        except NotAsCaptured as reason:
            refused = refused or str(reason)
            continue
        if best is None or _values(draft) > _values(best):
            best = draft
        if _values(best) >= asked > 0:
            break
    if best is None:
        raise RequestError(refused)
    return best


class NotAsCaptured(Exception):
    """Under a rule for the grid, even the captured configuration does not give what it should."""


def _values(draft: Draft) -> int:
    return sum(len(values) for values in draft.knobs.values())


def _try(found: Facts, heading: str, form: tuple[Form, ...] | None, folder: Path) -> tuple[Draft, int]:
    """The draft with those tile sizes that give the captured outputs, and how many sizes were tried."""
    sizes = tiles(found.launch)
    fixed = Draft(found, heading, form, notes=_notes(found, form))
    free = sizes if form is not None or found.persistent else {}
    free = {name: value for name, value in free.items() if not _covers(fixed, name, value)}
    wide = replace(
        fixed, knobs={name: _neighbours(value) for name, value in free.items()}, independent=fixed.free
    )
    with _loaded(wide, folder) as task:
        right = _right(task)
    tried = {
        name: tuple(value for value in values if value == sizes[name] or (name, value) in right)
        for name, values in wide.knobs.items()
    }
    knobs = {name: values for name, values in tried.items() if len(values) > 1}
    return replace(fixed, knobs=knobs), _values(wide)


def _covers(draft: Draft, name: str, value: int) -> bool:
    """Whether a tile has to hold a whole axis, by its size; one that divides an axis of the grid does not."""
    if any(factor.tile == name for axis in draft.form or () for factor in axis):
        return False
    return any(value // 2 < extent <= value for extent in draft.dims)


def _neighbours(value: int) -> tuple[Value, ...]:
    return tuple(size for size in (value // 2, value, value * 2) if size >= 1)


def _right(task: Task) -> set[tuple[str, Value]]:
    """The changes of one tile under which the kernel gives what it was captured with. Raises NotAsCaptured
    where not even the captured configuration does, on small shapes."""
    shipped = task.space.shipped
    changes = [(name, value) for name, values in task.space.constants.items() for value in values]
    configurations = [
        shipped,
        *(shipped.replace(**{name: value}) for name, value in changes if shipped[name] != value),
    ]
    dims = _small(task)
    if (size := sum(math.prod(array.shape) for array in task.arrays(dims).values())) > MOST_ELEMENTS:
        raise NotAsCaptured(
            f"task '{task.name}': even its smallest shape has {size} elements, too many to interpret"
        )
    engine, case = InterpreterEngine(task, default_board(ARCH)), Case(tuple(dims.items()), why="asked for")
    first = check(task, engine, only=case)
    if first.verdict != "correct":
        raise NotAsCaptured(
            f"task '{task.name}': the captured launch itself does not pass on small shapes: {first.reason}"
        )
    verdict = check(task, engine, configurations=configurations[1:], only=case, seconds=SECONDS)
    seen = {shipped, *(one.configuration for one in verdict.results if one.verdict == "correct")}
    return {(name, value) for name, value in changes if shipped.replace(**{name: value}) in seen}


def _small(task: Task) -> dict[str, Value]:
    """A small shape of the captured kind."""
    dims = task.selected(None)[0].dims
    return shapes.reduced(task, dims, shapes.moduli(task, task.space.shipped, dims))


def _notes(found: Facts, form: tuple[Form, ...] | None) -> tuple[str, ...]:
    if form is not None:
        return ()
    if found.persistent:
        return (f"the kernel walks over its tiles, so the grid of {found.launch.grid} stays as it was",)
    sizes = ", ".join(tiles(found.launch)) or "no tile"
    return (
        f"no rule of extents and tiles ({sizes}) gives the grid of {found.launch.grid}, so all stay as they were",
    )


# Work and independence --------------------------------------------------------------------------------


def _work(task: Task) -> tuple[float, dict[str, int]]:
    """FLOP as a factor and powers of the dimensions: counted in a dry run, once with each dimension halved."""
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
    except (NeedsData, Unsupported):
        return None
    return float(counts.scaled(counts.tensor_flop + counts.flop))


def _independent(task: Task) -> tuple[str, ...]:
    """The dimensions along which NaN among the inputs stays where it is, and which may be cut to any size."""
    small = {name: 2 if size == 1 else size for name, size in _small(task).items()}
    return tuple(name for name in small if _is_independent(task, small, name))


def _is_independent(task: Task, dims: dict[str, Value], name: str) -> bool:
    extent = dims[name]
    axes = {
        tensor: spec.shape.index(name) for tensor, spec in task.tensors.items() if spec.shape.count(name) == 1
    }
    often = any(spec.shape.count(name) > 1 for spec in task.tensors.values())
    if often or not isinstance(extent, int) or extent < 2 or not set(task.outputs) <= set(axes):
        return False
    inputs = [tensor for tensor in task.inputs if tensor in axes]
    if not inputs or any(task.inputs[tensor].dtype.startswith(WHOLE) for tensor in inputs):
        return False
    rng = np.random.default_rng(0)
    with suppress(TilewrightError, Unsupported):
        for cut in (1, 3):
            _outputs(task, {**dims, name: cut}, rng, {})
        for index in (0, extent - 1, int(rng.integers(extent))):
            outputs = _outputs(task, dims, rng, {tensor: (axes[tensor], index) for tensor in inputs})
            if not all(
                _only_there(array, axes[out], index) for out, array in zip(task.outputs, outputs, strict=True)
            ):
                return False
        return True
    return False


def _outputs(
    task: Task, dims: dict[str, Any], rng: np.random.Generator, spoiled: dict[str, tuple[int, int]]
) -> list[Any]:
    """The reference's outputs, with NaN at one index of one axis of some inputs."""
    from tilewright.verify import draw, reference_outputs

    inputs = {}
    for name, array in task.arrays(dims).items():
        if name not in task.inputs:
            continue
        inputs[name] = np.asarray(draw(task.inputs[name].distribution, array.shape, rng), np.float64)
        if name in spoiled:
            axis, index = spoiled[name]
            np.moveaxis(inputs[name], axis, 0)[index] = np.nan
    return list(reference_outputs(task, dims, inputs).values())


def _only_there(array: Any, axis: int, index: int) -> bool:
    slices = np.isnan(np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1))
    return bool(slices[index].any()) and not np.delete(slices, index, 0).any()


@contextmanager
def _loaded(draft: Draft, folder: Path) -> Iterator[Task]:
    """The draft as a task, from a file beside the one to be."""
    file = folder / f".{draft.launch.kernel}_draft.py"
    file.write_text(draft.text(), encoding="utf-8")
    try:
        yield load_task(str(file))
    finally:
        file.unlink()
