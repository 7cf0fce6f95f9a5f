"""Loops, branches, early returns; reductions and scans; products; assertions, print, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from tests.languages.tileir_from_triton.kit import ARCHITECTURES, compiled, launch, lowered
from triton.language.extra import libdevice

from tilewright.languages.tileir_from_triton.ttir import Untranslated

RNG = np.random.default_rng(4)


@triton.jit
def collatz(x, z, N: tl.constexpr):
    number, steps = tl.load(x + tl.program_id(0)), 0
    while number != 1:
        if number % 2 == 0:
            number = number // 2
        else:
            number = 3 * number + 1
        steps += 1
    tl.store(z + tl.program_id(0), steps)


def test_while_and_if() -> None:
    def steps(number: int) -> int:
        return 0 if number == 1 else 1 + steps(number // 2 if number % 2 == 0 else 3 * number + 1)

    x, out = np.arange(1, 31, dtype=np.int64), np.zeros(30, np.int32)
    launch(collatz, (30,), {"x": x, "z": out, "N": 1})
    np.testing.assert_array_equal(out, [steps(int(one)) for one in x])


@triton.jit
def nested(x, z, n, N: tl.constexpr):
    at = tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    pointer = x
    for i in range(n - 1, -1, -1):
        for j in tl.range(0, i, 2, num_stages=3):
            total += tl.load(pointer + j + at)
        pointer += N
        if i % 2 == 1:
            total = -total
    tl.store(z + at, total)


def test_loops_in_loops() -> None:
    x, out = RNG.integers(-9, 9, (4, 16)).astype(np.float32), np.zeros(16, np.float32)
    flat, expected = np.concatenate([x.reshape(-1), np.zeros(32, np.float32)]), np.zeros(16, np.float32)
    for row, i in enumerate(range(3, -1, -1)):
        for j in range(0, i, 2):
            expected += flat[row * 16 + j :][:16]
        expected = -expected if i % 2 else expected
    launch(nested, (1,), {"x": x, "z": out, "n": 4, "N": 16})
    np.testing.assert_array_equal(out, expected)


@triton.jit
def helper(value, limit):
    if value > limit:
        return value - limit
    return value * 2


@triton.jit
def returns(x, z, limit, N: tl.constexpr):
    which = tl.program_id(0)
    value = tl.load(x + which)
    if value < 0:
        return
    if value > limit:
        tl.store(z + which, -1)
        if value > 2 * limit:
            return
        tl.store(z + which, -2)
    else:
        value = value + 5
    if which == 7:
        return
    tl.store(z + which, value)


def test_early_returns() -> None:
    x, out = RNG.integers(-20, 60, 40).astype(np.int32), np.full(40, 99, np.int32)
    launch(returns, (40,), {"x": x, "z": out, "limit": 20, "N": 1})
    expected = np.where(x < 0, 99, np.where(x > 40, -1, np.where(x > 20, x, x + 5)))
    expected[7] = 99 if x[7] < 0 else -1 if x[7] > 40 else -2 if x[7] > 20 else 99
    np.testing.assert_array_equal(out, expected)


@triton.jit
def calls(x, z, N: tl.constexpr):
    which = tl.program_id(0)
    tl.store(z + which, helper(tl.load(x + which), 10))


def test_returns_of_a_helper() -> None:
    x, out = np.arange(20, dtype=np.int32), np.zeros(20, np.int32)
    launch(calls, (20,), {"x": x, "z": out, "N": 1})
    np.testing.assert_array_equal(out, np.where(x > 10, x - 10, 2 * x))


# Reductions and scans -------------------------------------------------------------------------------------------------


@triton.jit
def welford(mean_a, m_a, n_a, mean_b, m_b, n_b):
    delta, n = mean_b - mean_a, n_a + n_b
    ratio = n_b / n
    return mean_a + delta * ratio, m_a + m_b + delta * delta * n_a * ratio, n


@triton.jit
def affine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def reduces(x, z, OP: tl.constexpr, AXIS: tl.constexpr, A: tl.constexpr, B: tl.constexpr):
    rows, columns = tl.arange(0, A), tl.arange(0, B)
    v = tl.load(x + rows[:, None] * B + columns[None, :])
    if OP == "sum":
        r = tl.sum(v, AXIS)
    elif OP == "max":
        r = tl.max(v, AXIS)
    elif OP == "min":
        r = tl.min(v, AXIS)
    elif OP == "prod":
        r = tl.reduce(v, AXIS, times)
    elif OP == "argmax":
        r = tl.argmax(v, AXIS).to(v.dtype)
    elif OP == "argmin":
        r = tl.argmin(v, AXIS, tie_break_left=False).to(v.dtype)
    elif OP == "var":
        _, m, n = tl.reduce((v, tl.zeros_like(v), tl.full(v.shape, 1.0, v.dtype)), AXIS, welford)
        r = m / n
    elif OP == "spread":
        low, high = tl.reduce((v, v), AXIS, spread)
        r = high - low
    elif OP == "xor":
        r = tl.xor_sum(v.to(tl.int32), AXIS).to(v.dtype)
    tl.store(z + tl.arange(0, B if AXIS == 0 else A), r)


REDUCED: dict[str, Any] = {
    "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "argmax": np.argmax, "argmin": np.argmin,
    "var": np.var, "spread": np.ptp, "xor": lambda v, axis: np.bitwise_xor.reduce(v.astype(np.int32), axis),
}  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", REDUCED)
def test_reductions(name: str, axis: int) -> None:
    v = RNG.permutation(np.arange(-64, 64)).reshape(8, 16).astype(np.float32)
    v = v / 16 + 9 if name in ("prod", "var") else v
    out = np.zeros(16 if axis == 0 else 8, np.float32)
    launch(reduces, (1,), {"x": v, "z": out, "OP": name, "AXIS": axis, "A": 8, "B": 16})
    np.testing.assert_allclose(out, REDUCED[name](v.astype(np.float64), axis), rtol=1e-5)


@triton.jit
def counted(x, y):
    """Adds the counts in the low bits if the keys in the high bits are equal."""
    key = x & -65536
    return tl.where((y & -65536) == key, x + y - key, y)


@triton.jit
def spread(a_low, a_high, b_low, b_high):
    return tl.minimum(a_low, b_low) * 1.0, tl.where(a_high * 2.5 > b_high * 2.5, a_high, b_high)


@triton.jit
def scans(x, z, OP: tl.constexpr, REVERSE: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    if OP == "sum":
        r = tl.cumsum(v, 0, reverse=REVERSE)
    elif OP == "prod":
        r = tl.cumprod(v, 0, reverse=REVERSE)
    elif OP == "counted":
        r = tl.associative_scan((at // 5) * 65536 + 1, 0, counted).to(tl.float32)
    elif OP == "affine":
        _, r = tl.associative_scan((v, at.to(tl.float32)), 0, affine, reverse=REVERSE)
    tl.store(z + at, r)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["sum", "prod", "affine"])
def test_scans(name: str, reverse: bool) -> None:
    v, out = RNG.uniform(0.5, 1.5, 32).astype(np.float32), np.zeros(32, np.float32)
    launch(scans, (1,), {"x": v, "z": out, "OP": name, "REVERSE": reverse, "N": 32})
    a, b = v.astype(np.float64), np.arange(32.0)
    if reverse:
        a, b = a[::-1], b[::-1]
    state, states = 0.0, []
    for one, two in zip(a, b, strict=True):
        state = state * one + two
        states.append(state)
    expected = {"sum": np.cumsum(a), "prod": np.cumprod(a), "affine": np.array(states)}[name]
    np.testing.assert_allclose(out, expected[::-1] if reverse else expected, rtol=1e-5)


@triton.jit
def counts(x, z, n, N: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(z + tl.arange(0, B), tl.histogram(tl.load(x + at), B, mask=at < n))


def test_histogram() -> None:
    x, out = RNG.integers(0, 8, 64).astype(np.int32), np.zeros(8, np.int32)
    launch(counts, (1,), {"x": x, "z": out, "n": 50, "N": 64, "B": 8})
    np.testing.assert_array_equal(out, np.bincount(x[:50], minlength=8))


def test_a_scan_with_a_number_that_is_neutral_on_one_side() -> None:
    out = np.zeros(32, np.float32)
    launch(scans, (1,), {"x": out.copy(), "z": out, "OP": "counted", "REVERSE": False, "N": 32})
    at = np.arange(32)
    np.testing.assert_array_equal(out, (at // 5 * 65536 + at % 5 + 1).astype(np.float32))


# Products -------------------------------------------------------------------------------------------------------------


@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + i[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + j[None, :])
    into = c + i[:, None] * N + j[None, :]
    if ACC:
        r = tl.dot(left, right, tl.load(into), input_precision=PRECISION, out_dtype=c.dtype.element_ty)
    else:
        r = tl.dot(left, right, input_precision=PRECISION, out_dtype=c.dtype.element_ty)
    tl.store(into, r)


PRODUCTS = [
    (np.float16, np.float32, "tf32"), (ml_dtypes.bfloat16, np.float32, "tf32"), (np.float32, np.float32, "tf32"),
    (np.float32, np.float32, "ieee"), (np.float16, np.float16, "tf32"), (np.int8, np.int32, "tf32"),
    (ml_dtypes.float8_e5m2, np.float32, "tf32"), (ml_dtypes.float8_e4m3fn, np.float32, "tf32"),
    (np.float32, np.float32, "tf32x3"), (np.float64, np.float64, "ieee"),
]  # fmt: skip


@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize(("dtype", "into", "precision"), PRODUCTS)
def test_products(dtype: Any, into: Any, precision: str, accumulates: bool) -> None:
    a, b = (RNG.integers(-4, 5, shape).astype(dtype) for shape in ((32, 64), (64, 16)))
    c = RNG.integers(-9, 9, (32, 16)).astype(into)
    expected = a.astype(np.float64) @ b.astype(np.float64) + (c if accumulates else 0)
    arguments = {"a": a, "b": b, "c": c, "M": 32, "N": 16, "K": 64, "PRECISION": precision, "ACC": accumulates}
    code = lowered(product, arguments)
    launch(product, (1,), arguments)
    np.testing.assert_array_equal(c.astype(np.float64), expected)
    if accumulates:
        compiled(code, "sm_90")


# Assertions and print -------------------------------------------------------------------------------------------------


@triton.jit
def prints(x, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, N))
    tl.device_print("values 100%", v, v.to(tl.float32))


def test_print() -> None:
    done = launch(prints, (1,), {"x": np.array([1, -2], np.int32), "N": 2})
    assert [one.text for one in done.prints] == ["values 100%:  [1, -2] [1.000000, -2.000000]\n"]


# Refusals -------------------------------------------------------------------------------------------------------------


@triton.jit
def assembly(x, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x + at)], tl.int32, True, 1)
    tl.store(x + at, v)


@triton.jit
def bessel(x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + at, libdevice.j0(tl.load(x + at)))


@pytest.mark.parametrize(
    ("kernel", "dtype", "line", "named"),
    [
        (assembly, np.int32, 3, "Tile IR has no counterpart of tt.elementwise_inline_asm (inline assembly)"),
        (bessel, np.float32, 3, "Tile IR has no counterpart of libdevice's __nv_j0f"),
    ],
)
def test_what_is_not_covered_is_named_with_its_line(kernel: Any, dtype: Any, line: int, named: str) -> None:
    with pytest.raises(Untranslated) as refused:
        lowered(kernel, {"x": np.zeros(8, dtype), "N": 8})
    assert str(refused.value) == f"test_control.py:{kernel.fn.__code__.co_firstlineno + line}: {named}"


@pytest.mark.parametrize("kernel", [collatz, returns], ids=lambda one: one.__name__)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_control_flow_compiles(kernel: Any, arch: str) -> None:
    limit = {"limit": 20} if kernel is returns else {}
    x = np.zeros(8, np.int64 if kernel is collatz else np.int32)
    compiled(lowered(kernel, {"x": x, "z": np.zeros(8, np.int32), **limit, "N": 1}, arch=arch), arch)
