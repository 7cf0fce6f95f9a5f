"""The operations of set_aside_operations.txt, which were named before the writers were built, and tried at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.specialists.writing.writing import ReferenceSource, write_task
from tilewright.verify.check import check

SOURCE = """import numpy as np


def mish(x: "[M, N]"):
    softplus = np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)
    return x * np.tanh(softplus)


def log_softmax(x: "[M, N]"):
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def geglu(gate: "[B, S, F]", up: "[B, S, F]"):
    return 0.5 * gate * (1 + np.tanh(0.7978845608 * (gate + 0.044715 * gate**3))) * up


def l2_normalise(x: "[M, N]"):
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-12)


def masked_softmax(x: "[B, S, T]", mask: "bool[B, S, T]"):
    scores = np.where(mask, x / 8, -1e9)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def gemm_bias_silu_residual(a: "[M, K]", b: "[K, N]", bias: "[N]", residual: "[M, N]"):
    z = a @ b + bias
    return z / (1 + np.exp(-z)) + residual
"""
NAMES = ("mish", "log_softmax", "geglu", "l2_normalise", "masked_softmax", "gemm_bias_silu_residual")


@pytest.mark.parametrize("language", ["cutile", "triton"])
@pytest.mark.parametrize("name", NAMES)
def test_a_set_aside_operation_is_right(name: str, language: str, tmp_path: Path) -> None:
    file = tmp_path / "written.py"
    file.write_text(write_task(ReferenceSource(SOURCE, name, "a test"), language, file.name).text)
    workloads = ("large", "odd") if name.startswith("gemm") else ("odd",)
    (verdict,) = check(str(file), engine="interpreter", arch="sm_90", quick=True, workloads=workloads)
    assert verdict.verdict.startswith("correct")
