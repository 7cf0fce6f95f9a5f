"""Tables of numbers that rise: always such tables as a kernel may be given, whatever is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tilewright.errors import TaskError
from tilewright.space.space import Space
from tilewright.task.task import Task
from tilewright.task.tensors import OffsetSteps, Output, Tensor, fixed, integers, offsets
from tilewright.verify.data import KINDS, drawn
from tilewright.verify.tolerance import draw

steps = st.tuples(st.sampled_from([1, 2, 8]), st.integers(0, 3), st.none() | st.integers(0, 9)).map(
    lambda one: {"step": one[0], "least": one[0] * one[1], "most": one[2] and one[0] * (one[1] + one[2])}
)


@given(steps, st.booleans(), st.integers(1, 12), st.integers(0, 200), st.sampled_from([*KINDS]), st.integers(0, 9))
def test_every_table_has_the_declared_steps(
    how: dict[str, Any], starts: bool, entries: int, last: int, kind: str, seed: int
) -> None:
    rise = OffsetSteps(starts=starts, **how)
    assume(rise.possible((3, entries), last))
    tables = rise.drawn((3, entries), last, np.random.default_rng(seed), kind)
    assert tables.shape == (3, entries)
    lengths = np.diff(tables, axis=-1, prepend=np.zeros((3, 0 if starts else 1), np.int64))
    assert (tables[:, -1] == last).all() and (not starts or (tables[:, 0] == 0).all())
    assert (lengths >= rise.least).all() and (lengths % rise.step == 0).all()
    assert rise.most is None or (lengths <= rise.most).all()


@given(steps, st.booleans(), st.integers(0, 6), st.integers(0, 60))
def test_what_is_impossible_is_known_before(how: dict[str, Any], starts: bool, entries: int, last: int) -> None:
    """By all sums of steps."""
    rise = OffsetSteps(starts=starts, **how)
    allowed = [n for n in range(0, last + 1) if n >= rise.least and n % rise.step == 0]
    allowed = [n for n in allowed if rise.most is None or n <= rise.most]
    sums = {0} if entries - starts >= 1 else set()
    for _ in range(entries - starts):
        sums = {one + n for one in sums for n in allowed if one + n <= last}
    assert rise.possible((entries,), last) == (last in sums)
    if last not in sums:
        with pytest.raises(TaskError, match="offsets cannot increase to"):
            rise.drawn((entries,), last, np.random.default_rng(0))


def test_hostile_tables_differ() -> None:
    """All in the first sequence, all in the last, as equal as can be."""
    rise, rng = OffsetSteps(most=8), np.random.default_rng(0)
    table = {kind: rise.drawn((5,), 10, rng, kind).tolist() for kind in ("large", "tiny", "constant rows")}
    assert table == {"large": [0, 8, 10, 10, 10], "tiny": [0, 0, 0, 2, 10], "constant rows": [0, 3, 6, 8, 10]}


def task(how: Any, **more: Any) -> Task:
    return Task(
        name="t",
        tensors={
            "x": Tensor(("T",), "float32"),
            "at": Tensor(("B + 1",), "int32", how),
            "y": Output(("T",), "float32"),
        },
        reference=lambda x: x,
        launch=lambda x: None,  # type: ignore[arg-type,return-value]
        flops=lambda T: T,
        space=Space(shipped={}),
        workloads={"only": {"T": 12, "B": 3}},
        **more,
    )


def test_the_end_follows_the_dimensions() -> None:
    one = task(offsets("T", like=(0, 7, 9, 12)))
    assert drawn(one, {"T": 12, "B": 3}, "declared", 5)["at"].tolist() == [0, 7, 9, 12]
    other = drawn(one, {"T": 30, "B": 2}, "declared", 5)["at"]
    assert other.dtype == np.int32 and other[0] == 0 and other[-1] == 30
    inside = drawn(task(integers(0, "T")), {"T": 4, "B": 200}, "large", 5)["at"]
    assert set(inside.tolist()) == {3}


@pytest.mark.parametrize("kind", [*KINDS])
def test_fixed_numbers_are_the_same_for_all_data(kind: str) -> None:
    one = task(fixed((0, 3, 3, 12)))
    assert drawn(one, {"T": 12, "B": 3}, kind, 5)["at"].tolist() == [0, 3, 3, 12]
    assert one.promises({"T": 12, "B": 3}) and not one.promises({"T": 12, "B": 4})


def test_fixed_numbers_need_one() -> None:
    with pytest.raises(TaskError, match="needs at least one number"):
        fixed(())


def test_a_task_promises_nothing_for_which_there_is_no_table() -> None:
    one = task(offsets("T", least=4, step=4))
    assert one.promises({"T": 12, "B": 3})
    assert not one.promises({"T": 8, "B": 3}) and not one.promises({"T": 14, "B": 3})


def test_what_is_declared_wrongly_says_so() -> None:
    with pytest.raises(TaskError, match="least=3 and most=None must be multiples of step=2"):
        offsets("T", step=2, least=3)
    with pytest.raises(TaskError, match="dimension 'S' is not in the workload"):
        task(offsets("S")).promises({"T": 12, "B": 3})


def test_verify_draws_them_too() -> None:
    how = offsets(9).under({}, "at")
    assert draw(how, (4,), np.random.default_rng(1))[-1] == 9
