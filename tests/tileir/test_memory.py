"""Loads and stores through addresses and pointers: values, masks, paddings, types, and what is counted."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.tileir.memory_kit import Machine, access, at, lanes

from tilewright.tileir.read.tree import Location, Op, PointerType, TileType, TokenType
from tilewright.tileir.run import pointers
from tilewright.tileir.run.memory import ALIGNMENT, GAP, Memory
from tilewright.tileir.run.registry import NeedsData, Unknown, Unsupported
from tilewright.tileir.watch.findings import (
    ASSERTION,
    KINDS,
    OUT_OF_BOUNDS,
    RACE,
    UNINITIALISED,
    Finding,
    Findings,
    block_of,
)

TYPES = (
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu,
)  # fmt: skip

# Memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("watch", [True, False])
def test_values_come_back_bit_by_bit(dtype: Any, watch: bool) -> None:
    memory = Memory(watch=watch)
    bits = np.random.default_rng(0).integers(0, 2 if dtype == np.bool_ else 256, 64 * np.dtype(dtype).itemsize)
    source = bits.astype(np.uint8).view(dtype)
    a, b = memory.allocate("a", source.copy()), memory.allocate("b", np.zeros(64, dtype), written=False)
    tile = memory.load(access([0, 1]), at(a, lanes(2, 32)).reshape(2, 4, 8), None, dtype)
    assert tile.dtype == dtype and tile.shape == (2, 4, 8) and tile.tobytes() == source.tobytes()
    memory.store(access([0, 1]), at(b, lanes(2, 32)).reshape(2, 4, 8), None, tile)
    assert b.raw.tobytes() == source.tobytes() and not list(memory.findings)


def test_a_byte_that_is_not_zero_is_true() -> None:
    memory = Memory()
    a = memory.allocate("a", np.array([0, 1, 2, 255], np.uint8))
    loaded = memory.load(access(0), at(a, range(4)), None, np.bool_)
    assert loaded.tolist() == [[False, True, True, True]] and loaded.tobytes() == b"\0\1\1\1"


def test_masks_and_fills() -> None:
    machine = Machine(poison=0x6B)
    a = machine.tensor("a", 8)
    mask = np.array([[True, False], [False, False]])
    machine.store(a, [0, 1], [[0, 1], [2, 3]], values=[[5, 6], [7, 8]], mask=mask)
    assert a.raw.view(np.int32).tolist() == [5] + [0] * 7
    wild = at(a, [[0, 10**9], [-(10**12), 2]])
    load = machine.memory.load
    assert load(access([0, 1]), wild, mask, np.int32).tolist() == [[5, 0x6B6B6B6B], [0x6B6B6B6B] * 2]
    fill = np.array([[[1, 2], [3, 4]]])[0]
    assert load(access([0, 1]), wild, mask, np.int32, fill).tolist() == [[5, 2], [3, 4]]
    assert load(access([0, 1]), wild, mask, np.int32, -1).tolist() == [[5, -1], [-1, -1]]
    assert load(access([0, 1]), wild, np.zeros((1, 1), bool), np.int32, -1).tolist() == [[-1, -1], [-1, -1]]
    assert machine.kinds == []


def test_lanes_share_what_they_need_not_tell_apart() -> None:
    machine = Machine()
    a = machine.tensor("a")
    a.raw.view(np.int32)[:] = range(64)
    assert machine.load(a, [0, 1, 2], [3, 4]).tolist() == [[3, 4]]
    mask = np.array([[True], [False], [True]])
    shared = machine.memory.load(access([0, 1, 2]), at(a, [3, 4]), mask, np.int32, 0)
    assert shared.tolist() == [[3, 4], [0, 0], [3, 4]]
    assert machine.kinds == []


def test_the_last_lane_wins() -> None:
    machine = Machine()
    a = machine.tensor("a")
    machine.store(a, [5, 3, 4], [[7], [7], [7]], values=[[50], [30], [40]])
    assert a.raw.view(np.int32)[7] == 40


def test_a_tile_over_two_tensors() -> None:
    machine = Machine()
    a, b = machine.tensor("a"), machine.tensor("b")
    addresses = np.concatenate([at(a, [1, 2]), at(b, [5])], axis=1)
    machine.memory.store(access(0), addresses, None, np.array([[1, 2, 3]], np.int32))
    assert machine.memory.load(access(0), addresses, None, np.int32).tolist() == [[1, 2, 3]]
    assert b.raw.view(np.int32)[5] == 3 and machine.kinds == []


def test_addresses_lie_apart_and_aligned() -> None:
    memory = Memory()
    made = [memory.allocate(str(n), np.zeros(n, np.int8)) for n in (1, 300, 70000, 0)]
    assert all(one.address % ALIGNMENT == 0 for one in made)
    for one, after in itertools.pairwise(made):
        assert after.start - (one.start + len(one.raw)) >= GAP >= 1 << 16


def test_the_version_tells_of_changes() -> None:
    machine = Machine()
    a = machine.tensor("a")
    seen = [machine.memory.version]

    def changed() -> bool:
        seen.append(machine.memory.version)
        return seen[-1] != seen[-2]

    machine.load(a, 0, [0])
    assert not changed()
    machine.store(a, 0, [0])
    assert changed()
    machine.atomic(a, 0, [0], mode="cas", compare=77)
    assert not changed()
    machine.atomic(a, 0, [0], values=5, mode="xchg")
    assert changed()
    machine.atomic(a, 0, [0], values=5, mode="xchg")
    assert not changed()


def test_what_has_no_address_is_refused() -> None:
    memory = Memory()
    a = memory.allocate("a", np.zeros(8, np.int8))
    with pytest.raises(Unsupported, match="load_ptr_tko: elements of type float4_e2m1fn"):
        memory.load(access(0), at(a, [0]), None, ml_dtypes.float4_e2m1fn)


# Findings ---------------------------------------------------------------------------------------------


def test_equal_findings_are_one() -> None:
    findings = Findings()
    here = Location("/k.py", 4)
    findings.add(Finding(RACE, "first", here, (0, 0, 0), "a", (1,), 2))
    findings.add(Finding(RACE, "second", here, (1, 0, 0), "a", (2,), 3))
    findings.add(Finding(RACE, "elsewhere", here, None, "b"))
    findings.add(Finding(ASSERTION, "no", here))
    assert [(one.message, one.count) for one in findings] == [("first", 5), ("elsewhere", 1), ("no", 1)]
    assert len(findings) == 3 and sum(one.kind == RACE for one in findings) == 2 and len(set(KINDS)) == len(KINDS)
    assert str(next(iter(findings))) == "race: first [k.py:4, block (0, 0, 0)] (5 times)"


def test_blocks_by_number() -> None:
    grid = (3, 4, 5)
    for number in range(60):
        x, y, z = block_of(number, grid)
        assert x + 3 * (y + 4 * z) == number and x < 3 and y < 4


# Pointers ---------------------------------------------------------------------------------------------


class Lanes:
    """As much of the interpreter's context as operations on pointers ask for."""

    def __init__(self, blocks: Any, dry: bool = False, memory: Memory | None = None) -> None:
        self.blocks, self.dry, self.grid = np.asarray(blocks), dry, (64, 1, 1)
        self.memory = memory or Memory(poison=0x6B)
        self.counted: list[tuple[str, int, list[int], int]] = []

    @property
    def lanes(self) -> int:
        return len(self.blocks)

    def loads(self, op: Op, addresses: Any, mask: Any = None) -> bool:
        return False

    def sampled(self, addresses: Any, dtype: Any) -> None:
        """Each lane loads its own data."""

    def undefined(self, op: Op) -> int:
        return self.memory.poison

    def traffic(self, op: Op, direction: str, total: int, starts: Any, run: int) -> None:
        self.counted.append((direction, total, starts.tolist(), run))


