"""Random programs of loads and stores in loops and branches: each access waits for those that it must come after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.languages.tileir_from_triton.translate import translate
from tilewright.tileir.analysis.tokens import TokenChains
from tilewright.tileir.read.reader import read_bytecode

ARRAYS = 3
ACCESS = st.tuples(st.sampled_from(["load", "store"]), st.integers(0, ARRAYS - 1))
PROGRAM = st.recursive(
    st.lists(ACCESS, min_size=1, max_size=3),
    lambda inner: st.lists(
        st.one_of(ACCESS, st.tuples(st.just("for"), inner), st.tuples(st.just("while"), inner),
                  st.tuples(st.just("if"), inner, inner)),
        min_size=1, max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip


@dataclass(frozen=True)
class Made:
    """An access: where it is. ``path``: the loops and the sides of branches around it, by number."""

    writes: bool
    array: int
    path: tuple[tuple[str, int, int], ...]


@dataclass
class Text:
    """A program as TTIR, and its accesses in the order of the text."""

    lines: list[str] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1000)))

    def add(self, nodes: Any, path: tuple[tuple[str, int, int], ...] = ()) -> None:
        for node in nodes:
            kind, number = node[0], next(self.numbers)
            if kind in ("load", "store"):
                value = f"%v{number} = " if kind == "load" else ""
                what = f"%w{node[1]}" + ("" if kind == "load" else ", %zero")
                self.lines.append(f"{value}tt.{kind} {what} : tensor<8x!tt.ptr<f32>>")
                self.made.append(Made(kind == "store", node[1], path))
            elif kind == "for":
                self.lines.append(f"scf.for %i{number} = %low to %high step %one : i32 {{")
                self.add(node[1], (*path, ("loop", number, 0)))
                self.lines.append("}")
            elif kind == "while":
                self.lines += ["scf.while : () -> () {", "scf.condition(%flag)", "} do {"]
                self.add(node[1], (*path, ("loop", number, 0)))
                self.lines += ["scf.yield", "}"]
            else:
                self.lines.append("scf.if %flag {")
                self.add(node[1], (*path, ("if", number, 0)))
                self.lines.append("} else {")
                self.add(node[2], (*path, ("if", number, 1)))
                self.lines.append("}")

    def whole(self) -> str:
        parameters = ", ".join([*(f"%p{at}: !tt.ptr<f32>" for at in range(ARRAYS)), "%high: i32", "%flag: i1"])
        head = [
            "%low = arith.constant 0 : i32",
            "%one = arith.constant 1 : i32",
            "%zero = arith.constant dense<0.0> : tensor<8xf32>",
            "%at = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>",
        ]
        for at in range(ARRAYS):
            head.append(f"%s{at} = tt.splat %p{at} : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>")
            head.append(f"%w{at} = tt.addptr %s{at}, %at : tensor<8x!tt.ptr<f32>>, tensor<8xi32>")
        body = "\n".join([*head, *self.lines])
        return f"module {{ tt.func public @k({parameters}) {{\n{body}\ntt.return }} }}"


def exclusive(one: Made, other: Made) -> bool:
    """Whether they are in different sides of one branch."""
    sides = {number: side for kind, number, side in one.path if kind == "if"}
    return any(kind == "if" and sides.get(number, side) != side for kind, number, side in other.path)


def in_one_loop(one: Made, other: Made) -> bool:
    return any(part in other.path for part in one.path if part[0] == "loop")


@given(PROGRAM, st.booleans())
@settings(max_examples=80)
def test_accesses_wait_for_what_they_may_overlap(nodes: Any, apart: bool) -> None:
    text = Text()
    text.add(nodes)
    groups = (0, 1, 2, 3, 4) if apart else None
    code = translate(text.whole(), "sm_90", arrays=groups).code
    chains = TokenChains(read_bytecode(code).entry(None))
    ops = [op for op in chains.ops if "_ptr_tko" in op.name]
    assert [op.name.startswith("store") for op in ops] == [one.writes for one in text.made]
    for later, (op, made) in enumerate(zip(ops, text.made, strict=True)):
        before = chains.all_before(op)
        for earlier, (other, was) in enumerate(zip(ops, text.made, strict=True)):
            if not (made.writes or was.writes) or (apart and made.array != was.array):
                continue
            waited = [wait for wait in before if wait.op is other]
            if earlier < later and not exclusive(made, was):
                assert waited, f"{made} does not wait for {was}"
            elif in_one_loop(made, was):
                assert any(wait.earlier_iteration for wait in waited), f"{made} does not wait for {was} before"


def test_memory_apart_is_not_ordered() -> None:
    text = Text()
    text.add([("store", 0), ("for", [("load", 1), ("store", 2)]), ("load", 0)])
    chains = TokenChains(read_bytecode(translate(text.whole(), "sm_90", arrays=(0, 1, 2, 3, 4)).code).entry(None))
    first, load, store, last = chains.ops
    assert not chains.waits(load) and {wait.op for wait in chains.all_before(store)} == {store}
    assert {wait.op for wait in chains.all_before(last)} == {first}
