"""Kernels that are written from references are right on the GPU, at their workloads' full size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.specialists.writing.named import OPERATIONS
from tilewright.specialists.writing.writing import source_of, write_task
from tilewright.verify.check import check

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("language", ["cutile", "triton"])
@pytest.mark.parametrize("name", [each.name for each in OPERATIONS])
def test_a_named_operation_is_right_on_the_gpu(name: str, language: str, tmp_path: Path) -> None:
    pytest.importorskip({"cutile": "cuda.tile", "triton": "triton"}[language])
    file = tmp_path / f"{name}.py"
    file.write_text(write_task(source_of(name.replace("_", " ")), language, file.name).text)
    (verdict,) = check(str(file), engine="gpu")
    assert verdict.verdict == "correct", verdict.reason