def operation(name: str, pointer: str, element: str = "f32", /, **attributes: Any) -> Op:
    pointers_ = TileType((8,), PointerType(element))
    result = pointers_ if name == "offset" else TileType((8,), element)
    attributes = {"memory_ordering_semantics": "weak", "memory_scope": None, **attributes}
    return Op(name, ("%0", "%1"), (result, TokenType()), {}, {pointer: (pointers_,)}, attributes)


def test_offset_counts_elements() -> None:
    base, steps = np.array([[1 << 40]]), np.array([[1, -2], [3, 0]], np.int32)
    for element, width in (("f64", 8), ("bf16", 2), ("i1", 1)):
        moved = pointers.offset(operation("offset", "ptr", element), base, steps)
        assert (moved == (1 << 40) + steps.astype(np.int64) * width).all() and moved.dtype == np.int64
    with pytest.raises(Unsupported, match="offset: elements of type i4"):
        pointers.offset(operation("offset", "ptr", "i4"), base, steps)


def test_pointers_load_and_store() -> None:
    context: Any = Lanes([0, 1])
    a = context.memory.allocate("a", np.arange(64, dtype=np.float32))
    addresses = at(a, lanes(2, 8))
    mask = (np.arange(8) < 6)[None]
    load, store = operation("load_ptr_tko", "source"), operation("store_ptr_tko", "destination")
    tile, token = pointers.load_ptr_tko(context, load, addresses)
    assert token is None and tile.tolist() == lanes(2, 8).tolist()
    tile, _ = pointers.load_ptr_tko(context, load, addresses, mask, np.full((1, 8), -1, np.float32))
    assert tile[:, 5:].tolist() == [[5, -1, -1], [13, -1, -1]]
    tile, _ = pointers.load_ptr_tko(context, load, addresses, mask)
    assert tile[0, 6:].tobytes() == b"\x6b" * 8
    assert pointers.store_ptr_tko(context, store, addresses, np.full((1, 8), 3, np.float32), mask) is None
    assert a.raw.view(np.float32)[:17].tolist() == [3] * 6 + [6, 7] + [3] * 6 + [14, 15, 16]
    where = a.address
    assert context.counted == [
        ("load", 64, [where], 64),
        ("load", 48, [where, where + 32], 24),
        ("load", 48, [where, where + 32], 24),
        ("store", 48, [where, where + 32], 24),
    ]
    assert not list(context.memory.findings)


