"""Element types and rounding: against fractions, over all values of the small types."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tileir import oracle

from tilewright.tileir.read.tree import Constant, PointerType
from tilewright.tileir.run import numbers
from tilewright.tileir.run.registry import Unsupported

SMALL = ("f16", "bf16", "f8E4M3FN", "f8E5M2", "f4E2M1FN")
MODES = numbers.MODES


def every(element: str) -> np.ndarray:
    """All values of a type of 16 bits or fewer."""
    bits = {"f4E2M1FN": 4}.get(element, 8 * numbers.STORAGE[element].itemsize)
    return numbers.from_bits(np.arange(1 << bits), element)


def wide_of(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # signalling NaN
        return values.astype(np.float64)


def finite(element: str) -> np.ndarray:
    values = wide_of(every(element))
    return np.unique(values[np.isfinite(values)])


@pytest.mark.parametrize("element", SMALL)
def test_every_value_converts_to_f64_and_back(element):
    values = every(element)
    wide = wide_of(values)
    for mode in MODES:
        back = numbers.round_to(wide, element, mode)
        known = np.isfinite(wide)
        assert np.array_equal(back[known].view(f"u{back.itemsize}"), values[known].view(f"u{back.itemsize}"))
        if element != "f4E2M1FN":
            assert np.isnan(back[np.isnan(wide)].astype(np.float32)).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("element", SMALL)
def test_between_all_neighbours(element, mode):
    """At each midpoint, a hair beside it, and a hair beside each value: in f64, where a hair is 2**-52."""
    values = finite(element)
    low, high = values[:-1], values[1:]
    middle = low + (high - low) / 2
    half_up = np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)
    hairs = np.concatenate([middle, *half_up, np.nextafter(low, np.inf), np.nextafter(high, -np.inf)])
    below, above = (np.concatenate([side] * 5) for side in (low, high))
    got = numbers.round_to(hairs, element, mode).astype(np.float64)
    if mode == "negative_inf":
        wanted = below
    elif mode == "positive_inf":
        wanted = above
    elif mode == "zero":
        wanted = np.where(hairs > 0, below, above)
    else:
        wanted = np.where(hairs - below < above - hairs, below, above)
        tie = slice(0, len(middle))
        codes = numbers.round_to(low, element).view(f"u{numbers.STORAGE[element].itemsize}")
        even = np.where(codes % 2 == 0, low, high)
        away = np.where(middle > 0, high, low)
        wanted[tie] = even if mode == "nearest_even" else away
        hair = slice(len(middle), 3 * len(middle))
        wanted[hair] = np.concatenate([high, low])
    wanted = np.where(wanted == 0, np.copysign(0.0, hairs), wanted)
    assert oracle.same(got, wanted)


def doubles(element: str) -> st.SearchStrategy[float]:
    """f64 near the values, the ends and the midpoints of a type."""
    precision, least, largest = oracle.FORMATS[element]
    top = math.frexp(float(largest))[1]
    return st.builds(
        lambda sign, whole, below, exponent: sign * (whole + below) * 2.0**exponent,
        st.sampled_from([1.0, -1.0]),
        st.integers(0, 2 ** (precision + 1)),
        st.sampled_from([0.0, 0.5, 2.0**-25, -(2.0**-25), 0.25]),
        st.integers(max(least - precision - 3, -1000), top - precision + 1),
    ) | st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("element", [*SMALL, "tf32", "f32"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_rounds_like_fractions(element, data):
    value, mode = data.draw(doubles(element)), data.draw(st.sampled_from(MODES))
    got = numbers.round_to(np.array([value]), element, mode)
    wanted = oracle.rounded(Fraction(value), element, mode) if value else value
    assert got.dtype == numbers.STORAGE[element] and oracle.same(got, [wanted])
    with np.errstate(over="ignore"):
        single = np.array([value], np.float64).astype(np.float32)
    if np.isfinite(single[0]) and single[0]:
        got = numbers.round_to(single, element, mode)
        assert oracle.same(got, [oracle.rounded(Fraction(float(single[0])), element, mode)])


def test_f64_to_bf16_rounds_once():
    """Through f32 the first would become a tie, and then 1."""
    just_above_a_tie = 1 + 2.0**-8 + 2.0**-40
    assert numbers.round_to(np.array([just_above_a_tie]), "bf16")[0] == 1 + 2.0**-7
    assert np.array([just_above_a_tie]).astype(np.float32).astype(ml_dtypes.bfloat16)[0] == 1


@pytest.mark.parametrize("element", SMALL)
def test_all_of_bf16_and_f16_to_the_others(element):
    for source in ("bf16", "f16"):
        values = every(source)
        wide = wide_of(values)
        ordinary = np.isfinite(wide) & (wide != 0)
        got = numbers.round_to(values, element)
        wanted = [oracle.rounded(Fraction(one), element) for one in wide[ordinary][::17]]
        assert oracle.same(got[ordinary][::17], wanted)


def test_infinity_and_nan():
    values = np.array([np.inf, -np.inf, np.nan], np.float32)
    for mode in MODES:
        for element in ("f16", "bf16", "tf32", "f32", "f64"):
            assert oracle.same(numbers.round_to(values, element, mode), values)
        assert oracle.same(numbers.round_to(values, "f8E4M3FN", mode), [448, -448, np.nan])
        assert oracle.same(numbers.round_to(values, "f8E5M2", mode), [57344, -57344, np.nan])
        assert oracle.same(numbers.round_to(values, "f4E2M1FN", mode), [6, -6, 6])


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False), st.sampled_from(["zero", "positive_inf"]))
def test_powers_of_two(value, mode):
    got = float(numbers.round_to(np.array([value]), "f8E8M0FNU", mode)[0])
    exact = Fraction(value)
    if Fraction(2) ** -127 <= exact <= Fraction(2) ** 127:
        other = Fraction(got) * (2 if mode == "zero" else Fraction(1, 2))
        assert (Fraction(got) <= exact < other) if mode == "zero" else (other < exact <= Fraction(got))
    else:
        assert got == (2.0**127 if exact > 1 else 2.0**-127)


def test_powers_of_two_at_the_ends():
    got = numbers.round_to(np.array([0.0, np.inf, np.nan]), "f8E8M0FNU", "zero")
    assert got.view(np.uint8).tolist() == [0, 254, 255]
    with pytest.raises(Unsupported, match="negative"):
        numbers.round_to(np.array([-1.0]), "f8E8M0FNU", "zero")


@given(st.lists(st.floats(width=32), min_size=1))
def test_flushing_keeps_signs_and_normal_numbers(values):
    before = np.array(values, np.float32)
    after = numbers.flushed(before)
    small = np.abs(before) < 2.0**-126
    assert oracle.same(after[~small], before[~small])
    assert oracle.same(after[small], np.copysign(0.0, before[small]))


def test_constants():
    def values(element, *given, bits=False):
        return numbers.constant_values(Constant(element, given, bits))

    assert values("i8", 255, -1, 300).tolist() == [-1, -1, 44]
    assert values("i64", 2**64 - 1, -(2**63)).tolist() == [-1, -(2**63)]
    assert values("i4", 7, 8, -1).tolist() == [7, -8, -1]
    assert values("i1", True, 0).tolist() == [True, False]
    assert oracle.same(values("f32", 0x7FC00000, 0xFF800000, 1, bits=True), [np.nan, -np.inf, 2.0**-149])
    assert oracle.same(values("bf16", 0x3F80, bits=True), [1.0])
    assert oracle.same(values("tf32", 0x1FC00, 0x5FC01, bits=True), [1.0, -1 - 2.0**-10])
    assert oracle.same(values("f64", 0.1, bits=False), [0.1])
    assert oracle.same(values("f4E2M1FN", 0xF, bits=True), [-6.0])
    assert values("f8E8M0FNU", 1.0, 0.5).view(np.uint8).tolist() == [127, 126]


@given(st.lists(st.integers(-8, 7), min_size=2, max_size=16).filter(lambda one: len(one) % 2 == 0))
def test_four_bits_share_bytes(values):
    data = numbers.packed(np.array([values], np.int8))
    assert data.tobytes()[0] & 0xF == values[0] & 0xF
    assert numbers.unpacked(data, "i4").tolist() == [values]
    halves = numbers.unpacked(data, "f4E2M1FN")
    assert np.array_equal(numbers.packed(halves), data)


def test_sizes_and_refusals():
    assert numbers.dtype_of(PointerType("f32")) == np.int64
    assert [numbers.bits_of(one) for one in ("i1", "i4", "f4E2M1FN", "tf32", "bf16")] == [8, 4, 4, 32, 16]
    with pytest.raises(Unsupported, match="fnv8E5M3FNU"):
        numbers.dtype_of("fnv8E5M3FNU")
    with pytest.raises(Unsupported, match="stochastic"):
        numbers.round_to(np.zeros(1), "f16", "stochastic")
