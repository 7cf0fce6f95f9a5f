"""A captured kernel whose outputs get blocks of their own: the program launches twice as many blocks."""

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
from tilewright.playbook.entries.unfuse import APART, ENTRY
from tilewright.task.loading import editable_files, load_task, where_is

torch = pytest.importorskip("torch")
LIBRARY = """\
import cuda.tile as ct
import torch


@ct.kernel
def two_halves(x, y, z, TILE: ct.Constant[int]):
    row, step = ct.bid(0), ct.bid(1)
    values = ct.load(x, (row, step), (1, TILE), padding_mode=ct.PaddingMode.ZERO)
    powers = ct.exp(values)
    ct.store(y, (row, step), powers)
    other = ct.maximum(values, 0.0)
    ct.store(z, (row, step), other / 2)


def halves(x):
    rows, columns = x.shape
    y, z = torch.empty_like(x), torch.empty_like(x)
    grid = (rows, -(-columns // 256), 1)
    ct.launch(torch.cuda.current_stream(), grid, two_halves, (x, y, z, 256))
    return y, z
"""


@pytest.mark.long
def test_the_program_launches_both_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    module = library(tmp_path, LIBRARY)
    task = load_task(str(task_file(tmp_path, recorded(module.halves, torch.zeros(24, 1000)))))
    texts = {path: path.read_text() for path in editable_files(task)}
    [files] = [files for files in edited_files(texts) if len(files.paths) == 2]
    value = f"{APART}y"
    site = Site.at(files.source, files.source.functions["two_halves"], "", (value,))
    changed = {**texts, **files.parted(ENTRY.change(files.source, site, value))}
    builder = Builder(candidates(), task, where_is(task), H200, task.selected(None), tmp_path / "versions", seconds=60)
    with Workspace.open(task, "run", tmp_path / "home", datetime.date(2026, 11, 29)) as workspace:
        workspace.keep(workspace.write_and_commit(0, changed, "unfused"))
        [line] = in_program(task, workspace, builder.build_one("kept", changed), 1)
        text = workspace.texts()[Path(str(module.__file__))]
    assert "halves makes exactly the kept launch" in line
    assert "if ct.bid(2) == 0:" in text
    assert "(grid[0], grid[1], 2), two_halves, (x, y, z, 256)" in " ".join(text[text.rindex("ct.launch") :].split())
