"""The translation as a whole: places in the source, hints, versions, and what is wrong with the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from tests.languages.tileir_from_triton import kernels
from tests.languages.tileir_from_triton.kit import compiled, executed, launch, lowered, ttir_of
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.errors import ToolFailed
from tilewright.languages.tileir_from_triton import writer
from tilewright.languages.tileir_from_triton.generic import generic_text
from tilewright.languages.tileir_from_triton.translate import newest_version, translate
from tilewright.languages.tileir_from_triton.ttir import Untranslated
from tilewright.machine_code.cubin import read_all
from tilewright.tileir.read.reader import disassemble


@triton.jit
def beyond(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    values = tl.load(x + at)
    tl.store(y + at, helper(values))


@triton.jit
def helper(values):
    return tl.sum(values, 0)


def line_of(kernel: Any, offset: int) -> int:
    return int(kernel.fn.__code__.co_firstlineno) + offset


def test_a_finding_names_the_line_of_the_kernel() -> None:
    arguments = {"x": np.zeros(6, np.float32), "y": np.zeros(8, np.float32), "N": 8}
    (found,) = executed(beyond, (1,), arguments).findings
    assert found.location is not None
    assert (found.location.file, found.location.line) == (__file__, line_of(beyond, 3))


def test_the_line_of_a_reduction_is_the_helper_and_not_triton() -> None:
    text = disassemble(lowered(beyond, {"x": np.zeros(8, np.float32), "y": np.zeros(8, np.float32), "N": 8}).code)
    assert f'"{__file__}":{line_of(helper, 2)}:' in text
    assert "triton/language" not in text


@triton.jit
def asserts(x, N: tl.constexpr):
    values = tl.load(x + tl.arange(0, N))
    tl.device_assert(values > 0, "not positive")


def test_assertions() -> None:
    good, bad = np.ones(8, np.int32), np.array([1] * 7 + [0], np.int32)
    assert not executed(asserts, (1,), {"x": good, "N": 8}, debug=True).findings
    (found,) = executed(asserts, (1,), {"x": bad, "N": 8}, debug=True).findings
    assert "not positive" in found.message


@triton.jit
def through_a_number(x, y, offset, N: tl.constexpr):
    at = tl.arange(0, N)
    other = (y.to(tl.int64, bitcast=True) + offset).to(tl.pointer_type(tl.float32), bitcast=True)
    tl.store(other + at, tl.load(x + at) + 1)
    tl.store(x + at, tl.load(y + at) * 2)


def test_a_pointer_from_a_number_may_point_anywhere() -> None:
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    text = disassemble(lowered(through_a_number, {"x": x, "y": y, "offset": 0, "N": 8}, arrays=(0, 1, 2)).code)
    assert all("token=" in line for line in text.splitlines() if "_ptr_tko" in line)
    launch(through_a_number, (1,), {"x": x, "y": y, "offset": 0, "N": 8}, arrays=(0, 1, 2))
    np.testing.assert_array_equal(x, 2 * (np.arange(8) + 1))


@triton.jit
def says_things(x, n, N: tl.constexpr):
    tl.assume(n > 0)
    at = tl.arange(0, N)
    values = tl.load(x + at)
    tl.debug_barrier()
    tl.store(x + at, values * n)


@triton.jit
def depends(x, n, N: tl.constexpr):
    at = tl.arange(0, N)
    gdc_wait()
    values = tl.load(x + at)
    gdc_launch_dependents()
    tl.store(x + at, values * n)


def test_barriers_and_assumptions() -> None:
    x = np.arange(8, dtype=np.int32)
    launch(says_things, (1,), {"x": x, "n": 3, "N": 8})
    np.testing.assert_array_equal(x, 3 * np.arange(8))


@pytest.mark.skipif(triton.__version__ < "3.9", reason="before, Triton writes them in assembly")
def test_dependent_launches() -> None:
    x = np.arange(8, dtype=np.int32)
    launch(depends, (1,), {"x": x, "n": 3, "N": 8})
    np.testing.assert_array_equal(x, 3 * np.arange(8))
    text = disassemble(lowered(depends, {"x": x, "n": 3, "N": 8}).code)
    assert "gdc_wait" in text and "gdc_launch_dependents" in text


def matmul_arguments() -> dict[str, Any]:
    array = np.zeros((256, 256), np.float16)
    sizes = dict.fromkeys(("m", "n", "k"), 256)
    return {"a": array, "b": array, "c": array, **sizes, "M": 128, "N": 128, "K": 64}


@pytest.mark.parametrize(
    ("hints", "said"),
    [
        ({"occupancy": 2}, "occupancy = 2"), ({"num_ctas": 2}, "num_cta_in_cga = 2"),
        ({"num_stages": 4}, "latency = 4"),
        ({"num_worker_warps": 8}, "num_worker_warps_per_cta = 8"), ({"num_stages": 99}, "latency = 10"),
    ],
)  # fmt: skip
def test_hints(hints: dict[str, int], said: str) -> None:
    code = lowered(kernels.matmul_by_descriptors, matmul_arguments(), hints=hints)
    assert said in disassemble(code.code)


def test_warps_and_absent_hints_change_nothing() -> None:
    plain = lowered(kernels.matmul_by_descriptors, matmul_arguments())
    hints = {"num_warps": 8, "occupancy": None}
    assert lowered(kernels.matmul_by_descriptors, matmul_arguments(), hints=hints) == plain


def test_hints_reach_the_machine_code() -> None:
    plain, hinted = (
        read_all([compiled(lowered(kernels.matmul_by_descriptors, matmul_arguments(), hints=hints), "sm_90").cubin])[0]
        for hints in ({}, {"num_ctas": 2})
    )
    assert (plain.cluster, hinted.cluster) == (1, 2)


def test_versions_of_the_bytecode() -> None:
    assert [newest_version(one) for one in ((13, 3), (13, 4), (13, 5))] == [(13, 3), (13, 4), (13, 4)]
    with pytest.raises(ToolFailed, match="needs tileiras 13.3 or newer, not 13.2; fix: pip install"):
        newest_version((13, 2))
    compiled(lowered(kernels.matmul_by_descriptors, matmul_arguments(), version=(13, 3)), "sm_90")


def test_another_cuda_tile_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer.metadata, "version", lambda name: "2.0.0")
    writer.writer_module.cache_clear()
    with pytest.raises(ToolFailed, match="needs the bytecode writer of cuda-tile 1.7.x, not 2.0.0"):
        writer.writer_module()
    writer.writer_module.cache_clear()


def test_what_is_no_ttir_is_refused_in_one_line() -> None:
    with pytest.raises(ToolFailed, match="Triton cannot read its own TTIR"):
        generic_text("module { nonsense }")


@triton.jit
def old_float(x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + at, tl.load(x + at).to(tl.float8e4b15, bitcast=True).to(tl.float16).to(tl.int8))


def test_a_type_that_tile_ir_lacks_is_named() -> None:
    with pytest.raises(Untranslated, match=r"test_translate.py:\d+: "):
        lowered(old_float, {"x": np.zeros(8, np.int8), "N": 8})


def test_an_operation_in_an_unknown_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release of Triton may name an attribute differently."""
    renamed = generic_text(ttir_of(beyond, {"x": "*fp32", "y": "*fp32"}, {"N": 8})).replace("start = 0", "begin = 0")
    monkeypatch.setattr("tilewright.languages.tileir_from_triton.translate.generic_text", lambda text: renamed)
    with pytest.raises(Untranslated, match=r"tt.make_range in a form that the translator does not know"):
        translate("", "sm_90")
