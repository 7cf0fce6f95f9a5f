"""A program with kernels under `triton.autotune`, unchanged, under `tilewright run`: on the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.cli import run as cli_run
from tilewright.runtime.store.winners import Winners

pytest.importorskip("triton")
SOURCE = Path(__file__).parents[2] / "src"

PROGRAM = """
import json, sys, time

import torch
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner
from triton.tools.tensor_descriptor import TensorDescriptor

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 1024, 4096) for warps in (1, 4)]


@triton.autotune(configs=CONFIGS, key=["n"], reset_to_zero=["total"], restore_value=["x"])
@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def accumulated(x, total, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at) if EVEN else tl.load(x + at, mask=at < n, other=0.0)
    tl.atomic_add(total, tl.sum(values, 0))
    tl.store(x + at, values * 2, mask=at < n)


def set_blocks(given):
    for name in ("source", "target"):
        given[name].block_shape = [given["BM"], 64]


@triton.autotune(configs=[triton.Config({"BM": m}, pre_hook=set_blocks) for m in (16, 128)], key=[])
@triton.jit
def moved(source, target, BM: tl.constexpr):
    place = [tl.program_id(0) * BM, tl.program_id(1) * 64]
    target.store(place, source.load(place) * 2)


x = torch.rand(1 << 22, device="cuda")
kept, total = x.clone(), torch.full((1,), 5.0, device="cuda")
y, z = torch.rand(4096, 512, device="cuda"), torch.zeros(4096, 512, device="cuda")
torch.cuda.synchronize()
started = time.perf_counter()
accumulated[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, total, x.numel())
given = [TensorDescriptor.from_tensor(each, [1, 64]) for each in (y, z)]
moved[lambda meta: (triton.cdiv(4096, meta["BM"]), 8)](*given)
torch.cuda.synchronize()
print(json.dumps({
    "seconds": time.perf_counter() - started,
    "patched": hasattr(Autotuner._bench, "__wrapped__"),
    "right": bool(torch.equal(x, kept * 2)) and bool(torch.equal(z, y * 2)),
    "total": abs(float(total) - float(kept.double().sum())) < 1e-3 * float(total),
    "picks": [str(accumulated.best_config), str(moved.best_config)],
    "timed": sum(ms[0] < float("inf") for ms in accumulated.configs_timings.values()),
    "searched": "tilewright.runtime.search.searching" in sys.modules,
}))
"""


def started(program: Path) -> dict[str, Any]:
    """As `tilewright run` starts it."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    before = {**os.environ, "PYTHONPATH": path}
    shown = subprocess.run(
        [sys.executable, str(program)], env={**before, **cli_run.environment(before)}, capture_output=True, text=True,
        timeout=180,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    lines = [line for line in shown.stderr.splitlines() if "tilewright:" in line]
    assert all("accumulated" in line and "not deterministic" in line for line in lines), shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout.splitlines()[-1])
    return found


def test_two_processes_search_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    first, second = started(program), started(program)
    for found, searched in ((first, True), (second, False)):
        assert (found["patched"], found["right"], found["total"], found["searched"]) == (True, True, True, searched)
    assert first["picks"] == second["picks"] and first["timed"] == second["timed"] >= 2
    assert {winner.kernel for winner in Winners(tmp_path / "tuned.db").all()} == {"accumulated", "moved"}
