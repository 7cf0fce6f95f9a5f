"""What the benchmarks share, without a GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from tests.bench.kit import bench_module

import tilewright.worker.early


def test_processes_of_a_benchmark_find_bytecode_where_python_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = bench_module("common")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    file = tilewright.worker.early.__file__
    made = Path(importlib.util.cache_from_source(file))
    assert made.is_relative_to(tmp_path) and not made.exists()
    common.compile_package()
    assert made.exists()
