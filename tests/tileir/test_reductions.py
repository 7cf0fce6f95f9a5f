"""Reductions and scans against Python's `functools.reduce` and `itertools.accumulate`."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tileir.handlers_kit import BINARY, FakeContext, body, operation, run, tile

from tilewright.tileir.read.tree import Op, Region
from tilewright.tileir.run import reductions  # noqa: F401
from tilewright.tileir.run.numbers import STORAGE
from tilewright.tileir.run.registry import PURE

SHAPES = st.sampled_from([(8,), (1,), (4, 16), (2, 4, 8), (3, 5)])
LANES = st.sampled_from([1, 3])
FLOAT = {"rounding_mode": "nearest_even", "flush_to_zero": False}
EXTREME = {"propagate_nan": False, "flush_to_zero": False}


def single(element: str, name: str, **attributes: Any) -> Region:
    return body(element, ("%r", name, BINARY, attributes))


def folded(
    name: str, region: Region, values: Any, axis: int, element: str, **attributes: Any
) -> tuple[Any, FakeContext]:
    shape = values.shape[1:]
    kept = shape if name == "scan" else shape[:axis] + shape[axis + 1 :]
    op = operation(name, [tile(element, *kept)], {"operands": [tile(element, *shape)]}, region, dim=axis, **attributes)
    context = FakeContext(len(values))
    (result,) = run(op, context, operands=(values,))
    assert result.shape == (len(values), *kept) and result.dtype == values.dtype
    return result, context


INTEGER_BODIES = [
    ("addi", {"overflow": "none"}, np.add), ("muli", {"overflow": "none"}, np.multiply),
    ("maxi", {"signedness": "signed"}, np.maximum), ("mini", {"signedness": "signed"}, np.minimum),
]  # fmt: skip


@given(SHAPES, LANES, st.data(), st.sampled_from(["i8", "i32", "i64"]), st.sampled_from(INTEGER_BODIES), st.booleans())
@settings(max_examples=60, deadline=None)
def test_integers(shape: Any, lanes: int, data: Any, element: str, one: Any, reverse: bool) -> None:
    name, attributes, ufunc = one
    axis = data.draw(st.integers(0, len(shape) - 1))
    values = np.random.default_rng(3).integers(-99, 99, (lanes, *shape)).astype(STORAGE[element])
    region = single(element, name, **attributes)
    result, context = folded("reduce", region, values, axis, element)
    assert (result == ufunc.reduce(values, 1 + axis, dtype=values.dtype)).all() and not context.regions
    scanned, context = folded("scan", region, values, axis, element, reverse=reverse)
    seen = np.flip(values, 1 + axis) if reverse else values
    expected = ufunc.accumulate(seen, 1 + axis, dtype=values.dtype)
    assert (scanned == (np.flip(expected, 1 + axis) if reverse else expected)).all() and not context.regions


def test_unsigned_extremes() -> None:
    values = np.array([[1, -1, 3, -7]], np.int8)
    region = single("i8", "maxi", signedness="unsigned")
    assert folded("reduce", region, values, 0, "i8")[0].tolist() == [-1]


@given(SHAPES, LANES, st.data(), st.sampled_from(["f16", "bf16", "f32", "f64"]))
@settings(max_examples=40, deadline=None)
def test_sums_do_not_depend_on_the_lanes_nor_the_layout(shape: Any, lanes: int, data: Any, element: str) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    values = np.random.default_rng(4).standard_normal((lanes, *shape)).astype(STORAGE[element])
    region = single(element, "addf", **FLOAT)
    result, _ = folded("reduce", region, values, axis, element)
    for lane in range(lanes):
        alone, _ = folded("reduce", region, np.asfortranarray(values[lane : lane + 1]), axis, element)
        assert (alone[0] == result[lane]).all()
    exact = values.astype(np.float64).sum(1 + axis)
    unit = float(ml_dtypes.finfo(values.dtype).eps)
    bound = 4 * unit * np.abs(values.astype(np.float64)).sum(1 + axis)
    assert (np.abs(result.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize(("element", "first", "expected"), [("bf16", 256, 510), ("f16", 2048, 2302)])
def test_narrow_sums_round_at_each_step(element: str, first: int, expected: int) -> None:
    """256 and 255 ones; an H200 gives these numbers (cuTile 1.7.0, tileiras 13.4)."""
    values = np.ones((1, 256), STORAGE[element])
    values[0, 0] = first
    assert folded("reduce", single(element, "addf", **FLOAT), values, 0, element)[0].item() == expected


def test_attributes_are_honoured() -> None:
    values = np.full((1, 4), 2.0**-128, np.float32)
    flushed = single("f32", "addf", **{**FLOAT, "flush_to_zero": True})
    result, context = folded("reduce", flushed, values, 0, "f32")
    assert result.item() == 0 and context.regions == 2
    up = single("f32", "addf", **{**FLOAT, "rounding_mode": "positive_inf"})
    ones = np.array([[1, 2.0**-40, 0, 0]], np.float32)
    assert folded("reduce", up, ones, 0, "f32")[0].item() == 1 + 2.0**-23


@pytest.mark.parametrize("name", ["maxf", "minf"])
@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_extremes(name: str, element: str) -> None:
    values = np.random.default_rng(5).standard_normal((3, 4, 8)).astype(STORAGE[element])
    numpy = np.max if name == "maxf" else np.min
    result, context = folded("reduce", single(element, name, **EXTREME), values, 1, element)
    assert (result == numpy(values, 2)).all() and not context.regions
    values[0, 0, 3] = np.nan
    result, _ = folded("reduce", single(element, name, **EXTREME), values, 1, element)
    assert result[0, 0] == numpy(np.delete(values[0, 0], 3))
    result, _ = folded("reduce", single(element, name, **{**EXTREME, "propagate_nan": True}), values, 1, element)
    assert np.isnan(result[0, 0]) and not np.isnan(result[0, 1:].astype(np.float32)).any()


def test_extremes_order_zeros() -> None:
    zeros = np.array([[-0.0, 0.0, -0.0, -0.0]], np.float32)
    assert not np.signbit(folded("reduce", single("f32", "maxf", **EXTREME), zeros, 0, "f32")[0]).any()
    assert np.signbit(folded("reduce", single("f32", "minf", **EXTREME), zeros, 0, "f32")[0]).all()


# Bodies of several operations -------------------------------------------------------------------------


def composed(first: Any, second: Any) -> Any:
    """The map first, then second, of maps x → m·x + c modulo 2**15: associative, not commutative."""
    low = 0x7FFF
    m, c = (second >> 16) * (first >> 16), (second >> 16) * (first & low) + (second & low)
    return ((m & low) << 16) | (c & low)


@given(SHAPES, LANES, st.data(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_order_of_elements_is_kept(shape: Any, lanes: int, data: Any, reverse: bool) -> None:
    """As the H200's scans: what was combined so far is the body's first argument."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    maps = np.random.default_rng(6).integers(0, 1 << 15, (2, lanes, *shape))
    values = ((maps[0] << 16) | maps[1]).astype(np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PURE, "compose", lambda op, lhs, rhs: composed(lhs, rhs))  # type: ignore[arg-type]
        region = single("i32", "compose")
        scanned, context = folded("scan", region, values, axis, "i32", reverse=reverse)
        total, _ = folded("reduce", region, values, axis, "i32")
    assert context.regions == int(np.ceil(np.log2(shape[axis])))
    rows = np.moveaxis(values, 1 + axis, -1).reshape(-1, shape[axis])
    seen = np.moveaxis(scanned, 1 + axis, -1).reshape(rows.shape)
    for row, got, last in zip(rows.tolist(), seen.tolist(), total.reshape(-1).tolist(), strict=True):
        ordered = row[::-1] if reverse else row
        assert list(itertools.accumulate(ordered, composed)) == (got[::-1] if reverse else got)
        assert last == list(itertools.accumulate(row, composed))[-1]