def test_traffic_of_gathers() -> None:
    context: Any = Lanes([0, 1, 2])
    a = context.memory.allocate("a", np.zeros(64, np.float32))
    load = operation("load_ptr_tko", "source")
    pointers.load_ptr_tko(context, load, at(a, [9, 3, 4, 9, 5]))  # shared by three lanes
    one = a.address
    assert context.counted == [("load", 60, [one + 36], 4), ("load", 0, [one + 12], 12)]
    context.counted.clear()
    pointers.load_ptr_tko(context, load, at(a, [9, 3]), np.zeros((1, 2), bool))
    assert context.counted == []


def test_a_dry_run_touches_nothing() -> None:
    context: Any = Lanes([0, 1], dry=True)
    a = context.memory.allocate("a", np.zeros(64, np.float32), written=False)
    addresses = at(a, lanes(2, 8))
    unknown = Unknown((1, 8), np.float32)
    tile, _ = pointers.load_ptr_tko(context, operation("load_ptr_tko", "source"), addresses)
    assert isinstance(tile, Unknown) and tile.shape == (1, 8) and tile.dtype == np.float32
    pointers.store_ptr_tko(context, operation("store_ptr_tko", "destination"), addresses, unknown)
    rmw = operation("atomic_rmw_tko", "pointers", mode="addf", memory_ordering_semantics="relaxed")
    tile, _ = pointers.atomic(context, rmw, addresses, arg=unknown)
    assert isinstance(tile, Unknown)
    assert [(way, total) for way, total, _, _ in context.counted] == [("load", 64), ("store", 64), ("atomic", 64)]
    assert not list(context.memory.findings) and not a.raw.any()
    for source, mask in ((unknown, None), (addresses, Unknown((1, 8), bool))):
        with pytest.raises(NeedsData, match="load_ptr_tko"):
            pointers.load_ptr_tko(context, operation("load_ptr_tko", "source"), source, mask)


def test_pointers_update() -> None:
    context: Any = Lanes([0, 1])
    a = context.memory.allocate("a", np.arange(8, dtype=np.float32))
    order = {"memory_ordering_semantics": "acq_rel", "memory_scope": "device"}
    rmw, cas = (operation(f"atomic_{one}_tko", "pointers", mode="addf", **order) for one in ("rmw", "cas"))
    found, token = pointers.atomic(context, rmw, at(a, [2, 2]), arg=np.array([[1, 2]], np.float32))
    assert token is None and found.tolist() == [[2, 3], [5, 6]] and a.raw.view(np.float32)[2] == 8
    found, _ = pointers.atomic(
        context, cas, at(a, [2, 3]), np.array([[True, False]]),
        cmp=np.array([[8, 5]], np.float32), val=np.array([[-1, -1]], np.float32),
    )  # fmt: skip
    assert found.tolist() == [[8, 5], [-1, 5]] and a.raw.view(np.float32)[2:4].tolist() == [-1, 3]


def test_globals_and_local_memory() -> None:
    context: Any = Lanes([4, 6])
    context.memory.globals["table"] = context.memory.allocate("table", np.arange(4))
    got = pointers.get_global(context, operation("get_global", "x", name="table"))
    assert got.tolist() == [context.memory.globals["table"].address]
    made = Op(
        "alloca",
        ("%7",),
        (TileType((), PointerType("f32")),),
        {},
        {},
        {"num_elem": 8, "alignment": 64, "global_": False},
    )
    first, second = pointers.alloca(context, made), pointers.alloca(context, made)
    assert first.shape == (2,) and len({*first.tolist(), *second.tolist()}) == 4 and not (first % 64).any()
    load, store = operation("load_ptr_tko", "source"), operation("store_ptr_tko", "destination")
    addresses = first[:, None] + 4 * np.arange(8)
    pointers.load_ptr_tko(context, load, addresses)
    pointers.store_ptr_tko(context, store, addresses, np.zeros((1, 8), np.float32))
    pointers.load_ptr_tko(context, load, addresses + 4)
    assert [(one.kind, one.count) for one in context.memory.findings] == [(UNINITIALISED, 16), (OUT_OF_BOUNDS, 2)]
