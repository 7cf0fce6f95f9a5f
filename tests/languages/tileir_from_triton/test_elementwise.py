"""Arithmetic, functions, casts and comparisons against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from tests.languages.tileir_from_triton.kit import launch
from triton.language.extra import libdevice

N = 256
RNG = np.random.default_rng(0)


@triton.jit
def binary(x, y, z, OP: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    if OP == "add":
        c = a + b
    elif OP == "sub":
        c = a - b
    elif OP == "mul":
        c = a * b
    elif OP == "div":
        c = a / b
    elif OP == "floordiv":
        c = a // b
    elif OP == "mod":
        c = a % b
    elif OP == "and":
        c = a & b
    elif OP == "or":
        c = a | b
    elif OP == "xor":
        c = a ^ b
    elif OP == "shl":
        c = a << (b & 7)
    elif OP == "shr":
        c = a >> (b & 7)
    elif OP == "max":
        c = tl.maximum(a, b)
    elif OP == "min":
        c = tl.minimum(a, b)
    elif OP == "lt":
        c = a < b
    elif OP == "le":
        c = a <= b
    elif OP == "gt":
        c = a > b
    elif OP == "ge":
        c = a >= b
    elif OP == "eq":
        c = a == b
    elif OP == "ne":
        c = a != b
    elif OP == "where":
        c = tl.where(a > b, a, -b)
    elif OP == "umulhi":
        c = tl.umulhi(a, b)
    elif OP == "fma":
        c = tl.fma(a, b, a)
    elif OP == "clamp":
        c = tl.clamp(a, -tl.abs(b), tl.abs(b))
    elif OP == "div_rn":
        c = tl.div_rn(a, b)
    elif OP == "maxnan":
        c = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    tl.store(z + at, c)


def c_division(a: Any, b: Any) -> Any:
    wide = a.astype(np.int64) if a.dtype.kind == "i" else a
    return (np.sign(wide) * np.sign(b.astype(wide.dtype)) * (abs(wide) // abs(b.astype(wide.dtype)))).astype(a.dtype)


INTEGERS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": c_division,
    "mod": lambda a, b: a - b * c_division(a, b), "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": lambda a, b: a << (b & 7), "shr": lambda a, b: a >> (b & 7), "max": np.maximum, "min": np.minimum,
}  # fmt: skip
COMPARISONS = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
FLOATS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.fmax, "min": np.fmin,
    "where": lambda a, b: np.where(a > b, a, -b), "clamp": lambda a, b: np.clip(a, -abs(b), abs(b)),
    "fma": lambda a, b: a * b + a, "maxnan": np.maximum,
}  # fmt: skip


def integers(dtype: str) -> tuple[Any, Any]:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a, b = (RNG.integers(low, high, N, dtype=dtype, endpoint=True) for _ in range(2))
    a[:16], b[:16] = RNG.integers(0, 3, 16), RNG.integers(1, 3, 16)
    b[b == 0] = 1
    return a, b


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
@pytest.mark.parametrize("name", [*INTEGERS, *COMPARISONS])
def test_integers(name: str, dtype: str) -> None:
    a, b = integers(dtype)
    if name in COMPARISONS:
        expected = COMPARISONS[name](a, b)
        out = np.zeros(N, np.int8)
        expected = expected.astype(np.int8)
    else:
        if np.dtype(dtype).kind == "i":
            a[a == np.iinfo(dtype).min] = 0  # the smallest number divided by -1
        with np.errstate(all="ignore"):
            expected = (a // b if dtype[0] == "u" and name == "floordiv" else
                        a % b if dtype[0] == "u" and name == "mod" else INTEGERS[name](a, b))  # fmt: skip
        out = np.zeros(N, dtype)
    launch(binary, (1,), {"x": a, "y": b, "z": out, "OP": name, "N": N})
    np.testing.assert_array_equal(out, expected)


def floats(dtype: Any, scale: float = 3) -> Any:
    values = (RNG.standard_normal(N) * scale).astype(dtype)
    values[:4] = [0, 1, -1, 2]
    return values


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64], ids=lambda one: one.__name__
)
@pytest.mark.parametrize("name", [*FLOATS, *COMPARISONS])
def test_floats(name: str, dtype: Any) -> None:
    a, b = floats(dtype), floats(dtype)
    b[b == 0] = 1
    wide = np.float64 if dtype is np.float64 else np.float32
    if name in COMPARISONS:
        b[8:16] = a[8:16]
        a[20] = np.nan
        out = np.zeros(N, np.int8)
        launch(binary, (1,), {"x": a, "y": b, "z": out, "OP": name, "N": N})
        np.testing.assert_array_equal(out, COMPARISONS[name](a.astype(wide), b.astype(wide)).astype(np.int8))
        return
    if name in ("max", "min", "maxnan"):
        a[20] = np.nan
    out = np.zeros(N, dtype)
    launch(binary, (1,), {"x": a, "y": b, "z": out, "OP": name, "N": N})
    exact = FLOATS[name](a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(out.astype(np.float64), exact, rtol=2 * float(ml_dtypes.finfo(dtype).eps), atol=1e-6)


def test_high_products() -> None:
    a, b = (RNG.integers(0, 1 << 32, N, np.uint32) for _ in range(2))
    out = np.zeros(N, np.uint32)
    launch(binary, (1,), {"x": a, "y": b, "z": out, "OP": "umulhi", "N": N})
    np.testing.assert_array_equal(out, (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32))


@triton.jit
def unary(x, z, OP: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    if OP == "exp":
        c = tl.exp(a)
    elif OP == "exp2":
        c = tl.exp2(a)
    elif OP == "log":
        c = tl.log(tl.abs(a))
    elif OP == "log2":
        c = tl.log2(tl.abs(a))
    elif OP == "sin":
        c = tl.sin(a)
    elif OP == "cos":
        c = tl.cos(a)
    elif OP == "sqrt":
        c = tl.sqrt(tl.abs(a))
    elif OP == "sqrt_rn":
        c = tl.sqrt_rn(tl.abs(a))
    elif OP == "rsqrt":
        c = tl.rsqrt(tl.abs(a))
    elif OP == "floor":
        c = tl.floor(a)
    elif OP == "ceil":
        c = tl.ceil(a)
    elif OP == "abs":
        c = tl.abs(a)
    elif OP == "neg":
        c = -a
    elif OP == "erf":
        c = tl.erf(a)
    elif OP == "sigmoid":
        c = tl.sigmoid(a)
    elif OP == "tanh":
        c = libdevice.tanh(a)
    elif OP == "nv_rsqrt":
        c = libdevice.rsqrt(tl.abs(a))
    elif OP == "nv_erf":
        c = libdevice.erf(a)
    elif OP == "pow":
        c = libdevice.pow(tl.abs(a), a)
    elif OP == "isnan":
        c = libdevice.isnan(a).to(tl.float32)
    elif OP == "trunc":
        c = libdevice.trunc(a)
    elif OP == "exp10":
        c = libdevice.exp10(a)
    elif OP == "log1p":
        c = libdevice.log1p(tl.abs(a) * 1e-3)
    elif OP == "expm1":
        c = libdevice.expm1(a)
    elif OP == "round":
        c = libdevice.round(a * 2)
    elif OP == "rint":
        c = libdevice.rint(a * 2)
    elif OP == "atan":
        c = libdevice.atan(a)
    elif OP == "asin":
        c = libdevice.asin(a / 16)
    elif OP == "acos":
        c = libdevice.acos(a / 16)
    elif OP == "log10":
        c = libdevice.log10(tl.abs(a))
    elif OP == "copysign":
        c = libdevice.copysign(tl.abs(a) + 1, a)
    tl.store(z + at, c)


def error_function(values: Any) -> Any:
    import math

    return np.vectorize(math.erf)(values)


FUNCTIONS = {
    "exp": np.exp, "exp2": np.exp2, "log": lambda a: np.log(abs(a)), "log2": lambda a: np.log2(abs(a)), "sin": np.sin,
    "cos": np.cos, "sqrt": lambda a: np.sqrt(abs(a)), "sqrt_rn": lambda a: np.sqrt(abs(a)),
    "rsqrt": lambda a: 1 / np.sqrt(abs(a)), "floor": np.floor, "ceil": np.ceil, "abs": abs, "neg": np.negative,
    "erf": error_function, "sigmoid": lambda a: 1 / (1 + np.exp(-a)), "tanh": np.tanh,
    "nv_rsqrt": lambda a: 1 / np.sqrt(abs(a)), "nv_erf": error_function, "pow": lambda a: np.power(abs(a), a),
    "isnan": lambda a: np.isnan(a).astype(float), "trunc": np.trunc, "exp10": lambda a: 10.0**a,
    "log1p": lambda a: np.log1p(abs(a) * 1e-3), "expm1": np.expm1, "rint": lambda a: np.rint(a * 2), "atan": np.arctan,
    "round": lambda a: np.trunc(a * 2 + np.copysign(0.5, a)), "asin": lambda a: np.arcsin(a / 16),
    "acos": lambda a: np.arccos(a / 16), "log10": lambda a: np.log10(abs(a)),
    "copysign": lambda a: np.copysign(abs(a) + 1, a),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    a, out = floats(np.float32), np.zeros(N, np.float32)
    a[:4] = [0.5, 1.25, -0.75, 1e-6]
    if name == "isnan":
        a[7] = np.nan
    launch(unary, (1,), {"x": a, "z": out, "OP": name, "N": N})
    np.testing.assert_allclose(out, FUNCTIONS[name](a.astype(np.float64)), rtol=3e-6, atol=3e-7)


@triton.jit
def cast(x, z, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(z + at, tl.load(x + at).to(z.dtype.element_ty))


TYPES = (
    "int8", "uint8", "int16", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "float64", "float8_e4m3fn",
    "float8_e5m2",
)  # fmt: skip


NO_FLOAT8 = {"float64", *(one for one in TYPES if "int" in one)}
PAIRS = [(a, b) for a in TYPES for b in TYPES if "float8" not in a + b or not {a, b} & NO_FLOAT8]
"""Triton casts 8-bit floats to other floats only."""


@pytest.mark.parametrize(("source", "to"), PAIRS)
def test_casts(source: str, to: str) -> None:
    values = RNG.integers(0, 100, N) * (1 if "u" in source + to else RNG.choice([-1, 1], N))
    a, out = values.astype(source), np.zeros(N, to)
    launch(cast, (1,), {"x": a, "z": out, "N": N})
    np.testing.assert_array_equal(out.astype(np.float64), a.astype(np.float32).astype(to).astype(np.float64))


@triton.jit
def towards_zero(x, z, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(z + at, tl.load(x + at).to(tl.bfloat16, fp_downcast_rounding="rtz").to(tl.float32))


def test_rounding_to_zero() -> None:
    a, out = floats(np.float32), np.zeros(N, np.float32)
    launch(towards_zero, (1,), {"x": a, "z": out, "N": N})
    np.testing.assert_array_equal(out.view(np.uint32), a.view(np.uint32) & 0xFFFF0000)


@triton.jit
def bits(x, z, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(z + at, tl.load(x + at).to(z.dtype.element_ty, bitcast=True))


@pytest.mark.parametrize(("source", "to"), [("float32", "int32"), ("int16", "bfloat16"), ("int64", "float64")])
def test_bitcasts(source: str, to: str) -> None:
    a, out = RNG.integers(0, 1 << 14, N).astype(source), np.zeros(N, to)
    launch(bits, (1,), {"x": a, "z": out, "N": N})
    np.testing.assert_array_equal(out.view(np.uint8), a.view(np.uint8))
