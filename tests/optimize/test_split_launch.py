"""A captured reduction that is split over blocks: the program makes the larger grid and the memory for the parts."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from tests.optimize.captured_norm import library, recorded, task_file
from tests.optimize.kit import H200, candidates

from tilewright.optimize.attempting import Builder
from tilewright.optimize.program_launch import in_program
from tilewright.optimize.versions.workspace import Workspace
from tilewright.playbook.analyses.edited_files import edited_files
from tilewright.playbook.base import Site
from tilewright.playbook.entries.split_reduction import ENTRY
from tilewright.task.loading import editable_files, load_task, where_is

torch = pytest.importorskip("torch")
LIBRARY = """\
import cuda.tile as ct
import torch


@ct.kernel
def long_sums(x, total, TILE: ct.Constant[int]):
    row = ct.bid(0)
    sums = ct.zeros((1, TILE), ct.float32)
    for step in range(ct.cdiv(x.shape[1], TILE)):
        sums = sums + ct.load(x, (row, step), (1, TILE), padding_mode=ct.PaddingMode.ZERO)
    ct.store(total, (row,), ct.sum(sums, axis=1))


def row_sums(x):
    rows = x.shape[0]
    total = torch.empty(rows, dtype=torch.float32, device=x.device)
    grid = (rows, 1, 1)
    ct.launch(torch.cuda.current_stream(), grid, long_sums, (x, total, 1024))
    return total
"""


@pytest.mark.long
def test_the_program_launches_more_blocks_with_their_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    module = library(tmp_path, LIBRARY)
    task = load_task(str(task_file(tmp_path, recorded(module.row_sums, torch.zeros(24, 70000)))))
    texts = {path: path.read_text() for path in editable_files(task)}
    [files] = [files for files in edited_files(texts) if len(files.paths) == 2]
    site = Site.at(files.source, files.source.functions["long_sums"], "", (8,))
    changed = {**texts, **files.parted(ENTRY.change(files.source, site, 8))}
    builder = Builder(
        candidates("torch"), task, where_is(task), H200, task.selected(None), tmp_path / "versions", seconds=60
    )
    with Workspace.open(task, "run", tmp_path / "home", datetime.date(2026, 11, 28)) as workspace:
        workspace.keep(workspace.write_and_commit(0, changed, "split"))
        [line] = in_program(task, workspace, builder.build_one("kept", changed), 1)
        text = workspace.texts()[Path(str(module.__file__))]
    assert "row_sums makes exactly the kept launch" in line
    launch = " ".join(text[text.rindex("ct.launch") :].split())
    assert "(grid[0], 8), long_sums, ( x, total, 1024, torch.zeros((grid[0], 8, 1), dtype=torch.float32" in launch
    assert launch.endswith("torch.zeros((grid[0],), dtype=torch.int32, device=x.device), 8, ), ) return total")
