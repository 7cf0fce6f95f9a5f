"""Strides and what they reach."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.runtime.arrays import ArrayFacts
from tilewright.task.tensors import ArraySpec, alignment_of, row_major, span


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


@pytest.mark.parametrize(("address", "seen"), [(0, 0), (16, 0), (2, 2), (130, 2), (255, 15)])
def test_compilers_see_the_address_modulo_16(address: int, seen: int) -> None:
    array = ArraySpec("x", (8,), "float16", address_offset=address)
    assert array.as_compiled() == ArraySpec("x", (8,), "float16", address_offset=seen)
    assert ArrayFacts("float16", (8,), (1,), address).alignment == alignment_of(address) == seen
