"""A program that searches with cuda-tile's `exhaustive_search`, unchanged, under the patch: on the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cuda.tile as ct
import pytest

from tilewright.cli import run as cli_run
from tilewright.runtime.patch import patch
from tilewright.runtime.store.winners import Winners

SOURCE = Path(__file__).parents[2] / "src"

PROGRAM = """
import json, sys, time
from types import SimpleNamespace

import cuda.tile as ct
import torch
from cuda.tile.tune import exhaustive_search


@ct.kernel
def scaled(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)


def tune(x, y):
    space = [SimpleNamespace(TILE=tile) for tile in (64, 512, 2048)]
    result = exhaustive_search(
        space,
        torch.cuda.current_stream(),
        lambda c: (ct.cdiv(x.numel(), c.TILE),),
        scaled,
        lambda c: (x, y, c.TILE),
        quiet=True,
    )
    hinted = scaled.replace_hints(occupancy=2)
    best = result.best.config
    ct.launch(torch.cuda.current_stream(), (ct.cdiv(x.numel(), best.TILE),), hinted, (x, y, best.TILE))
    return result


x = torch.rand(1 << 22, device="cuda")
y = torch.full_like(x, -1.0)
kept = y.clone()
started = time.perf_counter()
result = tune(x, y)
torch.cuda.synchronize()
print(json.dumps({
    "seconds": time.perf_counter() - started,
    "patched": hasattr(ct.tune.exhaustive_search, "__wrapped__"),
    "right": bool(torch.equal(y, x * 2)),
    "best": result.best.config.TILE,
    "us": result.best.mean_us,
    "timed": len(result.successes),
    "searched": "tilewright.runtime.search.searching" in sys.modules,
}))
"""


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    given = {"TILEWRIGHT_TUNED": str(tmp_path), "CUDA_TILE_CACHE_DIR": str(tmp_path / "cutile")}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return given


def started(program: Path, *options: str) -> dict[str, Any]:
    """As `tilewright run` starts it."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    before = {**os.environ, "PYTHONPATH": path}
    changes = cli_run.environment(before, widen="--widen" in options)
    shown = subprocess.run(
        [sys.executable, str(program)], env={**before, **changes}, capture_output=True, text=True, timeout=180
    )
    assert shown.returncode == 0, shown.stderr
    assert "tilewright:" not in shown.stderr, shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout.splitlines()[-1])
    return found


def test_two_processes_search_once(tmp_path: Path, caches: dict[str, str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    first, second = started(program), started(program)
    assert (first["patched"], first["right"], first["searched"]) == (True, True, True)
    assert (second["patched"], second["right"], second["searched"]) == (True, True, False)
    assert (first["best"], first["us"]) == (second["best"], second["us"])
    assert first["timed"] >= 1
    (winner,) = Winners(tmp_path / "tuned.db").all()
    assert winner.parts["launched_hints"] == {"occupancy": 2}
    assert winner.launches is not None and "winner" in winner.launches


def test_widened_is_right(tmp_path: Path, caches: dict[str, str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    found = started(program, "--widen")
    assert found["right"]
    (winner,) = Winners(tmp_path / "tuned.db").all()
    assert len(winner.outcomes) > 3


@ct.kernel
def doubled(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)


def test_trials_leave_the_output_as_it_was(caches: dict[str, str]) -> None:
    """A-41, W5: what the caller's arrays hold after the search is what they held before it."""
    import torch

    x = torch.rand(1 << 20, device="cuda")
    y = torch.full_like(x, -1.0)

    assert patch.install()
    try:
        result = ct.tune.exhaustive_search(
            [{"TILE": 256}, {"TILE": 1024}],
            torch.cuda.current_stream(),
            lambda c: (ct.cdiv(x.numel(), c["TILE"]),),
            doubled,
            lambda c: (x, y, c["TILE"]),
            quiet=True,
        )
    finally:
        patch.uninstall()
    assert result.best.mean_us > 0
    assert bool((y == -1.0).all())
