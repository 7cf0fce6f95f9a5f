"""The operations of set_aside_operations.txt, which were named before the writers were built, and tried at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.specialists.writing.set_aside import NAMES, SOURCE

from tilewright.specialists.writing.writing import ReferenceSource, write_task
from tilewright.verify.check import check


@pytest.mark.parametrize("language", ["cutile", "triton"])
@pytest.mark.parametrize("name", NAMES)
def test_a_set_aside_operation_is_right(name: str, language: str, tmp_path: Path) -> None:
    file = tmp_path / "written.py"
    file.write_text(write_task(ReferenceSource(SOURCE, name, "a test"), language, file.name).text)
    workloads = ("large", "odd") if name.startswith("gemm") else ("odd",)
    (verdict,) = check(str(file), engine="interpreter", arch="sm_90", quick=True, workloads=workloads)
    assert verdict.verdict.startswith("correct")
