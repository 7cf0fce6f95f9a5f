"""Memory images: views, guards and poison (trust.md 1, 8, 9)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.task.tensors import ITEM_BYTES, LAYOUTS, ArraySpec
from tilewright.verify.images import (
    ALIGNMENT,
    GUARD_BYTES,
    POISONS,
    ROW_MAJOR,
    Image,
    fill,
    image_of,
    row_major,
    storage,
)

shapes = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)
layouts = st.sampled_from((ROW_MAJOR, *LAYOUTS))
dtypes = st.sampled_from(tuple(ITEM_BYTES))


def image(shape: tuple[int, ...], layout: str = ROW_MAJOR, dtype: str = "float32", guard: int = 0xA5) -> Image:
    return image_of(ArraySpec("x", shape, dtype), layout, guard)


@given(shapes, layouts, dtypes)
def test_each_element_has_bytes_of_its_own_and_guards_on_both_sides(
    shape: tuple[int, ...], layout: str, dtype: str
) -> None:
    one = image(shape, layout, dtype)
    fill(one, 0x11)
    assert one.damaged() is None
    inside = np.flatnonzero(one.raw == 0x11)
    assert inside.size == one.array.size * ITEM_BYTES[dtype]
    assert inside[0] == one.offset >= GUARD_BYTES and one.raw.size - 1 - inside[-1] >= GUARD_BYTES


@given(shapes, layouts, dtypes, st.data())
def test_a_byte_outside_is_noticed_and_a_byte_inside_is_not(
    shape: tuple[int, ...], layout: str, dtype: str, data: st.DataObject
) -> None:
    one = image(shape, layout, dtype)
    fill(one, 0x11)
    place = data.draw(st.integers(0, one.raw.size - 1))
    outside = one.raw[place] != 0x11
    one.raw[place] = 0x77
    assert (one.damaged() is None) is not bool(outside)
    if outside:
        assert one.damaged() == place - one.offset


@given(shapes, layouts, dtypes)
def test_what_is_put_in_comes_out(shape: tuple[int, ...], layout: str, dtype: str) -> None:
    one, values = image(shape, layout, dtype), np.arange(np.prod(shape)).reshape(shape) % 2
    one.array[...] = values.astype(storage(dtype))
    assert one.content == values.astype(storage(dtype)).tobytes() == one.array.tobytes()
    assert one.damaged() is None


def test_views_are_what_their_names_say() -> None:
    assert image((3, 5)).spec == ArraySpec("x", (3, 5), "float32")
    assert image((3, 5), "transposed").strides == (1, 3)
    assert image((2, 3, 5), "transposed").strides == (15, 1, 3)
    assert image((3, 5), "sliced").strides[0] > 5
    assert image((3, 5), "misaligned").spec.address_offset == 4
    assert image((3, 5), "misaligned", "bfloat16").spec.address_offset == 2
    assert image((3, 5), "sliced").spec.address_offset == 0
    assert image((5,), "transposed").strides == row_major((5,))


def test_the_first_element_of_an_aligned_view_is_aligned() -> None:
    for layout in (ROW_MAJOR, "transposed", "sliced"):
        assert image((3, 5), layout).offset % ALIGNMENT == 0


@pytest.mark.parametrize("poison", POISONS)
def test_poison_fills_every_element(poison: int) -> None:
    one = image((3, 5), "sliced", "bfloat16")
    fill(one, poison)
    assert set(one.content) == {poison}


def test_the_first_poison_is_nan_and_the_second_is_large() -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"):
        one = image((4,), dtype=dtype)
        fill(one, POISONS[0])
        assert np.isnan(one.array.astype(np.float64)).all()
        fill(one, POISONS[1])
        assert (one.array.astype(np.float64) > 20).all()
