"""Making, rearranging, checking and printing tiles, against plain NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tileir.handlers_kit import FakeContext, operation, run, tile

from tilewright.tileir.read.tree import Assumption, Constant, PointerType, TensorViewType
from tilewright.tileir.run import tiles  # noqa: F401
from tilewright.tileir.run.registry import Unsupported
from tilewright.tileir.run.views import TensorView
from tilewright.tileir.watch.findings import ASSERTION, ASSUMPTION, MISALIGNED, OUT_OF_BOUNDS

LANES = st.sampled_from([1, 3])
EXTENTS = st.sampled_from([1, 2, 4, 8])
DTYPES = st.sampled_from([np.int8, np.int64, np.float32, ml_dtypes.bfloat16, np.bool_])


def some(lanes: int, *shape: int, dtype: Any = np.int32) -> Any:
    return np.random.default_rng(7).integers(-50, 50, (lanes, *shape)).astype(dtype)


def test_constant() -> None:
    whole = run(operation("constant", tile("bf16", 2, 4), value=Constant("bf16", (1.5,))))
    assert whole.shape == (1, 2, 4) and whole.dtype == ml_dtypes.bfloat16 and (whole == 1.5).all()
    listed = run(operation("constant", tile("i8", 2, 2), value=Constant("i8", (1, 2, 255, 4))))
    assert listed.tolist() == [[[1, 2], [-1, 4]]]
    bits = run(operation("constant", tile("f32"), value=Constant("f32", (0x7FC00000,), True)))
    assert bits.shape == (1,) and np.isnan(bits[0])


def test_iota() -> None:
    assert run(operation("iota", tile("i16", 8))).tolist() == [list(range(8))]
    assert run(operation("iota", tile("i8", 256)))[0, 255] == -1


@given(LANES, EXTENTS, EXTENTS, EXTENTS, DTYPES, st.permutations([0, 1, 2]))
@settings(max_examples=40, deadline=None)
def test_rearranging(lanes: int, a: int, b: int, c: int, dtype: Any, order: list[int]) -> None:
    source = some(lanes, a, b, c, dtype=dtype)
    permuted = run(operation("permute", tile("i32"), permutation=tuple(order)), source=source)
    joined = run(operation("cat", tile("i32"), dim=1), lhs=source, rhs=source[:1])
    flat = run(operation("reshape", tile("i32", c, a * b)), source=source)
    for lane in range(lanes):
        assert (permuted[lane] == source[lane].transpose(order)).all()
        assert (joined[lane] == np.concatenate([source[lane], source[0]], 1)).all()
        assert (flat[lane] == source[lane].reshape(c, a * b)).all()


def test_broadcast_keeps_lanes() -> None:
    assert run(operation("broadcast", tile("i32", 4, 2)), source=some(3, 4, 1)).shape == (3, 4, 2)


@given(LANES, LANES, LANES, st.integers(0, 3), st.integers(0, 1))
@settings(max_examples=40, deadline=None)
def test_insert_and_extract(deep: int, lanes: int, other: int, row: int, column: int) -> None:
    whole, part = some(deep, 8, 4), some(lanes, 2, 2) + 1000
    at = (np.full(other, row, np.int32), np.full(1, column, np.int32))
    at[0][-1] = 3 - row
    changed = run(operation("insert", tile("i32", 8, 4)), source=part, destination=whole, indices=at)
    total = max(deep, lanes, other)
    assert changed.shape == (total, 8, 4) and (whole < 1000).all()
    back = run(operation("extract", tile("i32", 2, 2)), source=changed, indices=at)
    for lane in range(total):
        r, expected = int(at[0][lane % other]), whole[lane % deep].copy()
        expected[2 * r : 2 * r + 2, 2 * column : 2 * column + 2] = part[lane % lanes]
        assert (changed[lane] == expected).all() and (back[lane] == part[lane % lanes]).all()


def test_a_slice_that_does_not_exist() -> None:
    context, op = FakeContext(2), operation("extract", tile("i32", 2))
    cut = run(op, context, source=some(1, 4), indices=(np.array([1, 2], np.int32),))
    assert (cut[1] == -1).all() and (cut[0] == some(1, 4)[0, 2:]).all()
    assert context.findings == [(OUT_OF_BOUNDS, "extract: slice 2 along axis 0, which has 2", 1)]
    kept = run(
        operation("insert", tile("i32", 4)), context, source=some(1, 2), destination=some(1, 4),
        indices=(np.array([-1], np.int32),),
    )  # fmt: skip
    assert (kept == some(1, 4)).all()


@pytest.mark.parametrize("element", ["i4", "f4E2M1FN", "i32", "bf16", "f64", "f8E4M3FN"])
def test_pack_and_unpack(element: str) -> None:
    data = np.random.default_rng(1).integers(0, 100, (2, 16)).astype(np.int8)
    values = run(operation("unpack", tile(element, 1)), source=data)
    packed = run(operation("pack", tile("i8", 16), {"source": tile(element, values.shape[1])}), source=values)
    assert (packed == data).all() and packed.dtype == np.int8
    number = run(
        operation("pack", tile("i8", 4), {"source": tile("i32", 1)}), source=np.array([[0x04030201]], np.int32)
    )
    assert number.tolist() == [[1, 2, 3, 4]]  # cuda.tile.pack_to_bytes' example


def test_pack_refuses_what_has_no_bytes() -> None:
    with pytest.raises(Unsupported, match="tile<8xi1>"):
        run(operation("pack", tile("i8", 1), {"source": tile("i1", 8)}), source=np.ones((1, 8), np.bool_))


def test_the_grid() -> None:
    context, names = FakeContext(24, (4, 3, 2)), [tile("i32")] * 3
    x, y, z = run(operation("get_tile_block_id", names), context)
    assert [(i, j, k) for i, j, k in zip(x, y, z, strict=True)] == [
        (i, j, k) for k in range(2) for j in range(3) for i in range(4)
    ]
    assert [int(n[0]) for n in run(operation("get_num_tile_blocks", names), context)] == [4, 3, 2]
    x, y, z = run(operation("get_tile_block_id", names), FakeContext(4, (4, 1, 1)))
    assert x.shape == (4,) and y.shape == z.shape == (1,)


def test_tokens_do_nothing() -> None:
    for name in ("make_token", "join_tokens", "memory_fence_alias_tko", "gdc_wait_tko", "gdc_launch_dependents_tko"):
        assert run(operation(name)) is None


# Assumptions ------------------------------------------------------------------------------------------


def assumed(value: Any, element: Any, **predicate: Any) -> list[tuple[str, str, int | None]]:
    context = FakeContext(len(value))
    op = operation("assume", tile(element, *value.shape[1:]), predicate=Assumption(**predicate))
    assert run(op, context, value=value) is value
    return context.findings


def test_divisible() -> None:
    good = np.array([[32, 64, 0, 0, 32, -32, 1024, 0]], np.int16)  # Ops.td's examples
    assert not assumed(good, "i16", kind="div_by", divisor=32)
    grouped = np.array([[96, 97, 98, 99, 64, 65, 66, 67]], np.int16)
    assert not assumed(grouped, "i16", kind="div_by", divisor=32, every=4, along=0)
    assert assumed(grouped, "i16", kind="div_by", divisor=32) == [
        (ASSUMPTION, "assumed div_by<32>, but it is 97 at element (1,)", 0)
    ]
    wraps = np.array([[126, 127, -128, -127]], np.int8)
    assert assumed(wraps, "i8", kind="div_by", divisor=2, every=4, along=0)
    assert not assumed(wraps, "i8", kind="div_by", divisor=2, every=2, along=0)


def test_divisible_addresses() -> None:
    pointer = PointerType("f32")
    rows = np.array([0x20, 0x100, 0x40]) + 4 * np.arange(4)[:, None]
    assert not assumed(rows[None], pointer, kind="div_by", divisor=32, every=4, along=0)
    assert assumed(np.array([0x1000, 0x1008]), pointer, kind="div_by", divisor=16) == [
        (MISALIGNED, "assumed div_by<16>, but it is address 0x1008", 1)
    ]
    context = FakeContext(2)
    view = TensorView(TensorViewType((4,), "f32", (1,)), np.array([16, 20]), (np.array([4]),), (np.array([1]),))
    kept = run(operation("assume", view.type, predicate=Assumption("div_by", 16)), context, value=view)
    assert kept is view and context.findings == [(MISALIGNED, "assumed div_by<16>, but it is address 0x14", 1)]
    context = FakeContext(2)
    context.world.checks_assumptions = False  # of a run that only counts
    kept = run(operation("assume", view.type, predicate=Assumption("div_by", 16)), context, value=view)
    assert kept is view and not context.findings


def test_same_elements() -> None:
    value = np.array([[[0] * 4 + [10] * 4] * 2 + [[5] * 4 + [93] * 4] * 2], np.int16)
    assert not assumed(value, "i16", kind="same_elements", values=(2, 4))
    assert assumed(value, "i16", kind="same_elements", values=(4, 4))[0][1].endswith("but it is 5 at element (2, 0)")
    assert not assumed(value, "i16", kind="same_elements", values=(1, 1))


def test_bounded() -> None:
    value = np.array([5, 6, -1], np.int32)
    assert [lane for _, _, lane in assumed(value, "i32", kind="bounded", low=0)] == [2]
    assert [lane for _, _, lane in assumed(value, "i32", kind="bounded", low=-1, high=5)] == [1]
    assert assumed(value[2:], "i32", kind="bounded", low=0)[0][1] == "assumed bounded<0, ?>, but it is -1"
    with pytest.raises(Unsupported, match="bounded"):
        assumed(np.array([5]), PointerType("f32"), kind="bounded", low=0)


# Assertions and prints --------------------------------------------------------------------------------


def test_assert() -> None:
    context = FakeContext(2)
    condition = np.ones((2, 2, 4), np.bool_)
    condition[1, 1, 2] = condition[1, 1, 3] = False
    assert run(operation("assert", message="must hold"), context, condition=condition) is None
    assert context.findings == [(ASSERTION, "must hold at element (1, 2)", 1)]


INTEGERS = np.array([[1, -2, 3, 4], [5, 6, 7, 100]], np.int32)
PRINTED: list[tuple[str, list[Any], list[str], str]] = [  # an H200 printed these (cuTile 1.7.0, tileiras 13.4)
    ("int %d hex %x", [INTEGERS] * 2, ["i32"] * 2,
     "int [[1, -2, 3, 4], [5, 6, 7, 100]] hex [[1, fffffffe, 3, 4], [5, 6, 7, 64]]"),
    ("%u %x", [INTEGERS.astype(np.int8)] * 2, ["i8"] * 2,
     "[[1, 4294967294, 3, 4], [5, 6, 7, 100]] [[1, fffffffe, 3, 4], [5, 6, 7, 64]]"),
    ("%8.3f|%%", [np.array([1.5, -3.0], np.float32)], ["f32"], "[   1.500,   -3.000]|%"),
    ("%-8.1e|%g", [np.array([1.5, 10.5], np.float32)] * 2, ["f32"] * 2, "[1.5e+00 , 1.0e+01 ]|[1.5, 10.5]"),
    ("%5d|%+d|%05d|%#x", [np.int32(124)] * 4, ["i32"] * 4, "  124|+124|00124|0x7c"),
    ("%a %A", [np.float32(186.0)] * 2, ["f32"] * 2, "0x1.74p+7 0X1.74P+7"),
    ("%05f %f", [np.float32(np.nan), np.float32(-np.inf)], ["f32"] * 2, "  nan -inf"),
    ("%lld %d", [np.int64(1 << 40), np.array([False, True])], ["i64", "i1"], "1099511627776 [0, 1]"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "values", "elements", "expected"), PRINTED)
def test_print(text: str, values: list[Any], elements: list[str], expected: str) -> None:
    context = FakeContext(2)
    types = {"args": [tile(e, *np.shape(v)) for e, v in zip(elements, values, strict=True)]}
    op = operation("print_tko", None, types, str=text)
    assert run(op, context, args=tuple(np.asarray(value)[None] for value in values)) is None
    assert context.prints == [(expected, 0), (expected, 1)]
    silent = FakeContext(2, dry=True)
    run(op, silent, args=())
    assert not silent.prints


@pytest.mark.parametrize(
    ("text", "element"), [("%f", "i32"), ("%d", "f32"), ("%s", "i32"), ("none", "i32"), ("%d%d", "i32")]
)
def test_print_refuses(text: str, element: str) -> None:
    op = operation("print_tko", None, {"args": [tile(element)]}, str=text)
    with pytest.raises(Unsupported, match="print_tko"):
        run(op, args=(np.zeros(1, np.int32 if element == "i32" else np.float32),))
