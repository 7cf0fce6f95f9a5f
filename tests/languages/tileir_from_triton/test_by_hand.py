"""Operations that Triton's front end writes seldom: TTIR by hand, with the functions of libdevice, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import triton
from tests.languages.tileir_from_triton import kit

from tilewright.languages.tileir_from_triton.composed import COMPOSED
from tilewright.languages.tileir_from_triton.functions import LIBDEVICE
from tilewright.languages.tileir_from_triton.translate import translate

N = 64
NEW = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)
RNG = np.random.default_rng(6)
NAMES = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}
POINTERS = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}


def applied(line: str, operands: list[Any], to: str) -> Any:
    """Runs ``%r = line``, in which ``%0``, ``%1`` … are tiles of the operands, and returns the tile."""
    arrays = [*operands, np.zeros(N, to)]
    kinds = [POINTERS[one.dtype.name] for one in arrays]
    text = ["module {", "  tt.func public @k("]
    text[-1] += ", ".join(f"%p{at}: !tt.ptr<{kind}>" for at, kind in enumerate(kinds)) + ") {"
    text.append(f"    %at = tt.make_range {{end = {N} : i32, start = 0 : i32}} : tensor<{N}xi32>")
    for at, kind in enumerate(kinds):
        pointers = f"tensor<{N}x!tt.ptr<{kind}>>"
        text.append(f"    %s{at} = tt.splat %p{at} : !tt.ptr<{kind}> -> {pointers}")
        text.append(f"    %w{at} = tt.addptr %s{at}, %at : {pointers}, tensor<{N}xi32>")
        if at < len(operands):
            text.append(f"    %v{at} = tt.load %w{at} : {pointers}")
    for at in range(len(operands)):
        line = line.replace(f"%{at}", f"%v{at}")
    text += [f"    {one}" for one in f"%r = {line}".splitlines()]
    text.append(f"    tt.store %w{len(operands)}, %r : tensor<{N}x!tt.ptr<{kinds[-1]}>>")
    text += ["    tt.return", "  }", "}"]
    assert not kit.run_on(translate("\n".join(text), "sm_90"), arrays, (1,)).findings
    return arrays[-1]


def floats(dtype: str = "float32") -> Any:
    return (RNG.uniform(-3, 3, N)).astype(dtype)


def tile(dtype: str) -> str:
    return f"tensor<{N}x{NAMES[dtype]}>"


UNARY = {
    "abs": np.abs, "absf": np.abs, "fabs": np.abs, "ceil": np.ceil, "floor": np.floor, "exp": np.exp, "exp2": np.exp2,
    "exp10": lambda a: 10.0**a, "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "expm1": np.expm1,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a), "trunc": np.trunc, "rint": np.rint, "nearbyint": np.rint, "atan": np.arctan,
    "asin": np.arcsin, "acos": np.arccos, "erf": np.vectorize(math.erf), "saturate": lambda a: np.clip(a, 0, 1),
    "round": lambda a: np.trunc(a + np.copysign(0.5, a)), "isnan": np.isnan, "isinf": np.isinf, "finite": np.isfinite,
}  # fmt: skip
BINARY = {
    "pow": np.power, "powf": np.power, "atan2": np.arctan2, "fmax": np.fmax, "fmin": np.fmin, "copysign": np.copysign,
    "fdiv_rn": np.divide, "ddiv_rn": np.divide, "fdividef": np.divide, "fast_fdivide": np.divide,
}  # fmt: skip
SAME = {
    "frsqrt_rn": "rsqrt", "drsqrt_rn": "rsqrt", "fsqrt_rn": "sqrt", "dsqrt_rn": "sqrt", "sqrt_rn": "sqrt",
    "isnand": "isnan", "isinfd": "isinf", "isfinited": "finite", "fast_pow": "pow",
}  # fmt: skip
POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "powf")
"""Functions that are tried with positive numbers."""
TESTS = ("isnan", "isinf", "finite")
SIGNED = ("copysign", "trunc", "rint", "nearbyint", "round")
"""Functions whose result has the sign of the last operand, also if that is -0.0."""


def known() -> list[str]:
    return sorted({*LIBDEVICE, *COMPOSED})


@pytest.mark.parametrize("symbol", known())
def test_libdevice(symbol: str) -> None:
    name = SAME.get(symbol, symbol.removeprefix("fast_") if symbol != "fast_fdivide" else symbol)
    if name in ("absi", "llabs") or (name == "abs" and symbol == "abs"):
        a = RNG.integers(-100, 100, N).astype("int64" if name == "llabs" else "int32")
        kinds, operands, to, expected = [a.dtype.name], [a], a.dtype.name, np.abs(a)
        symbol = "abs" if symbol == "absi" else symbol
    elif name in ("fma", "fmaf_rn", "fma_rn"):
        operands = [floats() for _ in range(3)]
        kinds, to = ["float32"] * 3, "float32"
        expected = operands[0].astype(float) * operands[1] + operands[2]
    else:
        operands = [floats() for _ in range(2 if name in BINARY else 1)]
        if name in POSITIVE:
            operands[0] = np.abs(operands[0]) + np.float32(0.01)
        if name in ("asin", "acos"):
            operands[0] /= np.float32(3)
        if name in TESTS:
            operands[0][:3] = [np.nan, np.inf, -np.inf]
        if name in SIGNED:
            operands[-1][:2] = [-0.0, 0.0]
        kinds, to = ["float32"] * len(operands), "int32" if name in TESTS else "float32"
        expected = {**UNARY, **BINARY}[name](*(one.astype(float) for one in operands))
    types = ", ".join(map(tile, kinds))
    values = ", ".join(f"%{at}" for at in range(len(operands)))
    line = (
        f'tt.extern_elementwise {values} {{libname = "", libpath = "", pure = true, symbol = "__nv_{symbol}"}} : '
        f"({types}) -> {tile(to)}"
    )
    found = applied(line, operands, to)
    np.testing.assert_allclose(found, expected, rtol=4e-6, atol=4e-7)
    assert name not in SIGNED or np.array_equal(np.signbit(found), np.signbit(expected))


MATH = (
    "tan", "sinh", "cosh", "tanh", "atan2", "powf", "absi", "absf", "exp", "exp2", "log", "log2", "sqrt", "rsqrt",
    "sin", "cos", "floor", "ceil",
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MATH)
def test_math(name: str, dtype: str) -> None:
    if name == "absi":
        a = RNG.integers(-100, 100, N).astype("int64")
        np.testing.assert_array_equal(applied(f"math.absi %0 : {tile('int64')}", [a], "int64"), np.abs(a))
        return
    operands = [floats(dtype) for _ in range(2 if name in BINARY else 1)]
    if name in POSITIVE:
        operands[0] = np.abs(operands[0])
    values = ", ".join(f"%{at}" for at in range(len(operands)))
    out = applied(f"math.{name} {values} : {tile(dtype)}", operands, dtype)
    expected = {**UNARY, **BINARY}[name](*(one.astype(float) for one in operands))
    np.testing.assert_allclose(out, expected, rtol=4e-6 if dtype == "float32" else 1e-13)


ARITHMETIC = {
    "arith.floordivsi": ("int32", np.floor_divide), "arith.ceildivsi": ("int32", lambda a, b: -(-a // b)),
    "arith.remf": ("float32", np.fmod), "arith.minimumf": ("float32", np.minimum),
    "tt.precise_divf": ("float32", np.divide), "arith.divf": ("float64", np.divide),
    **({"tt.approx_divf": ("float32", np.divide)} if NEW else {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str) -> None:
    dtype, expected = ARITHMETIC[name]
    a, b = (RNG.integers(1, 100, N) * RNG.choice([-1, 1], N) for _ in range(2))
    operands = [a.astype(dtype), b.astype(dtype)]
    out = applied(f"{name} %0, %1 : {tile(dtype)}", operands, dtype)
    np.testing.assert_allclose(out, expected(*operands), rtol=1e-6)


def test_one_element_as_a_scalar() -> None:
    line = f"""arith.constant dense<2.0> : {tile("float32")}
