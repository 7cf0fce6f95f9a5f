"""What the benchmarks share, without a GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import cuda.tile
import pytest
import typer
from tests.bench.kit import bench_module

import tilewright.worker.early


@pytest.mark.long
def test_processes_of_a_benchmark_find_bytecode_where_python_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = bench_module("common")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    files = (tilewright.worker.early.__file__, cuda.tile.__file__, typer.__file__)
    monkeypatch.setattr(common, "IMPORTED", "import cuda.tile, typer")  # torch takes 10 s
    made = [Path(importlib.util.cache_from_source(str(file))) for file in files]
    assert all(each.is_relative_to(tmp_path) and not each.exists() for each in made)
    common.compile_packages()
    assert all(each.exists() for each in made)
