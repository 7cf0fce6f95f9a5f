"""What a captured array of whole numbers tells of its like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.runtime.capture.described import Argument, DescribedLaunch, packed
from tilewright.runtime.capture.index_arrays import IndexArray, index_arrays, last_number
from tilewright.task.tensors import ArraySpec, OffsetSteps


def table(numbers: list[int], dtype: str = "int32") -> IndexArray | None:
    array = ArraySpec("at", (len(numbers),), dtype)
    one = Argument("at", "array", array=array, contents=packed(np.array(numbers, dtype)))
    return index_arrays(DescribedLaunch("k", "m", "k", "f", "", (1,), (one,))).get("at")


@given(st.lists(st.integers(0, 300), min_size=1, max_size=9), st.booleans())
def test_a_table_is_one_of_its_own_kind(lengths: list[int], starts: bool) -> None:
    numbers = [*([0] if starts else []), *np.cumsum(lengths).tolist()]
    found = table(numbers)
    if found is None:
        assert len(set(numbers)) == 1 or len(numbers) < 3
        return
    rise = OffsetSteps(found.starts, found.step, found.least, found.most)
    assert rise.possible((len(numbers),), numbers[-1])
    assert found.numbers == tuple(numbers)


@pytest.mark.parametrize(
    ("numbers", "how"),
    [
        ([0, 96, 96, 224], (True, 32, 0, 128)),
        ([0, 1000, 3000], (True, 8, 8, 2000)),  # that 1000 divides both is chance
        ([64, 128, 320], (False, 64, 64, 192)),  # where each ends
        ([0, 1024], (True, 128, 128, 1024)),
        ([0, 1, 2, 3], (True, 1, 1, 1)),
    ],
)
def test_what_is_kept_of_it(numbers: list[int], how: tuple[Any, ...]) -> None:
    found = table(numbers)
    assert found is not None and (found.starts, found.step, found.least, found.most) == how


@pytest.mark.parametrize("numbers", [[3, 1, 2], [5, 5, 5], [0, 0], [3, 7], [-1, 0, 4]])
def test_others_are_no_tables(numbers: list[int]) -> None:
    assert table(numbers) is None


def test_the_last_number_is_an_end_or_an_index() -> None:
    known = {96: "T", 8: "E", 97: "U"}
    at = [table(numbers) for numbers in ([0, 40, 96], [0, 0, 1, 2, 3, 4, 5, 6, 7, 7], [0, 50])]
    assert [last_number(one, known) for one in at if one] == ["T", "E - 1", 50]
