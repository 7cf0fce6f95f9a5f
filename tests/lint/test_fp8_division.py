"""A-46 as it is true today: of the three divisions only the plain one is correctly rounded."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import cuda.tile as ct
import pytest

from tilewright.languages import language_of
from tilewright.machine_code.cubin import find_nvdisasm
from tilewright.records import Built, Configuration
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec


@ct.kernel
def plain(x, y, z):
    ct.store(z, (0,), ct.load(x, (0,), (1024,)) / ct.load(y, (0,), (1024,)))


@ct.kernel
def full(x, y, z):
    left, right = ct.load(x, (0,), (1024,)), ct.load(y, (0,), (1024,))
    ct.store(z, (0,), ct.truediv(left, right, rounding_mode=ct.RoundingMode.FULL))


@ct.kernel
def approximate(x, y, z):
    left, right = ct.load(x, (0,), (1024,)), ct.load(y, (0,), (1024,))
    ct.store(z, (0,), ct.truediv(left, right, rounding_mode=ct.RoundingMode.APPROX))


@pytest.mark.parametrize(("kernel", "corrected"), [(plain, True), (full, False), (approximate, False)])
def test_only_the_plain_division_is_corrected(kernel: object, corrected: bool, tmp_path: Path) -> None:
    """FCHK asks whether the quotient needs the slow path of a correctly rounded division."""
    arrays = tuple(ArraySpec(name, (1024,), "float32") for name in "xyz")
    language = language_of(kernel)
    lowered = language.lower(Launch(kernel, (1,), arrays), {}, Configuration.of({}), "sm_90")
    built = language.assemble(lowered, 60.0)  # type: ignore[arg-type]
    assert isinstance(built, Built)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(built.cubin)
    text = subprocess.run([find_nvdisasm(), "-c", cubin], capture_output=True, text=True, check=True).stdout
    assert "MUFU.RCP" in text
    assert bool(re.search(r"\bFCHK\b", text)) is corrected
