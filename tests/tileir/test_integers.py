"""Integer operations against Python's integers, over all widths; what is undefined is reported."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tileir.oracle import Findings, run

from tilewright.tileir.read.tree import Constant
from tilewright.tileir.run import conversions, integers, numbers
from tilewright.tileir.run.registry import Unsupported

assert conversions and integers  # their import registers the operations

WIDTHS = (1, 4, 8, 16, 32, 64)
SIGNEDNESS = ("signed", "unsigned")
OVERFLOW = ("none", "no_signed_wrap", "no_unsigned_wrap", "no_wrap")


def bounds(width: int, signedness: str) -> tuple[int, int]:
    return (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signedness == "signed" else (0, (1 << width) - 1)


def read(bits: int, width: int, signedness: str) -> int:
    bits &= (1 << width) - 1
    return bits - (1 << width) if signedness == "signed" and bits >> (width - 1) else bits


def patterns(width: int) -> st.SearchStrategy[int]:
    top = 1 << (width - 1)
    return st.integers(0, 2 * top - 1) | st.sampled_from([0, 1 % (2 * top), top, top - 1, 2 * top - 1])


def tile(width: int, *bits: int) -> np.ndarray:
    return numbers.constant_values(Constant(f"i{width}", tuple(one & ((1 << width) - 1) for one in bits)))[None]


def value(array: np.ndarray) -> int:
    """The only element, as signed (of i1: 0 or 1)."""
    assert array.shape == (1, 1)
    return int(array[0, 0])


def same(array: np.ndarray, number: int, width: int) -> bool:
    return array.dtype == numbers.STORAGE[f"i{width}"] and np.array_equal(array, tile(width, number))


def inside(number: int, width: int, signedness: str) -> bool:
    low, high = bounds(width, signedness)
    return low <= number <= high


EXACT = {"addi": lambda a, b: a + b, "subi": lambda a, b: a - b, "muli": lambda a, b: a * b}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", EXACT)
@given(data=st.data())
@settings(max_examples=40)
def test_sums_and_products(name, width, data):
    a, b = data.draw(patterns(width)), data.draw(patterns(width))
    overflow = data.draw(st.sampled_from(OVERFLOW))
    context = Findings()
    got = run(name, f"i{width}", context, overflow=overflow, lhs=tile(width, a), rhs=tile(width, b))
    assert same(got, EXACT[name](a, b), width)
    asked = [s for s in SIGNEDNESS if overflow in (f"no_{s}_wrap", "no_wrap")]
    broken = [s for s in asked if not inside(EXACT[name](read(a, width, s), read(b, width, s)), width, s)]
    assert len(context.found) == len(broken)
    assert all(kind == "assumption" and lane == 0 for kind, _, lane in context.found)


@pytest.mark.parametrize("width", WIDTHS)
@given(data=st.data())
@settings(max_examples=40)
def test_high_halves(width, data):
    a, b = data.draw(patterns(width)), data.draw(patterns(width))
    assert same(run("mulhii", f"i{width}", x=tile(width, a), y=tile(width, b)), (a * b) >> width, width)


@pytest.mark.parametrize("width", WIDTHS)
@given(data=st.data())
@settings(max_examples=40)
def test_one_operand(width, data):
    a, overflow = data.draw(patterns(width)), data.draw(st.sampled_from(OVERFLOW))
    number = read(a, width, "signed")
    assert same(run("absi", f"i{width}", source=tile(width, a)), abs(number), width)
    context = Findings()
    assert same(run("negi", f"i{width}", context, overflow=overflow, source=tile(width, a)), -number, width)
    wraps = {"signed": not inside(-number, width, "signed"), "unsigned": a != 0}
    assert len(context.found) == sum(wraps[s] for s in SIGNEDNESS if overflow in (f"no_{s}_wrap", "no_wrap"))


def divided(a: int, b: int, rounding: str) -> int:
    if rounding == "negative_inf":
        return a // b
    if rounding == "positive_inf":
        return -(-a // b)
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("signedness", SIGNEDNESS)
@pytest.mark.parametrize("width", WIDTHS)
@given(data=st.data())
@settings(max_examples=60)
def test_division(width, signedness, data):
    a, b = data.draw(patterns(width)), data.draw(patterns(width))
    rounding = data.draw(st.sampled_from(["zero", "negative_inf", "positive_inf"]))
    arrays = {"lhs": tile(width, a), "rhs": tile(width, b)}
    quotient, remainder = Findings(), Findings()
    got = run("divi", f"i{width}", quotient, signedness=signedness, rounding=rounding, **arrays)
    rest = run("remi", f"i{width}", remainder, signedness=signedness, **arrays)
    first, second = read(a, width, signedness), read(b, width, signedness)
    if second == 0:
        assert same(got, -1, width) and same(rest, a, width)
    else:
        assert same(got, divided(first, second, rounding), width)
        assert same(rest, first - divided(first, second, "zero") * second, width)
    undefined = second == 0 or not inside(divided(first, second, "zero"), width, signedness)
    assert len(quotient.found) == len(remainder.found) == undefined


@pytest.mark.parametrize("signedness", SIGNEDNESS)
def test_division_of_all_bytes(signedness):
    """All pairs of i8, as lanes by elements."""
    codes = np.arange(-128, 128, dtype=np.int8)
    lhs, rhs = np.broadcast_arrays(codes[:, None], codes[None, codes != 0])
    for rounding in ("zero", "negative_inf", "positive_inf"):
        got = run("divi", "i8", signedness=signedness, rounding=rounding, lhs=lhs, rhs=rhs)
        for (a, b), quotient in zip(itertools.product(codes, codes[codes != 0]), got.ravel(), strict=True):
            exact = divided(read(int(a), 8, signedness), read(int(b), 8, signedness), rounding)
            assert read(exact, 8, "signed") == quotient


def test_a_rounding_that_does_not_exist():
    with pytest.raises(Unsupported, match="nearest_even"):
        run("divi", "i8", signedness="signed", rounding="nearest_even", lhs=tile(8, 1), rhs=tile(8, 1))


@pytest.mark.parametrize("signedness", SIGNEDNESS)
@pytest.mark.parametrize("width", WIDTHS)
@given(data=st.data())
@settings(max_examples=40)
def test_order_and_bits(width, signedness, data):
    a, b = data.draw(patterns(width)), data.draw(patterns(width))
    first, second = read(a, width, signedness), read(b, width, signedness)
    arrays = {"lhs": tile(width, a), "rhs": tile(width, b)}
    assert same(run("maxi", f"i{width}", signedness=signedness, **arrays), max(first, second), width)
    assert same(run("mini", f"i{width}", signedness=signedness, **arrays), min(first, second), width)
    for name, bits in (("andi", a & b), ("ori", a | b), ("xori", a ^ b)):
        assert same(run(name, f"i{width}", **arrays), bits, width)
    predicates = {
        "equal": first == second,
        "not_equal": first != second,
        "less_than": first < second,
        "less_than_or_equal": first <= second,
        "greater_than": first > second,
        "greater_than_or_equal": first >= second,
    }
    for predicate, holds in predicates.items():
        types = {"lhs": f"i{width}", "rhs": f"i{width}"}
        got = run("cmpi", "i1", types=types, comparison_predicate=predicate, signedness=signedness, **arrays)
        assert got.dtype == np.bool_ and value(got) == holds


@pytest.mark.parametrize("width", WIDTHS)
@given(data=st.data())
@settings(max_examples=60)
def test_shifts(width, data):
    a = data.draw(patterns(width))
    amount = data.draw(st.integers(0, width - 1) | patterns(width))
    overflow = data.draw(st.sampled_from(OVERFLOW))
    arrays = {"lhs": tile(width, a), "rhs": tile(width, amount)}
    context = Findings()
    got = run("shli", f"i{width}", context, overflow=overflow, **arrays)
    assert same(got, a << min(amount, 64), width)
    if amount < width:
        asked = [s for s in SIGNEDNESS if overflow in (f"no_{s}_wrap", "no_wrap")]
        broken = [s for s in asked if not inside(read(a, width, s) << amount, width, s)]
        assert len(context.found) == len(broken)
    else:
        assert "width" in context.found[0][1]
    for signedness in SIGNEDNESS:
        context = Findings()
        got = run("shri", f"i{width}", context, signedness=signedness, **arrays)
        assert same(got, read(a, width, signedness) >> min(amount, 64), width)
        assert bool(context.found) == (amount >= width)


@pytest.mark.parametrize("pair", [(a, b) for a, b in itertools.product(WIDTHS, repeat=2) if a < b])
@given(data=st.data())
@settings(max_examples=30)
def test_width(pair, data):
    narrow, wide = pair
    a, overflow = data.draw(patterns(narrow)), data.draw(st.sampled_from(OVERFLOW))
    for signedness in SIGNEDNESS:
        types = {"from_": f"i{narrow}"}
        got = run("exti", f"i{wide}", types=types, signedness=signedness, from_=tile(narrow, a))
        assert same(got, read(a, narrow, signedness), wide)
    b = data.draw(patterns(wide) | st.just(a) | st.just(-a))
    context = Findings()
    got = run("trunci", f"i{narrow}", context, types={"from_": f"i{wide}"}, overflow=overflow, from_=tile(wide, b))
    assert same(got, b, narrow)
    asked = [s for s in SIGNEDNESS if overflow in (f"no_{s}_wrap", "no_wrap")]
    assert len(context.found) == sum(not inside(read(b, wide, s), narrow, s) for s in asked)


@given(st.sampled_from(["i1", "i8", "i32", "i64"]), st.integers(2, 4), st.booleans())
def test_lanes_broadcast_and_the_lane_is_named(element, lanes, first_is_wide):
    several = np.zeros((lanes, 2), numbers.STORAGE[element])
    shared = np.ones((1, 2), numbers.STORAGE[element])
    several[-1, 0] = 1
    lhs, rhs = (several, shared) if first_is_wide else (shared, several)
    for name in ("addi", "muli", "maxi", "andi", "divi", "remi"):
        context = Findings()
        got = run(name, element, context, signedness="unsigned", lhs=lhs, rhs=rhs)
        assert got.shape == (lanes, 2) and got.dtype == numbers.STORAGE[element]
        if name == "divi" and not first_is_wide:
            assert [lane for _, _, lane in context.found] == [0]
    assert run("addi", element, lhs=shared, rhs=shared).shape == (1, 2)


def test_the_first_lane_that_violates_is_named():
    lhs = np.array([[1, 1], [1, 1], [1, 1]], np.int32)
    rhs = np.array([[1, 1], [1, 0], [0, 0]], np.int32)
    context = Findings()
    run("divi", "i32", context, signedness="signed", rounding="zero", lhs=lhs, rhs=rhs)
    assert context.found == [("assumption", "divi by zero", 1)]


def test_not_integers():
    with pytest.raises(Unsupported, match="addi of f32"):
        run("addi", "f32", lhs=np.zeros((1, 1), np.float32), rhs=np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("checks", [True, False])
def test_a_run_that_only_counts_reports_no_overflow(checks: bool) -> None:
    context = Findings()
    context.world = SimpleNamespace(checks_assumptions=checks)
    got = run("addi", "i8", context, overflow="no_signed_wrap", lhs=tile(8, 100), rhs=tile(8, 100))
    assert same(got, 200, 8) and len(context.found) == checks
