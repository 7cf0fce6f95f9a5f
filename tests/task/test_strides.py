"""Strides and what they reach."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.task.tensors import row_major, span


@pytest.mark.parametrize(
    ("shape", "strides", "elements"),
    [((5, 7), (7, 1), 35), ((5, 7), (1, 5), 35), ((5, 7), (31, 1), 4 * 31 + 7), ((3, 0), (1, 1), 0), ((), (), 1),
     ((4,), (0,), 1)],
)  # fmt: skip
def test_what_the_elements_of_a_view_lie_in(shape: list[int], strides: list[int], elements: int) -> None:
    assert span(shape, strides) == elements


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (5, 1, 7), (1, 1)])
def test_row_major_is_as_numpy_has_it(shape: tuple[int, ...]) -> None:
    assert row_major(shape) == tuple(one // 4 for one in np.empty(shape, np.float32).strides)
    assert span(shape, row_major(shape)) == np.empty(shape).size