%part = tt.make_range {{end = 1 : i32, start = 0 : i32}} : tensor<1xi32>
%number = tt.unsplat %part : tensor<1xi32>
%any = ub.poison : i32
%sum = arith.addi %any, %number : i32
%all = tt.splat %number : i32 -> {tile("int32")}
%more = arith.sitofp %all : {tile("int32")} to {tile("float32")}
%y = arith.addf %more, %0 : {tile("float32")}
tt.store %w0, %y : tensor<{N}x!tt.ptr<f32>>"""
    a = floats()
    before = a.copy()
    applied(line, [a], "float32")
    np.testing.assert_array_equal(a, before)


def test_bits_as_another_type() -> None:
    a = floats()
    out = applied(f"arith.bitcast %0 : {tile('float32')} to {tile('int32')}", [a], "int32")
    np.testing.assert_array_equal(out, a.view(np.int32))


def test_addresses_as_numbers() -> None:
    """From pointers to numbers and back."""
    a, pointers, numbers = floats(), f"tensor<{N}x!tt.ptr<f32>>", f"tensor<{N}xi64>"
    line = f"""arith.constant dense<0.0> : {tile("float32")}
%number = tt.ptr_to_int %w0 : {pointers} -> {numbers}
%one = arith.constant dense<4> : {numbers}
%next = arith.addi %number, %one : {numbers}
%q = tt.int_to_ptr %next : {numbers} -> {pointers}
%few = arith.constant dense<{N - 1}> : tensor<{N}xi32>
%inside = arith.cmpi slt, %at, %few : tensor<{N}xi32>
%x = tt.load %q, %inside, %r : {pointers}
%y = arith.addf %x, %0 : {tile("float32")}
tt.store %w0, %y : {pointers}"""
    before = a.copy()
    applied(line, [a], "float32")
    np.testing.assert_array_equal(a, before + np.append(before[1:], np.float32(0)))
