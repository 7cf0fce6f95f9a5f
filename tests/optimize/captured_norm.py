"""A library with a norm of rows, as a program launches it, and the task that a capture makes of it."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.runtime.capture.draft import TaskDraft
from tilewright.runtime.capture.of_cutile import CapturedCuTile
from tilewright.runtime.capture.record import Recorded
from tilewright.runtime.capture.recorder import Recorder
from tilewright.runtime.capture.task_file import task_draft

KERNEL = '''\
"""Polynomial norms of rows, as a library might ship them."""

import cuda.tile as ct
import torch


@ct.kernel
def copied(x, y, BLOCK: ct.Constant[int]):
    """Another kernel of the file, with gathers of its own."""
    columns = ct.arange(BLOCK, dtype=ct.int32)
    ct.scatter(y, (ct.bid(0), columns), ct.gather(x, (ct.bid(0), columns)))


@ct.kernel(occupancy=4)
def cubic_norm(x, y, weights, scales, COLUMNS: ct.Constant[int], eps, BLOCK: ct.Constant[int]):
    """y = w0 · norm(x³) + w1 · norm(x), for one row."""
    row = ct.bid(0)
    w0 = ct.astype(ct.load(weights, 0, shape=()), ct.float32)
    w1 = ct.astype(ct.load(weights, 1, shape=()), ct.float32)
    columns = ct.arange(BLOCK, dtype=ct.int32)
    tile = ct.gather(x, (row, columns), check_bounds=True, padding_value=0.0)
    wide = ct.astype(tile, ct.float32)
    square = wide * wide
    scale3 = ct.rsqrt(ct.sum(square * square * square, axis=0, keepdims=False) / COLUMNS + eps)
    scale1 = ct.rsqrt(ct.sum(square, axis=0, keepdims=False) / COLUMNS + eps)
    ct.scatter(scales, row, scale3)
    again = ct.gather(x, (row, columns), check_bounds=True, padding_value=0.0)
    wide_again = ct.astype(again, ct.float32)
    result = wide_again * (w0 * scale3 * wide_again * wide_again + w1 * scale1)
    ct.scatter(y, (row, columns), ct.astype(result, again.dtype), check_bounds=True)
'''
HOST = """

def normed(x, weights, eps=1e-6):
    rows, columns = x.shape
    y = torch.empty_like(x)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    grid = (rows, 1, 1)
    ct.launch(torch.cuda.current_stream(), grid, cubic_norm, (x, y, weights, scales, columns, float(eps), columns))
    return y
"""


def library(folder: Path, text: str = KERNEL + HOST, host: str = "") -> ModuleType:
    """Writes the library as a package of its own below ``folder``, and imports it. host: a second module."""
    package = folder / f"library_of_{folder.name}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "norms.py").write_text(text)
    (package / "host.py").write_text(host)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(f"{package.name}.{'host' if host else 'norms'}")
    finally:
        sys.path.remove(str(folder))


def recorded(call: Any, *args: Any) -> Recorded:
    """What a capture records of the only launch that a call makes. No kernel runs."""
    recorder, language = Recorder(Path("not-written.json"), describe=True), CapturedCuTile()
    language.start(recorder)
    try:
        call(*args)
    finally:
        language.stop()
    [launch] = recorder.recorded().launches
    return launch


DRAFTS: dict[tuple[object, ...], TaskDraft] = {}
"""Drafting takes seconds, and depends on the kernel (here each name is of one kernel) and its arguments alone."""


def task_file(folder: Path, recorded: Recorded) -> Path:
    """Writes the task file of a capture. Another library with the same kernel gets the same draft, with its own file
    and its own place of the launch."""
    launch = recorded.launch
    shapes = [(each.value, each.array and (each.array.shape, each.array.dtype)) for each in launch.arguments]
    key = launch.kernel, launch.grid, *shapes
    if key not in DRAFTS:
        DRAFTS[key] = task_draft(recorded, folder)
    draft = DRAFTS[key]
    file = folder / "captured.py"
    file.write_text(replace(draft, captured=replace(draft.captured, launch=launch), call=recorded.call).text())
    return file
