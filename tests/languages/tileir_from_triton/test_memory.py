"""Masked accesses, 64-bit offsets, atomic updates, the order of accesses, and tensor descriptors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from tests.languages.tileir_from_triton import kit
from tests.languages.tileir_from_triton.kit import launch, lowered

from tilewright.languages.tileir_from_triton.translate import translate
from tilewright.tileir.read.reader import read_bytecode

RNG = np.random.default_rng(3)


@triton.jit
def copy(x, z, n, offset, other, N: tl.constexpr, OTHER: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    if OTHER:
        value = tl.load(x + at + offset, mask=at < n, other=other)
    else:
        value = tl.load(x + at + offset, mask=at < n)
    tl.store(z + at, value, mask=(at < n) | OTHER)


@pytest.mark.parametrize("with_other", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "bfloat16", "float32"])
def test_masks(dtype: str, with_other: bool) -> None:
    x = RNG.integers(-50, 50, 128).astype(dtype)
    out = np.zeros(128, dtype)
    launch(copy, (4,), {"x": x, "z": out, "n": 77, "offset": 5, "other": 7, "N": 32, "OTHER": with_other})
    expected = np.full(128, 7 if with_other else 0).astype(dtype)
    expected[:77] = x[5:82]
    np.testing.assert_array_equal(out, expected)


@triton.jit
def scalars(x, z, N: tl.constexpr):
    value = tl.load(x)
    for k in range(1, N):
        value = value * tl.load(x + k)
    tl.store(z, value)


def test_scalars() -> None:
    x, out = np.array([2, 3, 5, 7], np.int32), np.zeros(1, np.int32)
    launch(scalars, (1,), {"x": x, "z": out, "N": 4})
    assert out[0] == 210


@triton.jit
def flags(x, z, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(z + at, tl.where(tl.load(x + at), 1, 2))


def test_booleans_in_memory() -> None:
    x, out = RNG.integers(0, 2, 64).astype(np.bool_), np.zeros(64, np.int32)
    launch(flags, (1,), {"x": x, "z": out, "N": 64})
    np.testing.assert_array_equal(out, np.where(x, 1, 2))


@triton.jit
def update(x, z, old, OP: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    if OP == "add":
        r = tl.atomic_add(z + at, v, mask=at < N - 3)
    elif OP == "max":
        r = tl.atomic_max(z + at, v, mask=at < N - 3)
    elif OP == "min":
        r = tl.atomic_min(z + at, v, mask=at < N - 3)
    elif OP == "and":
        r = tl.atomic_and(z + at, v, mask=at < N - 3)
    elif OP == "or":
        r = tl.atomic_or(z + at, v, mask=at < N - 3)
    elif OP == "xor":
        r = tl.atomic_xor(z + at, v, mask=at < N - 3)
    elif OP == "xchg":
        r = tl.atomic_xchg(z + at, v, mask=at < N - 3, sem="relaxed")
    tl.store(old + at, r, mask=at < N - 3)


UPDATES = {
    "add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "xchg": lambda a, b: b,
}  # fmt: skip
ATOMIC = [
    *((name, dtype) for name in UPDATES for dtype in ("int32", "int64", "uint32")),
    ("add", "float32"), ("add", "float16"), ("max", "float32"), ("min", "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), ATOMIC)
def test_atomic_updates(name: str, dtype: str) -> None:
    low = 0 if dtype[0] == "u" else -50
    x, z = (RNG.integers(low, 50, 32).astype(dtype) for _ in range(2))
    before, old = z.copy(), np.zeros(32, dtype)
    launch(update, (1,), {"x": x, "z": z, "old": old, "OP": name, "N": 32})
    np.testing.assert_array_equal(z[:29], UPDATES[name](before, x)[:29])
    np.testing.assert_array_equal(old[:29], before[:29])
    np.testing.assert_array_equal(z[29:], before[29:])


@triton.jit
def locked(lock, total, count, N: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + tl.program_id(0))
    tl.atomic_xchg(lock, 0)
    tl.atomic_add(count, 1)


def test_a_lock() -> None:
    lock, total, count = (np.zeros(1, np.int32) for _ in range(3))
    launch(locked, (20,), {"lock": lock, "total": total, "count": count, "N": 1})
    assert (lock[0], total[0], count[0]) == (0, 190, 20)


@triton.jit
def shift_in_place(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    for _ in range(3):
        v = tl.load(x + at + 1, mask=at < N - 1, other=0.0)
        tl.store(x + at, v)
    tl.store(y + at, tl.load(x + at))


def tokens_of(code: bytes) -> dict[str, list[str | None]]:
    """The token that each access of memory waits for, by the name of the operation."""
    found: dict[str, list[str | None]] = {}
    for op in read_bytecode(code).entry(None).walk():
        if op.name.startswith(("load_", "store_")):
            found.setdefault(op.name, []).append(*(op.operands.get("token") or (None,)))
    return found


def test_reads_and_writes_of_the_same_memory_are_ordered() -> None:
    x, y = RNG.standard_normal(32).astype(np.float32), np.zeros(32, np.float32)
    expected = np.concatenate([x[3:], np.zeros(3, np.float32)])
    arguments = {"x": x, "y": y, "N": 32}
    tokens = tokens_of(lowered(shift_in_place, arguments).code)
    launch(shift_in_place, (1,), arguments)
    np.testing.assert_array_equal(y, expected)
    assert all(one for ones in tokens.values() for one in ones), "x and y may be one array"
    apart = tokens_of(lowered(shift_in_place, arguments, arrays=(0, 1)).code)
    assert all(apart["load_ptr_tko"]) and len(set(apart["load_ptr_tko"])) == 2


@triton.jit
def add_one(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.load(x + at) + 1)


def test_memory_that_is_only_read_needs_no_token() -> None:
    arguments = {"x": np.zeros(32, np.float32), "y": np.zeros(32, np.float32), "N": 32}
    assert tokens_of(lowered(add_one, arguments, arrays=(0, 1)).code)["load_ptr_tko"] == [None]
    assert tokens_of(lowered(add_one, arguments).code)["load_ptr_tko"] != [None]


@triton.jit
def move(x, y, m, n, row, column, A: tl.constexpr, B: tl.constexpr, NAN: tl.constexpr):
    PADDING: tl.constexpr = "nan" if NAN else "zero"
    source = tl.make_tensor_descriptor(x, [m, n], [n, 1], [A, B], padding_option=PADDING)
    into = tl.make_tensor_descriptor(y, [m, n], [n, 1], [A, B])
    into.store([row, column], source.load([row, column]) + 1)


@pytest.mark.parametrize("place", [(0, 0), (3, 5), (40, 60), (16, 32)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_descriptors_at_any_offset(dtype: Any, place: tuple[int, int]) -> None:
    x, y = RNG.integers(0, 9, (48, 72)).astype(dtype), np.zeros((48, 72), dtype)
    row, column = place
    launch(move, (1,), {"x": x, "y": y, "m": 48, "n": 72, "row": row, "column": column, "A": 16, "B": 32, "NAN": False})
    expected = np.zeros_like(y)
    here = slice(row, row + 16), slice(column, column + 32)
    expected[here] = x[here] + dtype(1)
    np.testing.assert_array_equal(y, expected)


@triton.jit
def padded(x, y, n, at, N: tl.constexpr, NAN: tl.constexpr):
    PADDING: tl.constexpr = "nan" if NAN else "zero"
    source = tl.make_tensor_descriptor(x, [n], [1], [N], padding_option=PADDING)
    tl.store(y + tl.arange(0, N), source.load([at]))


@pytest.mark.parametrize("nan", [False, True])
def test_what_is_outside_a_descriptor(nan: bool) -> None:
    x, y = RNG.standard_normal(50).astype(np.float32), np.zeros(32, np.float32)
    launch(padded, (1,), {"x": x, "y": y, "n": 50, "at": 30, "N": 32, "NAN": nan})
    np.testing.assert_array_equal(y, np.concatenate([x[30:], np.full(12, np.nan if nan else 0, np.float32)]))


@triton.jit
def from_host(source, y, row, column, A: tl.constexpr, B: tl.constexpr):
    rows, columns = tl.arange(0, A), tl.arange(0, B)
    tl.store(y + rows[:, None] * B + columns[None, :], source.load([row, column]))


@pytest.mark.parametrize("nan", [False, True])
def test_descriptors_from_the_host(nan: bool) -> None:
    x, y = RNG.standard_normal((6, 20)).astype(np.float32), np.zeros((4, 16), np.float32)
    signature = {"source": "tensordesc<fp32[4, 16]>", "y": "*fp32", "row": "i32", "column": "i32"}
    text = kit.ttir_of(from_host, signature, {"A": 4, "B": 16})
    code = translate(text, "sm_90", nan_padded=(0,) if nan else ())
    assert not kit.run_on(code, [x, 6, 20, 20, 1, y, 3, 7], (1,)).findings
    expected = np.full((4, 16), np.nan if nan else 0, np.float32)
    expected[:3, :13] = x[3:, 7:]
    np.testing.assert_array_equal(y, expected)


@triton.jit
def rows_of(x, y, index, m, n, A: tl.constexpr, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [m, n], [n, 1], [1, B])
    into = tl.make_tensor_descriptor(y, [m, n], [n, 1], [1, B])
    rows = tl.load(index + tl.arange(0, A))
    into.scatter(source.gather(rows, 8), m - 1 - rows, 8)


def test_rows_through_a_descriptor() -> None:
    x, y = RNG.standard_normal((40, 64)).astype(np.float32), np.zeros((40, 64), np.float32)
    index = RNG.permutation(40)[:16].astype(np.int32)
    launch(rows_of, (1,), {"x": x, "y": y, "index": index, "m": 40, "n": 64, "A": 16, "B": 32})
    expected = np.zeros_like(y)
    expected[39 - index, 8:40] = x[index, 8:40]
    np.testing.assert_array_equal(y, expected)


@triton.jit
def add_to(x, y, n, N: tl.constexpr):
    into = tl.make_tensor_descriptor(y, [n], [1], [N])
    into.atomic_add([tl.program_id(0) * N], tl.load(x + tl.arange(0, N)))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_updates_through_a_descriptor(dtype: Any) -> None:
    x, y = RNG.integers(0, 9, 16).astype(dtype), np.ones(40, dtype)
    launch(add_to, (3,), {"x": x, "y": y, "n": 40, "N": 16})
    np.testing.assert_array_equal(y, 1 + np.tile(x, 3)[:40])
