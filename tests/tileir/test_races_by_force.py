"""The sanitizer's races against a detector that keeps every access and compares all with all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tileir.memory_kit import Machine

from tilewright.tileir.watch.findings import RACE

BLOCKS, ELEMENTS = 4, 3
ORDERS = {
    "load": ("weak", "relaxed", "acquire"),
    "store": ("weak", "relaxed", "release"),
    "atomic": ("relaxed", "acquire", "release", "acq_rel"),
}


@dataclass
class Everything:
    """All accesses so far, with what each block knows of the others: clocks as dictionaries."""

    known: list[dict[int, int]] = field(default_factory=lambda: [{b: 0} for b in range(BLOCKS)])
    left: dict[int, dict[int, int]] = field(default_factory=dict)
    made: list[tuple[int, int, int, bool, bool]] = field(default_factory=list)

    def step(self, block: int, kind: str, order: str, element: int) -> bool:
        """Makes an access; whether it races with an earlier one."""
        mine = self.known[block]
        if order in ("acquire", "acq_rel"):
            join(mine, self.left.get(element, {}))
        writes, strong = kind != "load", order != "weak"
        races = any(
            other != block and place == element and (writes or wrote) and not (strong and was_strong)
            and mine.get(other, 0) <= epoch
            for other, epoch, place, wrote, was_strong in self.made
        )  # fmt: skip
        self.made.append((block, mine[block], element, writes, strong))
        if writes and order in ("release", "acq_rel"):
            mine[block] += 1
            left = dict(mine)
            if kind == "atomic":
                join(left, self.left.get(element, {}))
            self.left[element] = left
        elif kind == "store":
            self.left.pop(element, None)
        return races


def join(one: dict[int, int], other: dict[int, int]) -> None:
    for block, clock in other.items():
        one[block] = max(one.get(block, 0), clock)


step = st.sampled_from(sorted(ORDERS)).flatmap(
    lambda kind: st.tuples(
        st.integers(0, BLOCKS - 1), st.just(kind), st.sampled_from(ORDERS[kind]), st.integers(0, ELEMENTS - 1)
    )
)


def perform(machine: Machine, data: Any, one: tuple[int, str, str, int]) -> None:
    block, kind, order, element = one
    getattr(machine, kind)(data, block, [element], order=order)


@settings(max_examples=240, deadline=None)
@given(steps=st.lists(step, max_size=14))
def test_the_first_race_is_found_where_it_is(steps: list[tuple[int, str, str, int]]) -> None:
    machine, everything = Machine(), Everything()
    data, apart = machine.tensor("data", ELEMENTS), machine.tensor("apart")
    machine.atomic(apart, 20, [0], order="release")  # epochs are kept from now on
    for one in steps:
        perform(machine, data, one)
        races = everything.step(*one)
        assert (RACE in machine.kinds) == races, one
        if races:
            return


@settings(max_examples=120, deadline=None)
@given(steps=st.lists(step, max_size=14))
def test_no_race_is_missed_before_there_are_clocks(steps: list[tuple[int, str, str, int]]) -> None:
    """Of readers that came before any release, only the tensor is known: more may be reported, never less."""
    machine, everything = Machine(), Everything()
    data = machine.tensor("data", ELEMENTS)
    for one in steps:
        perform(machine, data, one)
        if everything.step(*one):
            assert RACE in machine.kinds
            return
        if RACE in machine.kinds:
            return


@settings(max_examples=80, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["load", "store", "atomic"]), max_size=5),
    elements=st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=5, max_size=5),
    clocks=st.booleans(),
)
def test_lanes_together_race_as_one_by_one(kinds: list[str], elements: list[list[int]], clocks: bool) -> None:
    together, single = Machine(), Machine()
    tensors = [machine.tensor("data") for machine in (together, single)]
    if clocks:
        for machine in (together, single):
            machine.atomic(machine.tensor("apart"), 20, [0], order="release")
    for kind, places in zip(kinds, elements, strict=False):
        order = "relaxed" if kind == "atomic" else "weak"
        getattr(together, kind)(tensors[0], [2, 0, 1], np.array(places)[:, None], order=order)
        for block, place in zip([2, 0, 1], places, strict=True):
            getattr(single, kind)(tensors[1], block, [place], order=order)
        assert (RACE in together.kinds) == (RACE in single.kinds)
