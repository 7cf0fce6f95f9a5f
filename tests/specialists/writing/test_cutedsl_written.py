"""Kernels that are written in CuTe DSL: they compile as they should. Only a GPU can check their results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware.architectures import default_board
from tilewright.records import MachineCode
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.writing.attempting import UncheckedTask, first_correct
from tilewright.specialists.writing.expression import OutsideForms
from tilewright.specialists.writing.writing import ReferenceSource, WrittenTask, source_of, write_task
from tilewright.task.loading import load_task

INSTALLED = "nvidia-cutlass-dsl is not installed: pip install 'tilewright[cutedsl]'"
GATED = """x: '[M, N]', b: '[N]', r: '[M, 1]', keep: 'bool[M, N]'):
    h = np.maximum(x * b + r, 0.0) / np.sqrt(2.0)
    return np.where(~keep & (h > 1.0), np.tanh(h), np.log1p(h) / x.shape[1])"""
SILU = """x: '[M, K]', w: '[N, K]', residual: '[M, N]', scale: '[M, 1]'):
    h = (x @ w.T) * scale + residual
    return h / (1 + np.exp(-h))"""
TRANSPOSED = """x: 'float16[K, M]', w: 'float16[K, N]'):
    return np.tanh(x.T @ w)"""


def written(body: str) -> WrittenTask:
    return write_task(ReferenceSource(f"import numpy as np\n\ndef f({body}\n", "f", "a test"), "cutedsl", "f.py")


@pytest.mark.parametrize(
    ("body", "copies"),
    [
        ("x: '[M, N]', y: '[M, N]'):\n    return x / (1 + np.exp(-x)) * y", {"LDG.128": 2, "STG.128": 1}),
        (GATED, {"LDG.128": 2, "LDG.16": 1, "LDG.64": 1, "STG.128": 1}),
        ("x: 'float32[B, S, D]', s: '[D]', t: '[B, 1, D]'):\n    return np.where(x > 0, 1.0, 0.0) * s + t", None),
        (SILU, {"LDG.16": 256, "STSM.128": 16}),
        (TRANSPOSED, {"STSM.128": 16}),
    ],
)
def test_a_written_kernel_compiles_for_every_workload(tmp_path: Path, body: str, copies: dict[str, int] | None) -> None:
    """Element-wise kernels move vectors of 16 bytes, products are on the tensor cores with TMA."""
    pytest.importorskip("cutlass", reason=INSTALLED)
    task, file = written(body), tmp_path / "f.py"
    file.write_text(task.text)
    loaded, board = load_task(str(file)), default_board("sm_90")
    units = [Unit(workload, loaded.space.shipped, board) for workload in loaded.selected(None)]
    codes = [each.code for each in compile_all(loaded, units)]
    assert len(codes) == 2 and all(isinstance(each, MachineCode) for each in codes), codes
    (first, *_) = codes
    assert isinstance(first, MachineCode) and first.stack_bytes == 0
    assert first.copies.items() >= (copies or {}).items(), first.copies
    is_product = task.form.name == "product of matrices"
    assert first.tensor_path == ("HGMMA" if is_product else "none")
    assert any("UTMALDG" in kind for kind in first.copies) == is_product


def test_what_is_not_written_in_cute_dsl_is_said() -> None:
    cases = {
        "x: '[M, N]'):\n    return x / x.sum(axis=1, keepdims=True)": "row reductions, which is not written",
        "x: 'float32[M, K]', w: 'float32[K, N]'):\n    return x @ w": "one output is written, of the operands'",
        "x: '[M, K]', w: '[K, N]'):\n    return (x @ w) / w.shape[1]": "the size of N in the epilogue",
    }
    for body, reason in cases.items():
        with pytest.raises(
            OutsideForms, match="'f' is outside the forms that are written, and needs a proposer"
        ) as error:
            written(body)
        assert reason in str(error.value) and "\n" not in str(error.value)


def test_without_a_gpu_a_written_kernel_is_returned_as_unverified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cutlass", reason=INSTALLED)
    found = first_correct(source_of("silu mul"), "cutedsl", tmp_path / "f.py", engine="interpreter")
    assert isinstance(found, UncheckedTask) and (tmp_path / "f.py").read_text() == found.task.text
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    answer = specialist_of("cute-dsl").answer(
        Delegation("cute-dsl", "Write a CuTe DSL kernel for SiLU-mul", "one call", ("latency in µs",))
    )
    assert answer.outcome == "analysed" and "@cute.kernel" in (answer.patch or "")
    assert "it is unverified (large: CuTe DSL kernels run on a GPU only (they have no Tile IR)" in answer.summary
