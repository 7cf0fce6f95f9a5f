"""Generates a task file from a recorded launch, so that the kernel of a program can be tuned, checked and optimised.

A task needs facts that a launch does not have. These are the grid as a function of the tiles, the tile sizes that give
the captured outputs, the independent dimensions of the outputs, and the growth of the work. Guesses are tried in the
interpreter on small shapes. If no guess works, the captured numbers stay, and the file says so.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from tilewright.errors import RequestError
from tilewright.hardware.architectures import default_board
from tilewright.inspect.work import count
from tilewright.records import Failed, Workload
from tilewright.runtime.capture import facts
from tilewright.runtime.capture.draft import TaskDraft
from tilewright.runtime.capture.facts import ARCH, CapturedLaunch
from tilewright.runtime.capture.float_indices import captured_ranges
from tilewright.runtime.capture.guessing import best_draft, loaded
from tilewright.runtime.capture.independent_dims import independent
from tilewright.runtime.capture.record import Recorded
from tilewright.task.task import Task
from tilewright.tileir.run.launching import Launcher
from tilewright.tileir.run.registry import NeedsData, Unsupported


def task_text(recorded: Recorded, folder: Path, *, heading: str = "") -> str:
    """Returns the text of a task file for a captured launch. folder: the folder of the file; drafts are also written
    there, and loaded. Raises RequestError, with the reason, if the launch cannot become a task."""
    return replace(task_draft(recorded, folder, heading=heading), call=recorded.call).text()


def task_draft(recorded: Recorded, folder: Path, *, heading: str = "") -> TaskDraft:
    """Returns the draft of `task_text`, without the place where the program made the launch."""
    launch = recorded.launch
    if launch.problem:
        raise RequestError(f"{launch.kernel} cannot become a task: {launch.problem}")
    heading = heading or f"{launch.kernel} as a program launched it."
    captured = facts.captured_launch(launch)
    known = captured_ranges(launch, facts.named(launch), recorded.data)
    ranges = {name: known[name] for name in captured.addressing & known.keys()}
    return finished_draft(replace(captured, ranges=ranges), folder, heading)


def finished_draft(captured: CapturedLaunch, folder: Path, heading: str) -> TaskDraft:
    """Returns the most general draft that works, with its work and its independent dimensions."""
    draft = best_draft(captured, heading, folder)
    with loaded(draft, folder) as task:
        draft = replace(draft, work=work_of(task))
    with loaded(replace(draft, independent=draft.free), folder) as task:
        free = [name for name in task.selected(None)[0].dims if name not in draft.dimensions.indexed]
        return replace(draft, independent=independent(task, free))


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