def test_several_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """argmax: the larger value, of equal ones the one with the smaller index."""
    monkeypatch.setitem(PURE, "keeps", lambda op, v, i, w, j: (v > w) | ((v == w) & (i < j)))  # type: ignore[index]
    monkeypatch.setitem(PURE, "choose", lambda op, cond, lhs, rhs: np.where(cond, lhs, rhs))  # type: ignore[index]
    kinds, names = (tile("f32"), tile("i32")), ("%v", "%w", "%i", "%j")
    ops = (
        Op("keeps", ("%k",), (tile("i1"),), {"v": ("%v",), "i": ("%i",), "w": ("%w",), "j": ("%j",)}, {}),
        Op("choose", ("%x",), kinds[:1], {"cond": ("%k",), "lhs": ("%v",), "rhs": ("%w",)}, {}),
        Op("choose", ("%y",), kinds[1:], {"cond": ("%k",), "lhs": ("%i",), "rhs": ("%j",)}, {}),
        Op("yield", (), (), {"operands": ("%x", "%y")}, {}),
    )
    region = Region(tuple(zip(names, (kinds[0], kinds[0], kinds[1], kinds[1]), strict=True)), ops)
    values = np.random.default_rng(8).integers(0, 5, (3, 4, 16)).astype(np.float32)
    index = np.broadcast_to(np.arange(16, dtype=np.int32), (1, 4, 16))
    types = {"operands": [tile("f32", 4, 16), tile("i32", 4, 16)]}
    op = operation("reduce", [tile("f32", 4), tile("i32", 4)], types, region, dim=1)
    largest, at = run(op, FakeContext(3), operands=(values, index))
    assert (largest == values.max(2)).all() and (at == values.argmax(2)).all() and at.dtype == np.int32
