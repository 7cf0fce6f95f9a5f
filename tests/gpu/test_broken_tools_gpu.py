"""A failing tool is no verdict on a GPU either (issue 13, point 8): the search and the check go on without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.runtime.caller_kernels import scale, torch
from tests.tools.test_broken_tools import FAULTS, OPS, broken, says

from tilewright.languages.cutile.toolchain import find_tileiras
from tilewright.runtime.search.cutile_trials import trials
from tilewright.runtime.search.searching import search
from tilewright.runtime.store import warn_once
from tilewright.tileir.read import reader
from tilewright.verify import sanitizer_tool
from tilewright.verify.check import check


@pytest.fixture(params=FAULTS)
def tileirdisasm(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path, real = broken(tmp_path / "bin" / "tileirdisasm", request.param), find_tileiras()
    monkeypatch.setattr(reader, "find_tileiras", lambda: replace(real, path=path.with_name("tileiras")))
    monkeypatch.setattr(reader, "DISASSEMBLY_SECONDS", 0.05)
    warn_once._warned.clear()
    return path


def test_the_search_of_a_running_program_goes_on(tileirdisasm: Path) -> None:
    x, tiles = torch.randn(1 << 20, device="cuda"), (256, 512, 1024)
    y = torch.empty_like(x)
    made = trials(tiles, lambda tile: (x.numel() // tile,), scale, lambda tile: (x, y, tile, 0), None)
    with pytest.warns(warn_once.TunedStoreWarning, match="goes on without the kernel's Tile IR") as said:
        result = search(made, stream=torch.cuda.current_stream())
    assert says(str(said[0].message), "tileirdisasm", tileirdisasm)
    assert [outcome.status for outcome in result.outcomes] == ["timed"] * 3


def test_a_check_on_the_gpu_goes_on(tileirdisasm: Path, tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text(OPS)
    (verdict,) = check(str(tmp_path / "ops.py"), engine="gpu", quick=True)
    assert verdict.verdict.startswith("correct"), verdict.reason


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_sanitizer_leaves_the_verdict(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(tmp_path / "bin" / "compute-sanitizer", fault)
    monkeypatch.setattr(sanitizer_tool.shutil, "which", lambda *_: None)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(sanitizer_tool, "PATIENCE", 0.01)
    (tmp_path / "ops.py").write_text(OPS)
    (verdict,) = check(str(tmp_path / "ops.py"), engine="gpu")
    assert verdict.verdict.startswith("correct"), verdict.reason
