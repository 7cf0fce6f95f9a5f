"""Each kind of mistake is found, with its place; what is right is not reported, in any order of blocks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.tileir.memory_kit import Machine, access, at, lanes, orders

from tilewright.tileir.run.memory import Allocation
from tilewright.tileir.watch.findings import ALIAS, MISALIGNED, OUT_OF_BOUNDS, RACE, UNINITIALISED

# Races ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", orders([0, 1, 2, 3]))
def test_blocks_that_write_apart_and_read_the_same_inputs(order: list[int]) -> None:
    machine = Machine()
    inputs, outputs = machine.tensor("a"), machine.tensor("c", written=False)
    for block in order:
        machine.load(inputs, block, range(16))
        machine.store(outputs, block, np.arange(16) + 16 * block)
        machine.load(outputs, block, np.arange(16) + 16 * block)
    machine.load(inputs, order, range(16))
    machine.load(inputs, order, lanes(4, 16))
    assert machine.findings == []


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2])))
def test_two_blocks_write_one_element(order: tuple[int, int]) -> None:
    machine = Machine()
    out = machine.memory.allocate("out", np.zeros((8, 8), np.int32), written=False)
    for block in order:
        machine.store(out, block, np.arange(10) + 10 * block - block, line=40 + block)
    (found,) = machine.findings
    assert (found.kind, found.tensor, found.index, found.count) == (RACE, "out", (2, 2), 1)
    assert found.block == (order[1], 0, 0) and found.location is not None
    assert found.location.line == 40 + order[1]
    assert f"out[2, 2], which block ({order[0]}, 0, 0) writes" in found.message


@pytest.mark.parametrize("together", [[1, 2], [2, 1], [3, 1, 2]])
def test_two_lanes_of_one_store_meet(together: list[int]) -> None:
    machine = Machine()
    out = machine.tensor("out", written=False)
    elements = np.stack([np.arange(4) * (lane + 1) for lane in range(len(together))])
    machine.store(out, together, elements, values=7)
    assert machine.kinds == [], "equal values: no order gives another result"
    out = machine.tensor("other", written=False)
    machine.store(out, together, elements, values=np.array(together)[:, None] + np.zeros((1, 4), int))
    assert set(machine.kinds) == {RACE}
    assert machine.findings[0].index == (0,) or machine.findings[0].index == (2,)
    assert len(machine.findings) == 1


def test_all_lanes_store_to_the_same() -> None:
    machine = Machine()
    out = machine.tensor("out", written=False)
    machine.store(out, [4], [[3]], values=[[1]])
    assert machine.kinds == []
    machine.store(machine.tensor("other"), [0, 1, 2], [[3]], values=[[1]])
    assert machine.kinds == []
    machine.store(machine.tensor("third"), [0, 1, 2], [[3], [3], [3]], values=[[1], [1], [2]])
    assert machine.kinds == [RACE]


@pytest.mark.parametrize("values", list(itertools.product((1, 2), repeat=3)))
def test_stores_of_equal_bits_by_several_blocks_are_no_race(values: tuple[int, ...]) -> None:
    machine = Machine()
    out = machine.tensor("out", written=False)
    for block, value in enumerate(values):
        machine.store(out, block, [3], values=value)
    assert set(machine.kinds) == ({RACE} if len(set(values)) > 1 else set())


def test_a_read_of_what_others_store_is_a_race_whatever_they_store() -> None:
    machine = Machine()
    out = machine.tensor("out")
    machine.store(out, 1, [3], values=7)
    machine.store(out, 2, [3], values=7)
    machine.load(out, 3, [3])
    assert machine.kinds == [RACE]


def test_one_store_writes_an_element_twice() -> None:
    machine = Machine()
    out = machine.tensor("out")
    machine.store(out, 1, [5, 6, 5], values=[[7, 7, 7]])
    machine.store(out, [2, 3], [[10, 11, 10], [12, 13, 14]], values=[[1, 2, 1], [3, 4, 5]])
    assert machine.kinds == []
    machine.store(out, 1, [5, 6, 5], values=[[7, 7, 8]])
    (found,) = machine.findings
    assert (found.kind, found.index, found.block) == (RACE, (5,), (1, 0, 0))
    assert "writes this element twice" in found.message


@pytest.mark.parametrize("write_first", [True, False])
def test_one_block_reads_what_another_writes(write_first: bool) -> None:
    machine = Machine()
    data = machine.tensor("data")

    def write() -> None:
        machine.store(data, 9, range(8), line=1)

    def read() -> None:
        machine.load(data, [9, 14], [range(7), range(7, 14)], line=2)

    for step in (write, read) if write_first else (read, write):
        step()
    (found,) = machine.findings
    assert (found.kind, found.index) == (RACE, (7,))
    assert found.location is not None and found.location.line == (2 if write_first else 1)
    other = (1, 2, 0) if write_first else (2, 3, 0)
    assert found.block == ((2, 3, 0) if write_first else (1, 2, 0))
    assert f"block {other} {'writes' if write_first else 'reads'}" in found.message


def test_a_write_after_many_reads() -> None:
    machine = Machine()
    data = machine.tensor("data")
    machine.load(data, [0, 1, 2], [range(8)])
    machine.store(data, 1, [3])
    assert machine.kinds == [RACE]
    assert "another block reads" in machine.findings[0].message


@pytest.mark.parametrize("atomic_first", [True, False])
@pytest.mark.parametrize("writes", [True, False])
def test_atomic_against_plain(atomic_first: bool, writes: bool) -> None:
    machine = Machine()
    data = machine.tensor("data")
    plain = machine.store if writes else machine.load
    steps: list[Any] = [lambda: machine.atomic(data, 1, [4]), lambda: plain(data, 2, [4])]
    for step in steps if atomic_first else steps[::-1]:
        step()
    (found,) = machine.findings
    assert (found.kind, found.index) == (RACE, (4,))
    if atomic_first:
        assert "block (1, 0, 0) writes atomically" in found.message


def test_atomics_among_themselves_and_one_block_alone() -> None:
    machine = Machine()
    data = machine.tensor("data")
    machine.atomic(data, [0, 1, 2], [[4], [4], [5]])
    machine.atomic(data, [3], [[4]], order="acq_rel")
    machine.load(data, 5, [4], order="acquire")
    machine.load(data, 6, [4], order="relaxed")
    machine.store(data, 6, [4], order="relaxed")
    for _ in range(2):
        machine.store(data, 7, [20])
        machine.load(data, 7, [20])
        machine.atomic(data, 7, [20])
    assert machine.kinds == []


def test_the_earlier_of_two_atomics_counts_too() -> None:
    machine = Machine()
    data = machine.tensor("data")
    machine.atomic(data, [0, 1], [[4], [4]])
    machine.load(data, 1, [4])
    assert machine.kinds == [RACE]


def test_atomics_of_a_block_scope_do_not_reach_other_blocks() -> None:
    machine = Machine()
    data = machine.tensor("data")
    machine.atomic(data, 0, [4], scope="tl_blk")
    machine.atomic(data, 0, [4], scope="tl_blk")
    assert machine.kinds == []
    machine.atomic(data, 1, [4], scope="tl_blk")
    assert machine.kinds == [RACE]


def test_accesses_of_other_widths_meet() -> None:
    machine = Machine()
    data = machine.tensor("data")
    machine.store(data, 1, [4])
    machine.memory.load(access(2), np.array([[data.address + 18]]), None, np.int8)
    assert machine.kinds == [RACE]
    machine = Machine()
    data = machine.tensor("data")
    machine.store(data, 1, [5])
    machine.memory.load(access([2, 3]), np.array([[data.address], [data.address + 16]]), None, np.int64)
    assert machine.kinds == [RACE] and machine.findings[0].block == (3, 0, 0)


# Synchronisation --------------------------------------------------------------------------------------


def locked_sum(machine: Machine, data: Allocation, lock: Allocation, block: int, acquire: str, release: str) -> None:
    """Adds to data[0:8] under a lock, as a split-K matmul does."""
    while machine.atomic(lock, block, [0], values=1, mode="cas", compare=0, order=acquire)[0, 0] == 1:
        raise AssertionError("the lock is free")
    total = machine.load(data, block, range(8))
    machine.store(data, block, range(8), values=total + block)
    machine.atomic(lock, block, [0], values=0, mode="xchg", order=release)


@pytest.mark.parametrize("order", orders([0, 1, 2, 3, 4]))
def test_a_lock_orders_what_it_guards(order: list[int]) -> None:
    machine = Machine()
    data, lock = machine.tensor("data"), machine.tensor("lock")
    for block in order:
        locked_sum(machine, data, lock, block, "acquire", "release")
    assert machine.kinds == []
    assert (data.words(4).view(np.int32)[:8] == 10).all()


@pytest.mark.parametrize(
    ("acquire", "release"), [("relaxed", "release"), ("acquire", "relaxed"), ("relaxed", "relaxed")]
)
def test_a_lock_without_order_does_not(acquire: str, release: str) -> None:
    machine = Machine()
    data, lock = machine.tensor("data"), machine.tensor("lock")
    for block in range(3):
        locked_sum(machine, data, lock, block, acquire, release)
    assert set(machine.kinds) == {RACE}
    assert {one.tensor for one in machine.findings} == {"data"}


def test_locks_are_apart() -> None:
    machine = Machine()
    data, lock, other = machine.tensor("data"), machine.tensor("lock"), machine.tensor("other")
    locked_sum(machine, data, lock, 0, "acquire", "release")
    locked_sum(machine, data, other, 1, "acquire", "release")
    assert RACE in machine.kinds


def counted(machine: Machine, order: list[int], memory_order: str) -> None:
    """Each block writes its part; the block that counts last reads all parts and writes the result."""
    parts, count = machine.tensor("parts", written=False), machine.tensor("count")
    result = machine.tensor("result", written=False)
    for block in order:
        machine.store(parts, block, np.arange(8) + 8 * block)
        before = machine.atomic(count, block, [0], order=memory_order)
        if before[0, 0] == len(order) - 1:
            machine.load(parts, block, range(8 * len(order)))
            machine.store(result, block, range(8))
            machine.store(count, block, [0])


@pytest.mark.parametrize("order", orders([0, 1, 2, 3]))
def test_the_last_block_reduces(order: list[int]) -> None:
    machine = Machine()
    counted(machine, order, "acq_rel")
    assert machine.kinds == []


@pytest.mark.parametrize("memory_order", ["relaxed", "acquire", "release"])
def test_the_last_block_reduces_without_order(memory_order: str) -> None:
    machine = Machine()
    counted(machine, [0, 1, 2, 3], memory_order)
    assert RACE in machine.kinds
    assert {one.tensor for one in machine.findings} <= {"parts", "count"}


def test_lanes_of_one_ordered_access_come_one_after_the_other() -> None:
    machine = Machine()
    parts, count = machine.tensor("parts", written=False), machine.tensor("count")
    machine.store(parts, [2, 0, 1], lanes(3, 8))
    before = machine.atomic(count, [2, 0, 1], [[0], [0], [0]], order="acq_rel")
    assert before[:, 0].tolist() == [0, 1, 2]
    machine.load(parts, 1, range(24))
    assert machine.kinds == []
    machine.load(parts, 0, range(24))
    assert machine.kinds == [RACE]


def test_a_flag_passes_what_was_written_before_it() -> None:
    machine = Machine()
    data, flag = machine.tensor("data"), machine.tensor("flag")
    machine.store(data, 0, range(8))
    machine.store(flag, 0, [0], order="release")
    machine.store(data, 0, [9])
    machine.load(flag, 1, [0], order="acquire")
    machine.load(data, 1, range(8))
    machine.store(data, 1, range(8))
    assert machine.kinds == []
    machine.load(data, 1, [9])
    assert machine.kinds == [RACE] and machine.findings[0].index == (9,)


def test_order_passes_through_a_third_block_and_a_relaxed_update() -> None:
    machine = Machine()
    data, flag = machine.tensor("data"), machine.tensor("flag")
    machine.store(data, 0, [1])
    machine.atomic(flag, 0, [0], order="release")
    machine.atomic(flag, 1, [0], order="relaxed")  # continues the release
    machine.load(flag, 2, [0], order="acquire")
    machine.atomic(flag, 2, [5], order="release")
    machine.load(flag, 3, [5], order="acquire")
    machine.load(data, 3, [1])
    assert machine.kinds == []
    machine.store(flag, 4, [5], order="relaxed")  # ends it
    machine.load(flag, 6, [5], order="acquire")
    machine.load(data, 6, [1])
    assert machine.kinds == [RACE]


def test_a_release_continues_the_one_before() -> None:
    machine = Machine()
    data, flag = machine.tensor("data"), machine.tensor("flag")
    for block in (0, 1):
        machine.store(data, block, [block])
        machine.atomic(flag, block, [0], order="release")
    machine.load(flag, 2, [0], order="acquire")
    machine.load(data, 2, [0, 1])
    assert machine.kinds == []


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("barrier", ["acq_rel", "relaxed"])
def test_a_grid_barrier_separates_reads_from_writes(early: bool, barrier: str) -> None:
    """``early``: the reads come before anything was released, when no epochs are kept."""
    machine = Machine()
    data, count = machine.tensor("data"), machine.tensor("count")
    if not early:
        machine.atomic(count, 20, [7], order="release")
    blocks = [0, 1, 2, 3]
    for block in blocks:
        machine.load(data, block, range(32))
    for block in blocks:
        machine.atomic(count, block, [0], order=barrier)
    for block in blocks:
        machine.load(count, block, [0], order="acquire" if barrier == "acq_rel" else barrier)
    for block in blocks:
        machine.store(data, block, np.arange(8) + 8 * block)
        machine.load(data, block, np.arange(8) + 8 * block)
    assert machine.kinds == ([] if barrier == "acq_rel" else [RACE])


def test_a_reader_that_missed_the_barrier() -> None:
    machine = Machine()
    data, count = machine.tensor("data"), machine.tensor("count")
    machine.atomic(count, 20, [7], order="release")
    machine.load(data, [0, 1, 2], np.tile(np.arange(16), (3, 1)))
    for block in (0, 1):
        machine.atomic(count, block, [0], order="acq_rel")
    machine.store(data, 1, range(8))
    assert machine.kinds == [RACE]


@pytest.mark.parametrize("late", [0, 3])
def test_a_shared_reader_that_missed_the_barrier(late: int) -> None:
    """The tile that all lanes read is entered once for them all, but each of them has to have synchronised."""
    machine = Machine()
    data, count = machine.tensor("data"), machine.tensor("count")
    machine.load(data, [0, 1, 2, 3], range(16))
    for block in {0, 1, 2, 3} - {late}:
        machine.atomic(count, block, [0], order="acq_rel")
    machine.load(count, 2, [0], order="acquire")
    machine.store(data, 2, range(8))
    assert machine.kinds == [RACE]


def test_shared_accesses_once_there_are_clocks() -> None:
    machine = Machine()
    data, flag = machine.tensor("data"), machine.tensor("flag")
    machine.store(data, 0, range(8))
    machine.atomic(flag, 0, [0], order="release")
    machine.load(flag, [1, 2, 3], [0], order="acquire")
    machine.load(data, [1, 2, 3], range(8))
    assert machine.kinds == []
    machine.load(data, [1, 2, 4], range(8))
    assert machine.kinds == [RACE] and machine.findings[0].block == (0, 1, 0)


def test_a_further_launch_comes_after_the_first() -> None:
    machine = Machine()
    data = machine.tensor("data", written=False)
    machine.store(data, 0, range(8))
    machine.memory.next_launch()
    machine.load(data, [1, 2], range(8))
    assert machine.kinds == []
    machine.store(data, 1, [0])
    assert machine.kinds == [RACE]


# Initialisation ---------------------------------------------------------------------------------------


def test_reading_what_nobody_wrote() -> None:
    machine = Machine()
    out = machine.tensor("out", written=False)
    machine.store(out, 0, range(8))
    machine.load(out, 0, range(8))
    assert machine.kinds == []
    machine.load(out, 0, range(4, 12), line=33)
    (found,) = machine.findings
    assert (found.kind, found.tensor, found.index, found.count) == (UNINITIALISED, "out", (8,), 4)
    assert found.location is not None and found.location.line == 33
    machine.load(out, 0, range(4, 12), line=33)
    assert len(machine.findings) == 1 and machine.findings[0].count == 8


def test_what_is_masked_out_is_not_read() -> None:
    machine = Machine()
    out = machine.tensor("out", written=False)
    machine.store(out, 0, range(16), mask=np.arange(16)[None] < 8)
    machine.load(out, 0, range(16), mask=np.arange(16)[None] < 8)
    assert machine.kinds == []
    machine.load(out, 0, range(16), mask=np.arange(16)[None] < 9)
    assert machine.kinds == [UNINITIALISED]


def test_an_update_reads_and_then_has_written() -> None:
    machine = Machine()
    out = machine.memory.allocate("out", np.zeros(8, np.int32), written=np.arange(8) < 4)
    machine.atomic(out, 0, range(4))
    assert machine.kinds == []
    machine.atomic(out, 0, range(8))
    machine.load(out, 0, range(8))
    assert [(one.kind, one.count) for one in machine.findings] == [(UNINITIALISED, 4)]


# Bounds and alignment ---------------------------------------------------------------------------------


@pytest.mark.parametrize("watch", [True, False])
def test_out_of_bounds(watch: bool) -> None:
    machine = Machine(watch=watch, poison=0x6B)
    raw = np.full(1024, 0xA5, np.uint8)
    array = np.ndarray((4, 8), np.int32, raw, 256)
    array[:] = np.arange(32).reshape(4, 8)
    tensor = machine.memory.allocate("t", array, within=raw)
    loaded = machine.load(tensor, [5], np.arange(30, 34)[None], line=3)
    assert loaded.tolist() == [[30, 31, 0x6B6B6B6B, 0x6B6B6B6B]]
    (found,) = machine.findings
    assert (found.kind, found.tensor, found.index, found.count) == (OUT_OF_BOUNDS, "t", (4, 0), 2)
    assert found.block == (1, 1, 0) and "outside its shape (4, 8)" in found.message
    machine.store(tensor, [5], np.arange(-1, 3)[None], values=9, line=4)
    assert machine.findings[1].index == (-1, 7) and machine.findings[1].count == 1
    assert (raw[:256] == 0xA5).all() and array[0, :4].tolist() == [9, 9, 9, 3]
    assert machine.kinds == [OUT_OF_BOUNDS] * 2


def test_far_from_everything() -> None:
    machine = Machine()
    a, b = machine.tensor("a"), machine.tensor("b")
    addresses = np.array([[0, a.address, a.address + 400, b.address, b.address - 8, -8, 2**62]])
    loaded = machine.memory.load(access(0), addresses, None, np.int32)
    assert (loaded[0] == 0).tolist() == [False, True, False, True, False, False, False]
    assert [(one.kind, one.tensor, one.count) for one in machine.findings] == [
        (OUT_OF_BOUNDS, "a", 3),
        (OUT_OF_BOUNDS, "b", 2),
    ]
    machine.memory.store(access(0), addresses, None, np.full((1, 7), 3, np.int32))
    assert a.raw[:4].view(np.int32) == 3 and b.raw[:4].view(np.int32) == 3


def test_between_the_elements_of_a_sliced_tensor() -> None:
    machine = Machine()
    base = np.arange(64, dtype=np.int32).reshape(8, 8)
    sliced = machine.memory.allocate("s", base[1:4, ::2], within=base)
    assert machine.load(sliced, 0, [0, 2, 8, 22]).tolist() == [[8, 10, 16, 30]]
    assert machine.kinds == []
    machine.store(sliced, 0, [2, 3], values=-1)
    (found,) = machine.findings
    assert (found.kind, found.tensor) == (OUT_OF_BOUNDS, "s")
    assert base[1].tolist() == [8, 9, -1, 11, 12, 13, 14, 15]


def test_a_transposed_tensor_is_named_by_its_own_index() -> None:
    machine = Machine()
    base = np.zeros((8, 4), np.int32)
    view = machine.memory.allocate("t", base.T, within=base, written=False)
    machine.load(view, 0, [6])
    assert machine.findings[0].index == (2, 1)


def test_misaligned_tensor() -> None:
    machine = Machine()
    raw = np.zeros(256, np.uint8)
    array = np.ndarray((8,), np.int32, raw, 1)
    array[:] = range(8)
    tensor = machine.memory.allocate("m", array, within=raw)
    assert tensor.address % 4 == 1
    assert machine.load(tensor, 0, range(8)).tolist() == [list(range(8))]
    machine.store(tensor, 0, range(8), values=np.arange(8)[None] + 5)
    assert array.tolist() == list(range(5, 13))
    machine.atomic(tensor, 0, [3, 3], values=10)
    assert array[3] == 28
    assert set(machine.kinds) == {MISALIGNED} and machine.findings[0].index == (0,)
    assert "no multiple of 4" in machine.findings[0].message


def test_an_access_between_two_elements() -> None:
    machine = Machine()
    tensor = machine.tensor("a")
    machine.memory.load(access(0), np.array([[tensor.address, tensor.address + 6]]), None, np.int32)
    assert [(one.kind, one.index) for one in machine.findings] == [(MISALIGNED, (1,))]


# Aliases ----------------------------------------------------------------------------------------------


def overlapping(machine: Machine, may_alias: bool = False) -> tuple[Allocation, Allocation]:
    base = np.zeros(64, np.int32)
    a = machine.memory.allocate("a", base[:40], within=base)
    return a, machine.memory.allocate("b", base[32:], same_memory_as=a, may_alias=may_alias)


@pytest.mark.parametrize("read_first", [True, False])
def test_two_tensors_over_the_same_elements(read_first: bool) -> None:
    machine = Machine()
    a, b = overlapping(machine)
    steps: list[Any] = [lambda: machine.load(a, 0, range(40), line=1), lambda: machine.store(b, 0, range(4), line=2)]
    for step in steps if read_first else steps[::-1]:
        step()
    (found,) = machine.findings
    assert found.kind == ALIAS and found.count == 4
    assert (found.tensor, found.index) == (("b", (0,)) if read_first else ("a", (32,)))
    assert f"also accesses as {'a' if read_first else 'b'}" in found.message


def test_overlapping_tensors_that_are_only_read_or_touched_apart_or_may_alias() -> None:
    machine = Machine()
    a, b = overlapping(machine)
    machine.load(a, 0, range(40))
    machine.load(b, 0, range(8))
    machine.store(b, 0, range(8, 32))
    assert machine.kinds == []
    machine = Machine()
    a, b = overlapping(machine, may_alias=True)
    machine.store(a, 0, range(40))
    machine.store(b, 0, range(32))
    assert machine.kinds == []


def test_races_are_seen_through_both_names() -> None:
    machine = Machine()
    a, b = overlapping(machine, may_alias=True)
    machine.store(a, 0, [33])
    machine.load(b, 1, [1])
    assert machine.kinds == [RACE]


def test_names_over_the_same_memory_with_other_elements() -> None:
    machine = Machine()
    base = np.zeros(64, np.int32)
    a = machine.memory.allocate("a", base, written=np.arange(64) < 8)
    b = machine.memory.allocate("b", base.view(np.int16)[1::2], same_memory_as=a, may_alias=True)
    machine.load(b, 0, [0, 2, 14])
    assert machine.kinds == []
    machine.memory.load(access(0), at(b, [16]), None, np.int16)
    assert machine.kinds == [UNINITIALISED]


# Local memory -----------------------------------------------------------------------------------------


def test_local_memory_is_its_blocks_own() -> None:
    machine = Machine()
    local = machine.memory.allocate_local("local", (16, 4), 128, np.array([3, 5]))
    base = local.address + np.arange(2)[:, None] * local.strides[0]
    assert (base % 128 == 0).all()
    inside = base + 4 * np.arange(16)
    machine.memory.store(access([3, 5]), inside, None, np.arange(32, dtype=np.int32).reshape(2, 16))
    assert machine.memory.load(access([3, 5]), inside, None, np.int32)[1, 0] == 16
    assert machine.kinds == []
    machine.memory.load(access([5, 3]), inside, None, np.int32)
    assert machine.kinds == [OUT_OF_BOUNDS] and machine.findings[0].count == 32
    machine.memory.load(access([3, 5], line=9), inside + 4, None, np.int32)
    assert [(one.kind, one.count) for one in machine.findings] == [(OUT_OF_BOUNDS, 32), (OUT_OF_BOUNDS, 2)]


def test_local_memory_begins_uninitialised_and_may_be_shared() -> None:
    machine = Machine()
    local = machine.memory.allocate_local("local", (16, 4), 4, np.array([3, 5]), private=False)
    machine.memory.load(access([3]), local.address + np.arange(2)[None] * 4, None, np.int32)
    machine.memory.store(access([5]), local.address + np.arange(1)[None] * 4, None, np.ones((1, 1), np.int32))
    assert machine.kinds == [UNINITIALISED, RACE]
