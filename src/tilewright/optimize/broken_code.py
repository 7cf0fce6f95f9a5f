"""Refuses a task whose shipped code does not compile. For block pointers, writes the patch that removes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tilewright.compile.compile import refuse_broken_task, refuse_implementations
from tilewright.errors import TaskError
from tilewright.hardware.boards import Board
from tilewright.languages.triton.versions import PATCH_WITHOUT
from tilewright.optimize.versions.version import read_source
from tilewright.playbook.base import NotApplicable
from tilewright.playbook.needed import patch_without_block_pointers
from tilewright.runtime.store.config_folder import write_whole
from tilewright.task.loading import editable_files
from tilewright.task.task import Task


def refuse_broken_code(task: Task, board: Board, workloads: Sequence[str] | None, home: Path) -> None:
    """Raises TaskError if the shipped configuration does not compile for any workload (None: of all), or if the task
    has several implementations.

    home: the folder for a patch, which the error then names.
    """
    refuse_implementations(task)
    try:
        refuse_broken_task(task, board, task.selected(workloads), [task.space.shipped])
    except TaskError as error:
        if PATCH_WITHOUT not in str(error):
            raise
        raise TaskError(str(error).replace(PATCH_WITHOUT, "") + _patched(task, home)) from None


def _patched(task: Task, home: Path) -> str:
    """Writes a patch that removes the block pointers. Returns the end of the error: what to do."""
    try:
        patch = patch_without_block_pointers({path: read_source(path) for path in editable_files(task)})
    except NotApplicable as reason:
        return f"; no patch was written: {reason}"
    if not patch:
        return "; fix: name the kernel's file in edit= of the task, and run the same command"
    file = home / "block_pointers.patch"
    write_whole(file, patch)
    what = "the patch replaces block pointers by tensor descriptors"
    return f"; fix: git apply {_shown(file)}, then the same command ({what})"


def _shown(file: Path) -> str:
    """Returns the path relative to this folder, if the file is below it."""
    relative = os.path.relpath(file)
    return str(file) if relative.startswith(os.pardir) else relative
