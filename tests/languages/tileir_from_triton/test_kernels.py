"""Our own kernels: right on the interpreter against float64, and compiled for four architectures."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.languages.tileir_from_triton import kernels
from tests.languages.tileir_from_triton.kit import ARCHITECTURES, compiled, launch, lowered

BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(1)


def normal(*shape: int, dtype: Any = BF16) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def softmax_of(x: Any) -> Any:
    values = np.exp(x - x.max(-1, keepdims=True))
    return values / values.sum(-1, keepdims=True)


class Case:
    """A kernel's grid and arguments, and its outputs with what they should be. ``ulp``: allowed error, of the type."""

    def __init__(self, kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any], expected: dict[str, Any]) -> None:
        self.kernel, self.grid, self.arguments, self.expected = kernel, grid, arguments, expected


def softmax() -> Case:
    x = normal(8, 200)
    arguments = {"x": x, "y": np.zeros_like(x), "stride": 200, "n": 200, "BLOCK": 256}
    return Case(kernels.softmax, (8,), arguments, {"y": softmax_of(x.astype(float))})


def _product(kernel: Any, **strides: int) -> Case:
    a, b = normal(100, 80), normal(80, 120)
    arguments = {"a": a, "b": b, "c": np.zeros((100, 120), BF16), "m": 100, "n": 120, "k": 80, **strides}
    return Case(kernel, (4, 2), {**arguments, "M": 32, "N": 64, "K": 32}, {"c": a.astype(float) @ b.astype(float)})


def matmul() -> Case:
    return _product(kernels.matmul, stride_a=80, stride_b=120, stride_c=120)


def matmul_by_descriptors() -> Case:
    return _product(kernels.matmul_by_descriptors)


def layer_norm() -> Case:
    x, w, b = normal(6, 100), normal(100, dtype=np.float32), normal(100, dtype=np.float32)
    wide = x.astype(float)
    mean, rstd = wide.mean(1), 1 / np.sqrt(wide.var(1) + 1e-5)
    arguments = {"x": x, "weight": w, "bias": b, "y": np.zeros_like(x), "mean": np.zeros(6, np.float32),
                 "rstd": np.zeros(6, np.float32), "n": 100, "eps": 1e-5, "BLOCK": 128}  # fmt: skip
    expected = {"y": (wide - mean[:, None]) * rstd[:, None] * w + b, "mean": mean, "rstd": rstd}
    return Case(kernels.layer_norm, (6,), arguments, expected)


def rms_norm() -> Case:
    x, w = normal(5, 300), normal(300)
    wide = x.astype(float)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * w.astype(float)
    arguments = {"x": x, "weight": w, "y": np.zeros_like(x), "n": 300, "eps": 1e-6, "BLOCK": 128}
    return Case(kernels.rms_norm, (5,), arguments, {"y": expected})


def rope() -> Case:
    x, angles = normal(7, 3 * 64, dtype=np.float32), normal(7, 32, dtype=np.float32)
    cosines, sines = np.cos(angles), np.sin(angles)
    parts, c, s = x.astype(float).reshape(7, 3, 2, 32), cosines[:, None], sines[:, None]
    turned = np.stack([parts[:, :, 0] * c - parts[:, :, 1] * s, parts[:, :, 1] * c + parts[:, :, 0] * s], 2)
    arguments = {"x": x, "cosines": cosines, "sines": sines, "heads": 3, "stride": 192, "HALF": 32}
    return Case(kernels.rope, (7,), arguments, {"x": turned.reshape(7, 192)})


def attention(causal: bool = True) -> Case:
    q, k, v = (normal(2, 70, 32) for _ in range(3))
    wide = [one.astype(float) for one in (q, k, v)]
    scores = wide[0] @ wide[1].transpose(0, 2, 1) / np.sqrt(32)
    if causal:
        scores = np.where(np.tri(70, dtype=bool), scores, -np.inf)
    arguments = {"q": q, "k": k, "v": v, "o": np.zeros_like(q), "length": 70, "scale": 32**-0.5, "CAUSAL": causal,
                 "M": 32, "N": 16, "D": 32}  # fmt: skip
    return Case(kernels.attention, (3, 2), arguments, {"o": softmax_of(scores) @ wide[2]})


def cross_entropy() -> Case:
    x, target = normal(6, 500, dtype=np.float32), RNG.integers(0, 500, 6)
    target[2] = -100
    wide, seen = x.astype(float), target != -100
    probabilities = softmax_of(wide)
    loss = np.where(seen, -np.log(probabilities[np.arange(6), target]), 0)
    gradient = probabilities - np.eye(500)[target]
    arguments = {"x": x, "target": target, "loss": np.zeros(6, np.float32), "n": 500, "ignored": -100, "BLOCK": 128}
    return Case(kernels.cross_entropy, (6,), arguments, {"x": gradient * seen[:, None], "loss": loss})


OTHERS = sorted({*ARCHITECTURES} - {"sm_90", "sm_100"})
CASES = (softmax, matmul, matmul_by_descriptors, layer_norm, rms_norm, rope, attention, cross_entropy)


@pytest.mark.parametrize("make", CASES, ids=lambda one: one.__name__)
def test_right_against_float64(make: Any) -> None:
    case = make()
    launch(case.kernel, case.grid, case.arguments)
    for name, expected in case.expected.items():
        out = case.arguments[name]
        bound = 2 * float(ml_dtypes.finfo(out.dtype).eps) if out.dtype == BF16 else 1e-5
        np.testing.assert_allclose(out.astype(float), expected, rtol=bound, atol=bound * abs(expected).max())


def test_attention_that_sees_all() -> None:
    case = attention(causal=False)
    launch(case.kernel, case.grid, case.arguments)
    np.testing.assert_allclose(case.arguments["o"].astype(float), case.expected["o"], atol=0.02)


@pytest.mark.parametrize(
    ("make", "arch"),
    [
        *((make, arch) for make in CASES for arch in ("sm_90", "sm_100")),
        *((matmul, arch) for arch in OTHERS),
        *(pytest.param(make, arch, marks=pytest.mark.long) for make in CASES if make is not matmul for arch in OTHERS),
    ],
)
def test_compiles(make: Any, arch: str) -> None:
    case = make()
    compiled(lowered(case.kernel, case.arguments, arch=arch), arch)
