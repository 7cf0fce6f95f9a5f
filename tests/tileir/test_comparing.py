"""Comparing Tile IR: which lines match, who waits for whom, what counts as a change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tileir.build import Builder

from tilewright.machine_code.cubin import instruction_mix
from tilewright.tileir.analysis.alignment import aligned
from tilewright.tileir.analysis.comparing import Comparison, Version, compare
from tilewright.tileir.analysis.tokens import TokenChains
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import (
    KernelEntry,
    Location,
    Op,
    PartitionViewType,
    PointerType,
    TensorViewType,
    TileType,
    TokenType,
    Type,
)

# Lines ------------------------------------------------------------------------------------------------

KERNEL = "import x\n\n\n@kernel\ndef f(a, b):\n    t = load(a, (0,), (4,))\n    store(b, (0,), t)\n"


def test_unchanged_lines_match_although_their_numbers_shift() -> None:
    after = KERNEL.replace("import x\n", "import x\nimport y\n").replace("    store", "    u = t + 1\n    store")
    lines = aligned(KERNEL, after, 5, 6)
    assert (lines[5], lines[6], lines[7]) == (6, 7, 9)
    assert 8 not in lines.values()


def test_a_changed_line_matches_the_line_that_it_was() -> None:
    after = KERNEL.replace("load(a, (0,), (4,))", "gather(a, (0,))")
    assert aligned(KERNEL, after, 5, 5)[6] == 6


def test_a_line_that_moves_into_a_loop_is_still_that_line() -> None:
    after = KERNEL.replace("    t = load", "    for i in range(2):\n        t = load")
    assert aligned(KERNEL, after, 5, 5)[6] == 7


def test_two_kernels_of_one_file_match_line_by_line() -> None:
    both = KERNEL + KERNEL.replace("def f", "def g").removeprefix("import x\n\n\n")
    lines = aligned(both, both, 5, 9)
    assert (lines[5], lines[6], lines[7]) == (9, 10, 11)
    assert lines[1] == 1


@given(st.lists(st.sampled_from(["a = 1", "b = 2", "c(a, b)", ""]), max_size=12), st.data())
def test_matches_ascend_and_an_equal_text_matches_itself(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines)
    assert aligned(text, text) == {n: n for n in range(1, len(text.splitlines()) + 1)}
    other = data.draw(st.permutations(lines))
    pairs = list(aligned(text, "\n".join(other)).items())
    assert pairs == sorted(pairs) and len({after for _, after in pairs}) == len(pairs)


# Chains of hand-made operations -----------------------------------------------------------------------

TILE, TOKEN = TileType((4,), "f32"), TokenType()
VIEW = PartitionViewType((4,), (0,), None, TensorViewType((None,), "f32", (1,)))


class Maker:
    """Writes one operation after another, each on a line of its own unless told."""

    def __init__(self) -> None:
        self.count = 0

    def op(self, name: str, results: dict[str, Type], line: int = 0, /, regions: tuple = (), **operands) -> Op:  # type: ignore[type-arg, no-untyped-def]
        self.count += 1
        attributes = operands.pop("attributes", {})
        tuples = {key: value if isinstance(value, tuple) else (value,) for key, value in operands.items()}
        types = {"view": (VIEW,)} if "view" in tuples else {}
        place = Location("/k.py", line or self.count)
        return Op(name, tuple(results), tuple(results.values()), tuples, types, attributes, regions, place, self.count)

    def load(self, token: str, line: int = 0, **attributes: object) -> Op:
        name = f"l{self.count}"
        results = {f"%{name}": TILE, f"%{name}t": TOKEN}
        return self.op("load_view_tko", results, line, view="%v", token=token, attributes=attributes)

    def store(self, token: str, line: int = 0) -> Op:
        return self.op("store_view_tko", {f"%s{self.count}t": TOKEN}, line, view="%v", token=token)


def entry(*body: Op) -> KernelEntry:
    return KernelEntry("k", (("%p", TileType((), PointerType("f32"))),), body, {}, Location("/k.py", 1))


def differences(before: KernelEntry, after: KernelEntry) -> Comparison:
    return compare(Version(before), Version(after))


def test_joined_tokens_are_followed() -> None:
    make = Maker()
    first = make.op("make_token", {"%0": TOKEN})
    loads = make.load("%0"), make.load("%0")
    joined = make.op("join_tokens", {"%j": TOKEN}, tokens=("%0", loads[0].results[1], loads[1].results[1]))
    store = make.store("%j")
    chains = TokenChains(entry(first, *loads, joined, store))
    assert [wait.op for wait in chains.waits(store)] == list(loads)
    assert chains.waits(loads[0]) == ()
    assert (chains.length(loads[1]), chains.length(store)) == (0, 1)


@contextmanager
def loop(b: Builder, start: object) -> Iterator[tuple]:  # type: ignore[type-arg]
    zero, two, one = (b.constant("i32", n) for n in (0, 2, 1))
    loop = b.nested("For", "token", lowerBound=zero, upperBound=two, step=one, initValues=[start])
    with loop as nested, nested.block("i32", "token") as (_, carried):
        yield nested, carried


def printed(b: Builder, token: object, line: int) -> object:
    with b.at(Location("/tests/kernel.py", line)):
        return b.op("PrintTko", "token", args=[], token=token, str=f"{line}")


def test_a_loop_carries_its_tokens() -> None:
    with Builder() as b, b.entry("kernel"):
        before = printed(b, b.some("token"), 2)
        with loop(b, before) as (nested, carried):
            b.op("Continue", operands=[printed(b, carried, 4)])
        printed(b, nested.results[0], 5)
    found = read_bytecode(b.code).entry()
    chains = TokenChains(found)
    first, inside, last = chains.ops
    assert {(w.op, w.earlier_iteration) for w in chains.waits(inside)} == {(first, False), (inside, True)}
    assert {(w.op, w.earlier_iteration) for w in chains.waits(last)} == {(first, False), (inside, False)}
    assert [chains.length(op) for op in chains.ops] == [0, 1, 2]


def test_both_ways_of_a_branch_are_waited_for() -> None:
    with Builder() as b, b.entry("kernel"):
        start = b.some("token")
        with b.nested("If", "token", condition=b.constant("i1", 1)) as branch:
            with branch.block():
                b.op("Yield", operands=[printed(b, start, 3)])
            with branch.block():
                b.op("Yield", operands=[start])
        printed(b, branch.results[0], 6)
    chains = TokenChains(read_bytecode(b.code).entry())
    inside, last = chains.ops
    assert [wait.op for wait in chains.waits(last)] == [inside]


def in_order(make: Maker, *, store_first: bool) -> KernelEntry:
    token = make.op("make_token", {"%0": TOKEN}, 2)
    if store_first:
        store = make.store("%0", 3)
        return entry(token, store, make.load(store.results[0], 4))
    load = make.load("%0", 4)
    return entry(token, load, make.store(load.results[1], 3))


def test_who_waits_for_whom_is_compared_by_operation() -> None:
    found = differences(in_order(Maker(), store_first=False), in_order(Maker(), store_first=True))
    assert [str(one) for one in found.chains] == [
        "store at line 3 waits no longer for load at line 4 (before); its chain is shorter: 1 → 0",
        "load at line 4 now waits for store at line 3; its chain is longer: 0 → 1",
    ]
    assert not found.lines and not found.accesses and not found.identical


def test_what_is_waited_for_by_way_of_another_is_still_waited_for() -> None:
    def version(*, direct: bool) -> KernelEntry:
        make = Maker()
        token, load = make.op("make_token", {"%0": TOKEN}, 2), make.load("%0", 3)
        middle = make.load("%0" if direct else load.results[1], 4)
        joined = (load.results[1], middle.results[1])
        join = make.op("join_tokens", {"%j": TOKEN}, 5, tokens=joined if direct else joined[1:])
        return entry(token, load, middle, join, make.store("%j", 5))

    last = differences(version(direct=True), version(direct=False)).chains[-1]
    assert (last.after.operation, last.gained, last.lost) == ("store", (), ())
    assert (last.before.chain, last.after.chain) == (1, 2)


# What counts as a change ------------------------------------------------------------------------------


def test_names_and_places_are_no_difference() -> None:
    make = Maker()
    make.count = 7
    before, after = in_order(Maker(), store_first=True), in_order(make, store_first=True)
    found = differences(before, after)
    assert found.identical and found.reordered is None
    assert not (found.lines or found.accesses or found.chains or found.hints)


def test_hints_and_padding_of_a_load() -> None:
    def version(**hints: object) -> KernelEntry:
        make = Maker()
        token = make.op("make_token", {"%0": TOKEN}, 2)
        return entry(token, make.load("%0", 3, optimization_hints={"default": hints, "sm_90": {"latency": 1}}))

    found = differences(version(latency=2), version(allow_tma=False, latency=4))
    (change,) = found.accesses
    assert {(one.trait, one.before, one.after) for one in change.changed} == {
        ("latency", 2, 4), ("allow_tma", None, False),
    }  # fmt: skip
    assert not found.lines and not found.identical


def test_hints_of_the_kernel() -> None:
    before = in_order(Maker(), store_first=True)
    after = replace(in_order(Maker(), store_first=True), hints={"default": {"occupancy": 2}})
    found = differences(before, after)
    assert [(one.trait, one.before, one.after) for one in found.hints] == [("occupancy", None, 2)]
    assert not found.identical


def test_swapped_operands_are_not_called_identical() -> None:
    def version(*operands: str) -> KernelEntry:
        make = Maker()
        loads = make.load("%0", 3), make.load("%0", 4)
        first, second = (loads[int(n)].results[0] for n in operands)
        return entry(
            make.op("make_token", {"%0": TOKEN}, 2), *loads,
            make.op("subf", {"%d": TILE}, 5, lhs=first, rhs=second),
        )  # fmt: skip

    found = differences(version("0", "1"), version("1", "0"))
    assert not found.identical and not found.lines
    assert found.reordered is not None and found.reordered.line == 5


def test_operations_of_an_inlined_helper_count_for_the_line_that_calls() -> None:
    make = Maker()
    load = make.load("%0", 6)
    place = Location("/k.py", 3, caller=Location("/k.py", 6))
    elsewhere = Location("/stub.py", 99, caller=place)
    found = differences(entry(), entry(replace(load, location=place), replace(load, location=elsewhere)))
    assert [(line.after and (line.after.line, line.after.helper_line)) for line in found.lines] == [(6, 3)]
    assert found.lines[0].operations[0].after == 2


# Machine code -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("HMMA.16816.F32", "tensor"), ("UTCHMMA", "tensor"), ("HFMA2.MMA", "float16"), ("LDG.E.128", "global load"),
        ("UTMALDG.2D", "asynchronous copy"), ("LDS.64", "shared load"), ("LDL", "local load"),
        ("STL.64", "local store"), ("I2F.U32.RP", "conversion"), ("F2I.FTZ", "conversion"),
        ("MUFU.EX2", "special function"),
        ("ATOMG.E.ADD", "atomic"), ("UIADD3", "uniform"), ("BAR.SYNC", "synchronisation"), ("QQQ", "other"),
    ],
)  # fmt: skip
def test_opcodes_have_classes(opcode: str, expected: str) -> None:
    assert instruction_mix({opcode: 2}) == {expected: 2}
