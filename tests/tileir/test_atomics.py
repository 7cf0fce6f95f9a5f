"""Atomic updates equal those made one after the other, also where several meet in an element."""

from __future__ import annotations

import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tileir.memory_kit import Machine, access, at

from tilewright.tileir.read.tree import Op, TokenType
from tilewright.tileir.run import atomics
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.registry import Unsupported

DTYPES: dict[str, Any] = {
    "int32": np.int32, "int64": np.int64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32, "float64": np.float64,
}  # fmt: skip
CASES = [(mode, dtype) for mode, names in atomics.SUPPORTED.items() for dtype in names]

PLAIN: dict[str, Any] = {
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "add": operator.add, "addf": operator.add,
    "max": max, "min": min, "xchg": lambda old, value: value,
}  # fmt: skip


def one_by_one(elements: Any, at: Any, values: Any, mode: str, compare: Any) -> tuple[Any, Any]:
    """The plain meaning, by Python's loops."""
    found = np.empty_like(values)
    elements = elements.copy()
    unsigned = np.dtype(f"u{elements.itemsize}")
    for i, place in enumerate(at):
        old, value = elements[place], values[i]
        found[i] = old
        if mode in ("umax", "umin"):
            pick = max if mode == "umax" else min
            new = pick(old.view(unsigned), value.view(unsigned)).view(elements.dtype)
        elif mode == "cas":
            new = value if old.tobytes() == compare[i].tobytes() else old
        else:
            new = PLAIN[mode](old, value)
        elements[place] = new
    return elements, found


def drawn(rng: Any, dtype: Any, size: int, few: bool) -> Any:
    if few:
        return rng.integers(0, 3, size).astype(dtype)
    if np.dtype(dtype).kind == "i":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, size).astype(dtype)
    return (rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size)).astype(dtype)


@pytest.mark.parametrize(("mode", "dtype"), CASES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([1, 3, 40]), count=st.integers(0, 60), wanted=st.booleans())
def test_updates_equal_those_one_by_one(mode: str, dtype: str, seed: int, size: int, count: int, wanted: bool) -> None:
    rng = np.random.default_rng(seed)
    elements = drawn(rng, DTYPES[dtype], size, mode == "cas")
    where = rng.permutation(size)[:count] if seed % 3 == 0 else rng.integers(0, size, count)
    values = drawn(rng, DTYPES[dtype], len(where), mode == "cas")
    compare = drawn(rng, DTYPES[dtype], len(where), True) if mode == "cas" else None
    with np.errstate(all="ignore"):
        expected, expected_found = one_by_one(elements, where, values, mode, compare)
    found, wrote = atomics.update(elements, where, values, mode, compare, wanted)
    assert elements.tobytes() == expected.tobytes()
    if wanted or mode in ("cas", "xchg"):
        assert found.dtype == values.dtype and found.tobytes() == expected_found.tobytes()
    if compare is not None:
        assert wrote.tolist() == [a.tobytes() == b.tobytes() for a, b in zip(expected_found, compare, strict=True)]
    else:
        assert wrote.all()


def test_a_swap_compares_bits() -> None:
    elements = np.array([np.nan, 0.0, -0.0], np.float32)
    compare = np.array([np.nan, -0.0, -0.0], np.float32)
    _, wrote = atomics.update(elements, np.arange(3), np.ones(3, np.float32), "cas", compare, True)
    assert wrote.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("addf", np.int32), ("add", np.float32), ("xchg", np.int16), ("cas", np.float16), ("mul", np.int32)],
)
def test_what_tile_ir_does_not_have_is_refused(mode: str, dtype: Any) -> None:
    with pytest.raises(Unsupported, match=f"atomic: {mode} on elements of type {np.dtype(dtype).name}"):
        atomics.check("atomic", mode, np.dtype(dtype))


def test_blocks_update_in_the_order_of_their_lanes() -> None:
    machine = Machine()
    a = machine.tensor("a")
    before = machine.atomic(a, [3, 1, 2], [[5, 5], [5, 6], [6, 5]], values=[[1, 2], [3, 4], [5, 6]])
    assert before.tolist() == [[0, 1], [3, 0], [4, 6]]
    assert a.raw.view(np.int32)[5:7].tolist() == [12, 9]
    assert machine.kinds == []


def test_lanes_with_the_same_pointer_each_update() -> None:
    machine = Machine()
    a = machine.tensor("a")
    found = machine.memory.atomic(access(range(8), order="relaxed"), at(a, [4]), None, np.ones((1, 1), np.int32), "add")
    assert found[:, 0].tolist() == list(range(8))
    tickets = machine.memory.atomic(
        access(range(4), order="relaxed"), np.array([a.address]), None, np.array([2], np.int32), "add"
    )
    assert tickets.tolist() == [0, 2, 4, 6]
    assert a.raw.view(np.int32)[4] == 8 and machine.kinds == []


def test_only_one_block_gets_a_lock() -> None:
    machine = Machine()
    lock = machine.tensor("lock")
    got = machine.atomic(lock, [2, 0, 1], [[0], [0], [0]], values=1, mode="cas", compare=0, order="acquire")
    assert got[:, 0].tolist() == [0, 1, 1] and machine.kinds == []


def test_what_masked_out_updates_return() -> None:
    machine = Machine(poison=0x6B)
    a = machine.tensor("a")
    mask = np.array([[True, False]])
    assert machine.atomic(a, 0, [0, 1], mask=mask).tolist() == [[0, 0x6B6B6B6B]]
    assert machine.atomic(a, 0, [0, 1], values=9, mode="cas", compare=[[1, 4]], mask=mask).tolist() == [[1, 4]]
    assert a.raw.view(np.int32)[:2].tolist() == [9, 0]


def test_updates_of_no_result() -> None:
    memory = Memory()
    a = memory.allocate("a", np.zeros(4, np.float32))
    reduced = access([0, 1], "atomic_red_view_tko", order="relaxed")
    op = Op("atomic_red_view_tko", ("%t",), (TokenType(),), {}, {})
    reduced = type(reduced)(op, reduced.blocks, "relaxed", "device", reduced.context)
    memory.atomic(reduced, at(a, [[0, 0, 1], [1, 2, 2]]), None, np.full((1, 3), 0.5, np.float32), "addf")
    assert a.raw.view(np.float32).tolist() == [1, 1, 1, 0] and not list(memory.findings)


def test_outside_the_memory() -> None:
    machine = Machine(poison=0x6B)
    a = machine.tensor("a", 4)
    assert machine.atomic(a, 0, [3, 4]).tolist() == [[0, 0x6B6B6B6B]]
    assert machine.kinds == ["out of bounds"] and a.raw.view(np.int32).tolist() == [0, 0, 0, 1]
