"""Matrix products against exact sums."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tileir.handlers_kit import operation, run, tile

from tilewright.tileir.read.tree import Op
from tilewright.tileir.run import products
from tilewright.tileir.run.numbers import STORAGE
from tilewright.tileir.run.registry import Unsupported

LANES = st.sampled_from([1, 3])
EXTENTS = st.sampled_from([1, 2, 8, 16])
BATCHES = st.sampled_from([(), (2,)])


def product(name: str, lhs: Any, rhs: Any, acc: Any, elements: tuple[str, str, str], **attributes: Any) -> Any:
    kinds = {"lhs": (lhs, elements[0]), "rhs": (rhs, elements[1]), "acc": (acc, elements[2])}
    types = {key: tile(element, *value.shape[1:]) for key, (value, element) in kinds.items()}
    return run(operation(name, types["acc"], types, **attributes), lhs=lhs, rhs=rhs, acc=acc)


@given(LANES, LANES, LANES, EXTENTS, EXTENTS, EXTENTS, BATCHES, st.sampled_from(sorted(products.ACCUMULATORS)))
@settings(max_examples=80, deadline=None)
def test_mmaf(a: int, b: int, c: int, m: int, n: int, k: int, batch: tuple[int, ...], element: str) -> None:
    rng = np.random.default_rng(m * n * k)
    for into in products.ACCUMULATORS[element]:
        # Small integers: every order of the sums is exact.
        lhs, rhs, acc = (
            rng.integers(-4, 5, shape).astype(STORAGE[kind])
            for shape, kind in (((a, *batch, m, k), element), ((b, *batch, k, n), element), ((c, *batch, m, n), into))
        )
        for left in (lhs, np.ascontiguousarray(lhs.swapaxes(-1, -2)).swapaxes(-1, -2)):
            got = product("mmaf", left, rhs, acc, (element, element, into), fast_acc=False)
            exact = lhs.astype(np.float64) @ rhs.astype(np.float64) + acc.astype(np.float64)
            assert got.dtype == STORAGE[into] and got.shape == exact.shape and (got == exact).all()


def test_mmaf_of_broadcast_tiles() -> None:
    lhs = np.broadcast_to(np.float32(2), (3, 4, 8))
    rhs = np.broadcast_to(np.arange(8, dtype=np.float32)[:, None], (1, 8, 4))
    got = product("mmaf", lhs, rhs, np.zeros((1, 4, 4), np.float32), ("f32", "f32", "f32"))
    assert got.shape == (3, 4, 4) and (got == 56).all()


def test_f16_is_rounded_once() -> None:
    """2048 and 31 ones: an H200 gives 2080 for a f16 accumulator too; rounding at each step would give 2048."""
    lhs = np.ones((1, 1, 32), np.float16)
    lhs[..., 0] = 2048
    got = product("mmaf", lhs, np.ones((1, 32, 1), np.float16), np.zeros((1, 1, 1), np.float16), ("f16",) * 3)
    assert got.item() == 2080 and got.dtype == np.float16


def test_mixed_fp8() -> None:
    lhs, rhs = np.ones((1, 2, 4), ml_dtypes.float8_e4m3fn), np.ones((1, 4, 2), ml_dtypes.float8_e5m2)
    assert (product("mmaf", lhs, rhs, np.ones((1, 2, 2), np.float32), ("f8E4M3FN", "f8E5M2", "f32")) == 5).all()


def test_mmaf_refuses() -> None:
    one = np.ones((1, 1, 1), ml_dtypes.bfloat16)
    with pytest.raises(Unsupported, match="mmaf of bf16 and bf16 into f16"):
        product("mmaf", one, one, one.astype(np.float16), ("bf16", "bf16", "f16"))


@given(LANES, LANES, EXTENTS, st.sampled_from([1, 32, 512]), st.booleans(), st.booleans(), BATCHES)
@settings(max_examples=40, deadline=None)
def test_mmai(a: int, b: int, m: int, k: int, left: bool, right: bool, batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(k + m)
    lhs = rng.integers(-128, 128, (a, *batch, m, k)).astype(np.int8)
    rhs = rng.integers(-128, 128, (b, *batch, k, 4)).astype(np.int8)
    lhs[..., 0, :], rhs[..., :, 0] = -1, -1  # the largest unsigned sums
    acc = rng.integers(-(1 << 31), 1 << 31, (1, *batch, m, 4)).astype(np.int32)
    signs = ("signed" if left else "unsigned", "signed" if right else "unsigned")
    got = product("mmai", lhs, rhs, acc, ("i8", "i8", "i32"), signedness_lhs=signs[0], signedness_rhs=signs[1])
    x = (lhs if left else lhs.view(np.uint8)).astype(np.int64)
    y = (rhs if right else rhs.view(np.uint8)).astype(np.int64)
    assert got.dtype == np.int32 and (got == (x @ y + acc).astype(np.int32)).all()


def scaled(element: str, scale: str, block: int, k: int = 64) -> tuple[Op, dict[str, Any]]:
    rng = np.random.default_rng(block)
    shapes = {"lhs": (2, k), "rhs": (k, 4), "lhs_scale": (2, k // block), "rhs_scale": (k // block, 4), "acc": (2, 4)}
    kinds = {"lhs": element, "rhs": element, "lhs_scale": scale, "rhs_scale": scale, "acc": "f32"}
    values = {
        name: 2.0 ** rng.integers(-3, 4, (3, *shape)) if "scale" in name else rng.integers(-4, 5, (3, *shape))
        for name, shape in shapes.items()
    }
    stored = {name: value.astype(STORAGE[kinds[name]]) for name, value in values.items()}
    types = {name: tile(kinds[name], *shape) for name, shape in shapes.items()}
    return operation("mmaf_scaled", types["acc"], types), stored


@pytest.mark.parametrize(("element", "scale"), sorted(products.SCALED))
def test_mmaf_scaled(element: str, scale: str) -> None:
    for block in products.SCALED[element, scale]:
        op, values = scaled(element, scale, block)
        got = run(op, **values)
        wide = {name: value.astype(np.float64) for name, value in values.items()}
        for lane, i, j in np.ndindex(3, 2, 4):
            total = wide["acc"][lane, i, j] + sum(
                wide["lhs"][lane, i, k] * wide["lhs_scale"][lane, i, k // block]
                * wide["rhs"][lane, k, j] * wide["rhs_scale"][lane, k // block, j]
                for k in range(64)
            )  # fmt: skip
            assert got[lane, i, j] == total


def test_mmaf_scaled_refuses() -> None:
    op, values = scaled("f8E4M3FN", "f8E8M0FNU", 16)
    with pytest.raises(Unsupported, match="4 scales f8E8M0FNU for 64 elements"):
        run(op, **values)
