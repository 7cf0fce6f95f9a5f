"""Searches the most general draft of a captured launch that gives the captured outputs.

Guesses are tried in the interpreter on small shapes, the most general first. If no guess works, the captured numbers
stay, and the file says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tilewright.errors import RequestError, TilewrightError
from tilewright.hardware.architectures import default_board
from tilewright.records import Value
from tilewright.runtime.capture import facts
from tilewright.runtime.capture.described import CONTENTS_BYTES, WHOLE, Autotuned, DescribedLaunch
from tilewright.runtime.capture.draft import TaskDraft
from tilewright.runtime.capture.facts import ARCH, CapturedLaunch, Form
from tilewright.runtime.capture.scaling import NOTHING, Scaling, guesses, only_rows_change
from tilewright.runtime.capture.trying import (
    SIZES,
    NotAsCaptured,
    Size,
    TooLarge,
    drawn_inputs,
    sizes,
    small_shape,
    too_large,
    verdicts,
)
from tilewright.space import knobs
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tileir.run.registry import Unsupported
from tilewright.verify.examining import UNWRITTEN
from tilewright.verify.own_shape import OwnShapes
from tilewright.verify.tolerance import reference_outputs

MOST_PERSISTENT = SIZES[-1][0], 1 << 12
"""The most elements of all arrays, and the most blocks, of a persistent kernel. Its blocks are resident at the same
time: at most 32 on each of the 132 SMs of an H200."""
MOST_FORMS = 6
"""The most forms of the grid that are tried."""
MOST_FORMS_KEEPING = 3
"""The most forms that are tried for each choice of extents that stay as captured."""
FROM_ONE = (1, 2, 4, 8, 16)
"""The sizes that are tried for a tile of one element: programs often start there, and double it."""
Points: TypeAlias = tuple[Mapping[str, Value], ...]
"""Configurations of an autotuner."""


def best_draft(captured: CapturedLaunch, heading: str, folder: Path) -> TaskDraft:
    """Returns the most general draft that works (`_with_tiles`). If the kernel does not write all elements of an
    output, the task sets the output's contents before the launch. A launch that writes all is no such kernel: if its
    draft leaves elements, the draft is wrong."""
    try:
        return _with_tiles(captured, heading, folder)
    except NoDraft as error:
        left = {name for name in captured.filled if f"'{name}' depends on {UNWRITTEN}" in "".join(error.reasons)}
        left -= _written_whole(captured, heading, folder) if left else set()
        if not left or any(_unread(captured)):
            raise
    return best_draft(replace(captured, partly=captured.partly | left), heading, folder)


def _written_whole(captured: CapturedLaunch, heading: str, folder: Path) -> frozenset[str]:
    """Returns the outputs of which the captured launch itself writes every element, as far as addresses show it."""
    with loaded(TaskDraft(captured, heading, None, scaling=NOTHING), folder) as task:
        return OwnShapes(task, default_board(ARCH)).written_whole(task.space.shipped, {})


class NoDraft(RequestError):
    """No draft of a launch works. ``reasons``: why each of them does not."""

    def __init__(self, reasons: list[str], unread: str) -> None:
        larger = [reason for reason in reasons if "too many to interpret" in reason]
        last = next((reason for reason in reversed(reasons) if reason not in larger), reasons[-1])
        also = f"; {larger[-1]}" if larger and last not in larger else ""
        super().__init__(f"{last}{also}{unread}")
        self.reasons = reasons


def _with_tiles(captured: CapturedLaunch, heading: str, folder: Path) -> TaskDraft:
    """Returns the most general draft that works. Raises RequestError if none works.

    The guesses in `SCALINGS` are tried in order, until a draft works. The drafts of one guess differ in the form of the
    grid. If several of them work, the result is the draft that gives the captured outputs for the most tile sizes.
    """
    launch = captured.launch
    gets_block_count = any(facts.may_be_block_count(launch, argument) for argument in launch.arguments)
    if gets_block_count:
        captured = replace(captured, persistent=_is_persistent(captured, heading, folder))
    seen: set[tuple[object, ...]] = set()
    reasons: list[str] = []
    drafts = [
        [TaskDraft(reading, heading, form, scaling=scaling) for form in _forms(reading, scaling, gets_block_count)]
        for reading, scaling in guesses(captured)
    ]
    for most in sizes():
        for of_guess in drafts:
            if most is None and of_guess[0].dims:
                continue  # on the GPU, only the captured shape
            if (best := _best(of_guess, folder, seen, reasons, most)) is not None:
                return best
    raise NoDraft(reasons, _about_unread(captured) + _about_floats(captured))


def _about_unread(captured: CapturedLaunch) -> str:
    names = " and ".join(f"'{name}'" for name in _unread(captured))
    return names and (
        f"; the numbers in {names} are not known, since the array is larger than {CONTENTS_BYTES >> 10} KiB, "
        "or the launch was recorded into a CUDA graph: capture a smaller launch, or capture without the graph"
    )


def _about_floats(captured: CapturedLaunch) -> str:
    return "".join(
        f"; the kernel computes addresses from the numbers in '{name}', which are not known, so others were tried: "
        "capture with --data, so that their range is known"
        for name in sorted(captured.addressing - captured.ranges.keys())
    )


def _forms(captured: CapturedLaunch, scaling: Scaling, gets_block_count: bool) -> list[tuple[Form, ...] | None]:
    """Returns the forms of the grid to try, the most likely first. None keeps the grid as captured."""
    count = MOST_FORMS if not scaling.kept else MOST_FORMS_KEEPING
    forms: list[tuple[Form, ...] | None] = [*facts.grid_forms(captured)[:count]]
    if captured.persistent and gets_block_count:
        return [None, *forms]
    if captured.persistent or not scaling.any or only_rows_change(captured.launch, scaling):
        return [*forms, None]
    return forms


def _unread(captured: CapturedLaunch) -> Iterator[str]:
    """Yields the integer arrays that the kernel reads but whose numbers were not captured. A task sets them to zero,
    which may be the reason why it does not work."""
    for array in captured.launch.arrays():
        if array.spec.dtype.startswith(WHOLE) and array.contents is None and array.name in captured.touched.read:
            yield array.name


def _best(
    drafts: list[TaskDraft], folder: Path, seen: set[tuple[object, ...]], reasons: list[str], most: Size
) -> TaskDraft | None:
    """Returns the best of the drafts that work; None if none works. Drafts whose text is in ``seen`` are left out.

    seen: gets the text of each tried draft, with `TaskDraft.is_sure`; and with ``most``, because a draft that is too
        large is tried again with a larger size.
    reasons: gets the reason of each draft that does not work.
    most: the most elements and blocks (`trying.Size`); larger drafts are not tried.
    """
    best: TaskDraft | None = None
    for draft in drafts:
        if best is not None and draft.form is None:
            break
        key = draft.text(), draft.is_sure
        if {key, (*key, most)} & seen:
            continue
        seen.add((*key, most))
        try:
            tried, values_tried = _try(draft, folder, most)
        except NotAsCaptured as reason:
            seen |= set() if isinstance(reason, TooLarge) else {key}
            reasons.append(str(reason))
            continue
        if best is None or _value_count(tried) > _value_count(best):
            best = tried
        if _value_count(best) >= values_tried > 0:
            break
    return best


def _is_persistent(captured: CapturedLaunch, heading: str, folder: Path) -> bool:
    """Returns whether one block does the work of all blocks if the arguments say that there is only one block. False if
    even the small shape has more blocks than a persistent kernel: an argument may only be equal to their number."""
    launch, outputs = captured.launch, []
    counts = [facts.may_be_block_count(launch, argument) for argument in launch.arguments]
    pairs = zip(launch.arguments, counts, strict=True)
    arguments = tuple(replace(argument, value=1) if is_count else argument for argument, is_count in pairs)
    try:
        for variant in (launch, replace(launch, grid=(1,) * len(launch.grid), arguments=arguments)):
            draft = TaskDraft(replace(captured, launch=variant, persistent=True), heading, None)
            with loaded(draft, folder) as task:
                dims = small_shape(task)
                if too_large(task, dims, MOST_PERSISTENT):
                    return False
                drawn = drawn_inputs(task, dims, np.random.default_rng(0))
                outputs.append(list(reference_outputs(task, dims, drawn).values()))
    except (TilewrightError, Unsupported):
        return False
    return all(np.allclose(array, other) for array, other in zip(*outputs, strict=True))


def _value_count(draft: TaskDraft) -> int:
    return len(draft.points) + sum(len(values) for values in draft.knobs.values())


def _try(fixed: TaskDraft, folder: Path, most: Size) -> tuple[TaskDraft, int]:
    """Returns the draft with the tile sizes that give the captured outputs, and the number of tried tile sizes. If the
    program has an autotuner, its configurations are tried instead."""
    fixed = replace(fixed, notes=_notes(fixed))
    has_sizes = fixed.form is not None or fixed.captured.persistent
    if (autotuned := fixed.launch.autotuned) is not None:
        captured = fixed.launch.constants
        every = autotuned.configurations
        same = (each for each in every if all(captured.get(name, value) == value for name, value in each.items()))
        return _with_points(fixed, every if has_sizes else tuple(same), folder, most)
    tiles = fixed.captured.tiles if has_sizes else {}
    free = {name: size for name, size in tiles.items() if not _covers(fixed, name, size)}
    nearby: dict[str, tuple[Value, ...]] = {
        name: (size // 2, size, size * 2) if size > 1 else FROM_ONE for name, size in free.items()
    }
    wide = replace(fixed, knobs=nearby, independent=fixed.free)
    with loaded(wide, folder) as task:
        shipped = task.space.shipped
        changes = {(name, value): shipped.replace(**{name: value}) for name in nearby for value in nearby[name]}
        found = verdicts(task, changes.values(), fixed.is_sure, most)
    correct = {change for change, config in changes.items() if found.get(config) == "correct"}
    tried = {name: tuple(each for each in values if (name, each) in correct) for name, values in nearby.items()}
    several = {name: values for name, values in tried.items() if len(values) > 1}
    return replace(fixed, knobs=several, sizes=tuple(free)), _value_count(wide)


def _with_points(fixed: TaskDraft, points: Points, folder: Path, most: Size) -> tuple[TaskDraft, int]:
    """Returns the draft with the configurations of the program's autotuner, and their number. Leaves out
    configurations that cannot be written as hints, or that do not give the captured outputs."""
    given = len(points)
    points = tuple(point for point in points if _has_hints(fixed.launch, point))
    values = _values(fixed.launch, points)
    wide = replace(fixed, knobs=values, points=points, sizes=tuple(values), independent=fixed.free)
    with loaded(wide, folder) as task:
        shipped = task.space.shipped
        configs = [shipped.replace(**{name: point[name] for name in values if name in point}) for point in points]
        found = verdicts(task, configs, fixed.is_sure, most)
    pairs = zip(points, configs, strict=True)
    kept = tuple(point for point, config in pairs if found.get(config) != "incorrect")  # unchecked ones stay, too
    draft = replace(wide, knobs=_values(fixed.launch, kept), points=kept, independent=())
    if left := given - len(kept):
        note = f"{left} of the {given} configurations of its autotuner are left out: they compute something else here"
        draft = replace(draft, notes=(*draft.notes, note))
    return draft, _value_count(wide)


def _values(launch: DescribedLaunch, points: Points) -> dict[str, tuple[Value, ...]]:
    """Returns the constants that the configurations set, each with its values, the captured one first."""
    captured, names = launch.constants, dict.fromkeys(name for point in points for name in point)
    return {
        name: tuple(dict.fromkeys((captured[name], *(point[name] for point in points if name in point))))
        for name in names
        if name in captured
    }


def _has_hints(launch: DescribedLaunch, point: Mapping[str, Value]) -> bool:
    """Returns whether every option that a configuration of an autotuner sets can be written as a hint."""
    options = {name: value for name, value in point.items() if name not in launch.constants}
    return all(name in knobs.hints() and not knobs.hint_problem(name, value) for name, value in options.items())


def _covers(draft: TaskDraft, name: str, value: int) -> bool:
    """Returns whether a tile of size ``value`` covers a whole axis: ``value`` equals an extent, or is less than twice
    an extent. A tile that divides an axis of the grid never covers a whole axis."""
    if draft.captured.tiled_extents(name):
        return bool(draft.captured.followed(name, value))
    if any(factor.tile == name for axis in draft.form or () for factor in axis):
        return False
    extents: set[int] = set()  # a list has the extents that all its arrays share
    for argument in draft.launch.arguments:
        shapes = [set(draft.arrays[array.name][1].shape) for array in argument.arrays()]
        extents |= set[int].intersection(*shapes) if shapes else set()
    return any(value // 2 < extent <= value for extent in extents & {*draft.dims})


def _notes(draft: TaskDraft) -> tuple[str, ...]:
    """Returns sentences for the task file: which numbers stay as captured and why, and how to tune."""
    captured, grid, notes = draft.captured, draft.launch.grid, []
    if draft.form is None and captured.persistent:
        notes.append(f"each block of the kernel processes many tiles, so the grid of {grid} stays as captured")
    elif draft.form is None:
        stays = "it stays" if draft.dims else "all stay"
        sizes = ", ".join(captured.tiles) or "no tile: the name of one begins with TILE or BLOCK"
        notes.append(f"no rule of extents and tiles ({sizes}) gives the grid of {grid}, so {stays} as captured")
    elif not draft.dims:
        notes.append("the launch did not work with other extents, so all stay as captured")
    elif not draft.scaling.index_arrays and draft.scaling.numbers:
        notes.append("the numbers in its index arrays fit no other extents, so the indexed extents stay as captured")
    for factor in (factor for axis in draft.form or () for factor in axis if factor.unexplained):
        notes.append(f"no rule gives the {factor.extent} blocks along one axis of the grid of {grid}, so they stay")
    if draft.dims and draft.scaling.kept:
        kept = ", ".join(map(str, sorted(map(int, draft.scaling.kept))))
        notes.append(f"the launch did not work with other extents than {kept}, so these stay as captured")
    if captured.ranges:
        names = ", ".join(sorted(captured.ranges))
        notes.append(f"the kernel computes addresses from numbers in {names}, so checks draw from the captured range")
    if not draft.scaling.numbers:
        notes.append("the numbers in its integer arrays are valid only together, so each check uses the captured ones")
    if any(argument.kind == "list" for argument in captured.launch.arguments):
        notes.append("a launch with lists of arrays cannot be captured into a CUDA graph: tune it with --launch eager")
    if (autotuned := draft.launch.autotuned) is not None:
        notes += _of_autotuner(autotuned)
    if captured.updated:
        updated = ", ".join(sorted(captured.updated))
        notes.append(f"each check resets {updated} to its old values; timed launches run without this reset")
    return tuple(notes)


def _of_autotuner(autotuned: Autotuned) -> Iterator[str]:
    """Yields sentences about the settings of the program's autotuner, except its configurations."""
    if autotuned.keys:
        yield f"the program's autotuner searches again for other values of {', '.join(autotuned.keys)}"
    if autotuned.restored or autotuned.zeroed:
        restores = [f"restores {name}" for name in autotuned.restored]
        yield f"before a trial it {', '.join((*restores, *(f'sets {name} to 0' for name in autotuned.zeroed)))}"


@contextmanager
def loaded(draft: TaskDraft, folder: Path) -> Iterator[Task]:
    with loaded_text(draft.text(), draft.launch.kernel, folder) as task:
        yield task


@contextmanager
def loaded_text(text: str, kernel: str, folder: Path) -> Iterator[Task]:
    """Loads the text of a task file, from a file in ``folder`` that is removed afterwards."""
    file = folder / f".{kernel}_draft.py"
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write into {folder}: {error.strerror}; choose another folder") from error
    try:
        yield load_task(str(file))
    finally:
        file.unlink()
