"""Floating-point operations against fractions, and the rules for zeros, infinities and NaN."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tileir import oracle
from tests.tileir.oracle import Findings, run, same

from tilewright.tileir.read.tree import Constant
from tilewright.tileir.run import arithmetic, conversions, numbers
from tilewright.tileir.run.numbers import STORAGE, from_bits
from tilewright.tileir.run.registry import Unsupported

assert arithmetic and conversions  # their import registers the operations

BASE = ("f16", "bf16", "f32", "f64")
MODES = ("nearest_even", "zero", "negative_inf", "positive_inf")
BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
SPECIAL = {
    element: [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        1.0,
        -1.0,
        3.0,
        float(largest),
        -float(largest),
        float(Fraction(2) ** least),
        float(Fraction(2) ** (least - precision + 1)),
        -float(Fraction(2) ** (least - precision + 1)),
        float(Fraction(2) ** least - Fraction(2) ** (least - precision + 1)),
        1 + 2.0 ** (1 - precision),
    ]
    for element, (precision, least, largest) in oracle.FORMATS.items()
}


def values(element: str) -> st.SearchStrategy[float]:
    """Any number of the type, subnormal ones and infinities too; special ones often, and near ones."""
    anything = st.integers(0, (1 << BITS[element]) - 1).map(
        lambda bits: float(wide(from_bits(np.array([bits], np.uint64), element))[0])
    )
    near = st.floats(0.5, 4, width=16).map(lambda one: float(numbers.round_to(np.array([one]), element)[0]))
    return st.sampled_from(SPECIAL[element]) | anything | near


def many_values(element: str, random: np.random.Generator, count: int) -> list[float]:
    """As `values`, a third of each kind."""
    kinds = random.integers(3, size=count)
    special = random.choice(SPECIAL[element], count)
    anything = wide(from_bits(random.integers(0, (1 << BITS[element]) - 1, count, np.uint64, endpoint=True), element))
    near = wide(numbers.round_to(random.uniform(0.5, 4, count).astype(np.float16).astype(np.float64), element))
    return np.choose(kinds, (special, anything, near)).tolist()


def wide(array: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return array.astype(np.float64)


def tile(element: str, *given: float) -> np.ndarray:
    return np.array([given], np.float64).astype(STORAGE[element])


def exactly(name: str, args: list[float]) -> Fraction | None:
    """The exact result where all operands are finite; None where that is not a number."""
    a, *rest = map(Fraction, args)
    if name == "addf":
        return a + rest[0]
    if name == "subf":
        return a - rest[0]
    if name == "mulf":
        return a * rest[0]
    if name == "divf":
        return a / rest[0] if rest[0] else None
    return a * rest[0] + rest[1]


def ieee(name: str, args: list[float]) -> float:
    """What float64 gives for operands or results of zero and infinity (only its kind and sign count)."""
    with np.errstate(all="ignore"):
        a, *rest = (np.float64(one) for one in args)
        if name == "addf":
            return float(a + rest[0])
        if name == "subf":
            return float(a - rest[0])
        if name == "mulf":
            return float(a * rest[0])
        if name == "divf":
            return float(a / rest[0])
        return float(a * rest[0] + rest[1])


def wanted(name: str, args: list[float], element: str, mode: str) -> float:
    if all(map(math.isfinite, args)):
        result = exactly(name, args)
        if result:
            return oracle.rounded(result, element, mode)
        if result == 0 and name in ("addf", "subf", "fma"):
            first = args[0] if name != "fma" else math.copysign(1, args[0]) * math.copysign(1, args[1])
            last = -args[-1] if name == "subf" else args[-1]
            if math.copysign(1, first) != math.copysign(1, last):
                return -0.0 if mode == "negative_inf" else 0.0
            return math.copysign(0.0, first)
    elif name == "fma" and all(map(math.isfinite, args[:2])):
        return args[2]
    return ieee(name, args)


@pytest.mark.parametrize("element", BASE)
@pytest.mark.parametrize("name", ["addf", "subf", "mulf", "divf", "fma"])
@given(st.integers(0, 1 << 32), st.sampled_from(MODES))
@settings(max_examples=30)
def test_rounded_once(name, element, seed, mode):
    """Of each seed and mode 16 operands at once: one at a time, drawing them took most of the time."""
    args = [many_values(element, np.random.default_rng((seed, number)), 16) for number in range(2 + (name == "fma"))]
    names = ("lhs", "rhs", "acc")
    arrays = {key: tile(element, *column) for key, column in zip(names, args, strict=False)}
    got = run(name, element, rounding_mode=mode, flush_to_zero=False, **arrays)
    assert got.dtype == STORAGE[element]
    for row, given_ in enumerate(map(list, zip(*args, strict=True))):
        result = wanted(name, given_, element, mode)
        if name == "divf" and element in ("f16", "bf16") and mode == "nearest_even":
            single = wanted(name, given_, "f32", mode)  # emulated in f32
            result = oracle.rounded(Fraction(single), element) if single and math.isfinite(single) else single
        assert same(got[:, row : row + 1], [[result]]), (given_, mode, result)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["addf", "mulf", "divf", "subf"])
@pytest.mark.parametrize("element", BASE)
def test_all_pairs_of_special_values(element, name, mode):
    for a, b in itertools.product(SPECIAL[element], repeat=2):
        if name == "divf" and element == "bf16" and mode == "nearest_even":
            continue
        got = run(name, element, rounding_mode=mode, lhs=tile(element, a), rhs=tile(element, b))
        assert same(got, [[wanted(name, [a, b], element, mode)]]), (a, b)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("element", BASE)
def test_fma_of_all_special_triples(element, mode):
    triples = list(itertools.product(SPECIAL[element], repeat=3))
    lhs, rhs, acc = (tile(element, *column) for column in zip(*triples, strict=True))
    got = run("fma", element, rounding_mode=mode, lhs=lhs, rhs=rhs, acc=acc)
    result = [wanted("fma", list(triple), element, mode) for triple in triples]
    assert same(got, [result])


def test_fma_where_two_roundings_differ():
    """1 + 2**-23 + 2**-24 is a tie in f32 that the tail decides, 60 bits below."""
    tail = np.float32(2.0**-60)
    got = run(
        "fma",
        "f32",
        rounding_mode="nearest_even",
        lhs=tile("f32", tail, -tail, 0),
        rhs=tile("f32", 2.0**-24, 2.0**-24, 1),
        acc=tile("f32", 1.0, 1.0, -0.0),
    )
    assert got.tolist() == [[1, 1, 0]]
    square = Fraction(1 + 2**-12) ** 2  # a tie of f32
    factor = tile("f32", 1 + 2.0**-12)
    for tail in (2.0**-80, -(2.0**-80)):
        got = run("fma", "f32", rounding_mode="nearest_even", lhs=factor, rhs=factor, acc=tile("f32", tail))
        assert same(got, [[oracle.rounded(square + Fraction(tail), "f32")]])


@pytest.mark.parametrize("element", BASE)
@given(data=st.data())
@settings(max_examples=60)
def test_square_roots(element, data):
    value, mode = data.draw(values(element)), data.draw(st.sampled_from(MODES))
    got = float(wide(run("sqrt", element, rounding_mode=mode, source=tile(element, value)))[0, 0])
    if not value > 0 or math.isinf(value):
        assert same(got, value if value == 0 or value == math.inf else math.nan)
        return
    precision = oracle.FORMATS[element][0]
    unit = Fraction(2) ** (math.frexp(got)[1] - precision)
    below, root = Fraction(got) - unit, Fraction(got)
    number = Fraction(value)
    if mode == "nearest_even":
        assert (root - unit / 2) ** 2 <= number <= (root + unit / 2) ** 2 or (root - unit / 4) ** 2 <= number
    elif mode == "positive_inf":
        assert (below if root != Fraction(2) ** (math.frexp(got)[1] - 1) else root - unit / 2) ** 2 < number <= root**2
    else:
        assert root**2 <= number < (root + unit) ** 2


@pytest.mark.parametrize("name", ["addf", "mulf", "subf"])
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_halves_over_many_pairs(element, name):
    """All 2**16 values against some others; float64 is exact for a product and, to a tie, for a sum."""
    every = from_bits(np.arange(1 << 16), element)[None]
    for other in SPECIAL[element]:
        got = run(name, element, rounding_mode="nearest_even", lhs=every, rhs=tile(element, other))
        with np.errstate(all="ignore"):
            a, b = every.astype(np.float64), np.float64(other)
            result = {"addf": a + b, "subf": a - b, "mulf": a * b}[name]
        assert same(got, numbers.round_to(result, element))


@given(values("f32"), values("f32"), st.sampled_from(["addf", "mulf", "divf", "subf"]))
def test_flushing_of_operands_and_results(a, b, name):
    def flush(one: float) -> float:
        return math.copysign(0.0, one) if abs(one) < 2.0**-126 else one

    got = run(name, "f32", rounding_mode="nearest_even", flush_to_zero=True, lhs=tile("f32", a), rhs=tile("f32", b))
    assert same(got, [[flush(wanted(name, [flush(a), flush(b)], "f32", "nearest_even"))]])


@pytest.mark.parametrize("element", BASE)
@pytest.mark.parametrize("propagating", [False, True])
@given(data=st.data())
@settings(max_examples=40)
def test_extremes(element, propagating, data):
    a, b = data.draw(values(element)), data.draw(values(element))
    for name in ("maxf", "minf"):
        got = run(name, element, propagate_nan=propagating, lhs=tile(element, a), rhs=tile(element, b))
        known = [one for one in (a, b) if not math.isnan(one)]
        if not known or (propagating and len(known) < 2):
            assert np.isnan(wide(got)).all()
        else:
            ranked = sorted(known, key=lambda one: (one, math.copysign(1, one)))
            assert same(got, [[ranked[-1] if name == "maxf" else ranked[0]]])


def test_extremes_flush():
    tiny = tile("f32", -(2.0**-140))
    assert same(run("maxf", "f32", flush_to_zero=True, lhs=tiny, rhs=tiny), [[-0.0]])
    with pytest.raises(Unsupported, match="flush_to_zero of f64"):
        run("maxf", "f64", flush_to_zero=True, lhs=tile("f64", 1), rhs=tile("f64", 1))


@pytest.mark.parametrize("element", BASE)
@given(data=st.data())
@settings(max_examples=40)
def test_comparison(element, data):
    a, b = data.draw(values(element)), data.draw(values(element))
    unordered = math.isnan(a) or math.isnan(b)
    predicates = {
        "equal": a == b,
        "not_equal": a != b,
        "less_than": a < b,
        "less_than_or_equal": a <= b,
        "greater_than": a > b,
        "greater_than_or_equal": a >= b,
    }
    for predicate, holds in predicates.items():
        for ordering in ("ordered", "unordered"):
            got = run(
                "cmpf",
                "i1",
                types={"lhs": element, "rhs": element},
                comparison_predicate=predicate,
                comparison_ordering=ordering,
                lhs=tile(element, a),
                rhs=tile(element, b),
            )
            assert got.dtype == np.bool_
            assert got[0, 0] == ((ordering == "unordered") if unordered else holds)


@pytest.mark.parametrize("element", BASE)
@given(data=st.data())
@settings(max_examples=40)
def test_signs_and_whole_numbers(element, data):
    value = data.draw(values(element))
    source = tile(element, value)
    assert same(run("absf", element, source=source), [[abs(value)]])
    assert same(run("negf", element, source=source), [[-value]])
    assert np.signbit(wide(run("negf", element, source=source)))[0, 0] == (not np.signbit(wide(source))[0, 0])
    for name, function in (("ceil", math.ceil), ("floor", math.floor)):
        exactly = math.copysign(function(value), value) if math.isfinite(value) else value
        assert same(run(name, element, source=source), [[exactly]])


@pytest.mark.parametrize("element", BASE)
@given(data=st.data())
@settings(max_examples=60)
def test_remainder(element, data):
    a, b = data.draw(values(element)), data.draw(values(element))
    if not math.isfinite(a) or math.isnan(b) or b == 0:
        result = math.nan
    elif math.isinf(b):
        result = a
    else:
        quotient = Fraction(a) / Fraction(b)
        result = math.copysign(float(Fraction(a) - math.trunc(quotient) * Fraction(b)), a)
    assert same(run("remf", element, lhs=tile(element, a), rhs=tile(element, b)), [[result]])


FUNCTIONS = {
    "exp": math.exp,
    "exp2": lambda one: 2.0**one,
    "log": math.log,
    "log2": math.log2,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "rsqrt": lambda one: 1 / math.sqrt(one),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@given(value=st.floats(2.0**-20, 80, width=32))
@settings(max_examples=30)
def test_functions(name, value):
    """Of f32: within a thousandth of a unit in the last place more than the half of a rounding."""
    result = FUNCTIONS[name](value)
    got = float(run(name, "f32", rounding_mode="approx", source=tile("f32", value))[0, 0])
    unit = math.ulp(result) * 2.0**29
    assert abs(got - result) <= unit * 0.501
    assert run(name, "f64", source=tile("f64", value))[0, 0] == pytest.approx(result, rel=1e-14)
    for element in ("f16", "bf16"):
        half = tile(element, value)
        single = run(name, "f32", source=half.astype(np.float32))
        with np.errstate(over="ignore"):
            assert same(run(name, element, source=half), single.astype(STORAGE[element]))


def test_functions_at_the_ends():
    def f32(name, *given):
        return run(name, "f32", source=tile("f32", *given))

    assert same(f32("exp2", -math.inf, math.inf, 128, -150, -149), [[0, math.inf, math.inf, 0, 2.0**-149]])
    assert same(f32("log", 0, -0.0, -1, math.inf, 1), [[-math.inf, -math.inf, math.nan, math.inf, 0]])
    assert same(f32("rsqrt", 0, -0.0, -1, math.inf), [[math.inf, -math.inf, math.nan, 0]])
    assert same(f32("sin", -0.0, math.inf), [[-0.0, math.nan]])
    assert same(f32("tanh", -0.0, math.inf, -math.inf), [[-0.0, 1, -1]])
    flushing = run("exp2", "f32", flush_to_zero=True, source=tile("f32", -149, -126, 2.0**-140))
    assert same(flushing, [[0, 2.0**-126, 1]])


def test_powers_and_angles():
    base = tile("f32", 2, -2, 0, -8, math.nan, 1)
    power = tile("f32", 0.5, 3, -1, 1 / 3, 0, math.nan)
    root = np.float32(math.sqrt(2))
    assert same(run("fpowf", "f32", source=base, exponent=power), [[root, -8, math.inf, math.nan, 1, 1]])
    whole = np.array([[3, 2, -1, 2, 0, -1]], np.int32)
    got = run("fpowi", "f32", types={"exponent": "i32"}, source=base, exponent=whole)
    assert same(got, [[8, 4, math.inf, 64, 1, 1]])
    # cuTile passes the ordinate first.
    right = np.float32(math.pi / 2)
    assert same(run("atan2", "f32", x=tile("f32", 1, -1), y=tile("f32", 0, -0.0)), [[right, -right]])


@given(st.sampled_from(["f32", "bf16"]), st.integers(1, 3), st.booleans(), st.lists(st.integers(1, 3), max_size=3))
def test_lanes_broadcast(element, lanes, first_is_wide, shape):
    rng = np.random.default_rng(len(shape))
    several = rng.normal(size=(lanes, *shape)).astype(STORAGE[element])
    shared = rng.normal(size=(1, *shape)).astype(STORAGE[element])
    lhs, rhs = (several, shared) if first_is_wide else (shared, several)
    before = lhs.copy(), rhs.copy()
    for name in ("addf", "mulf", "maxf", "remf"):
        got = run(name, element, rounding_mode="nearest_even", lhs=lhs, rhs=rhs)
        each = [
            run(name, element, rounding_mode="nearest_even", lhs=lhs[[lane % len(lhs)]], rhs=rhs[[lane % len(rhs)]])
            for lane in range(lanes)
        ]
        assert got.shape == (lanes, *shape) and same(got, np.concatenate(each))
    for mode in ("nearest_even", "zero"):
        got = run("fma", element, rounding_mode=mode, lhs=lhs, rhs=rhs, acc=shared)
        assert got.shape == (lanes, *shape) and got.dtype == STORAGE[element]
    assert same(lhs, before[0]) and same(rhs, before[1])


def test_refusals():
    one = tile("f32", 1)
    with pytest.raises(Unsupported, match="tf32"):
        run("addf", "tf32", rounding_mode="nearest_even", lhs=one, rhs=one)
    with pytest.raises(Unsupported, match="approx"):
        run("addf", "f32", rounding_mode="approx", lhs=one, rhs=one)
    with pytest.raises(Unsupported, match="flush_to_zero of f16"):
        run("exp2", "f16", flush_to_zero=True, source=tile("f16", 1))


# Conversions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", [*oracle.FORMATS])
@given(data=st.data())
@settings(max_examples=30)
def test_between_floats(element, data):
    source = data.draw(st.sampled_from(BASE))
    value, mode = data.draw(values(source)), data.draw(st.sampled_from(numbers.MODES))
    got = run("ftof", element, types={"from_": source}, rounding_mode=mode, from_=tile(source, value))
    if value and math.isfinite(value) and element != "f64":
        assert same(got, [[oracle.rounded(Fraction(value), element, mode)]])
    elif value == 0 or element == "f64":
        assert same(got, [[value]])


@pytest.mark.parametrize("width", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("signedness", ["signed", "unsigned"])
@given(data=st.data())
@settings(max_examples=30)
def test_integers_to_floats(width, signedness, data):
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signedness == "signed" else (0, (1 << width) - 1)
    number = data.draw(st.integers(low, high) | st.integers(0, 63).map(lambda bit: min(high, (1 << bit) + 1)))
    element = data.draw(st.sampled_from([*BASE, "tf32"]))
    mode = data.draw(st.sampled_from(MODES))
    source = numbers.constant_values(Constant(f"i{width}", (number,)))[None]
    got = run("itof", element, types={"from_": f"i{width}"}, signedness=signedness, rounding_mode=mode, from_=source)
    assert same(got, [[oracle.rounded(Fraction(number), element, mode) if number else 0.0]]), number


def test_integers_beyond_the_range():
    number = np.array([[70000, -70000, 448, 464]], np.int32)
    f16 = run("itof", "f16", types={"from_": "i32"}, signedness="signed", from_=number)
    assert same(f16, [[math.inf, -math.inf, 448, 464]])
    small = {"types": {"from_": "i32"}, "signedness": "signed"}
    assert same(run("itof", "f8E4M3FN", from_=number[:, 2:3], **small), [[448]])
    with pytest.raises(Unsupported, match="beyond"):
        run("itof", "f8E4M3FN", from_=number, **small)


@pytest.mark.parametrize("width", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("signedness", ["signed", "unsigned"])
@given(data=st.data())
@settings(max_examples=30)
def test_floats_to_integers(width, signedness, data):
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signedness == "signed" else (0, (1 << width) - 1)
    element = data.draw(st.sampled_from(BASE))
    value = data.draw(
        values(element)
        | st.floats(float(low) * 1.01, float(high) * 1.01).map(
            lambda one: float(numbers.round_to(np.array([one]), element)[0])
        )
    )
    exactly = 0 if math.isnan(value) else high if value == math.inf else low if value == -math.inf else int(value)
    for saturating in (False, True):
        context = Findings()
        got = run(
            "ftoi",
            f"i{width}",
            context,
            types={"from_": element},
            signedness=signedness,
            rounding_mode="nearest_int_to_zero",
            saturating=saturating,
            from_=tile(element, value),
        )
        assert got.dtype == STORAGE[f"i{width}"]
        assert np.array_equal(got[0], numbers.constant_values(Constant(f"i{width}", (max(low, min(high, exactly)),))))
        outside = not math.isfinite(value) or not low <= exactly <= high
        assert bool(context.found) == (outside and not saturating)


def test_bits_and_choices():
    ones = np.array([[0x3F800000, -(2**31)]], np.int32)
    assert same(run("bitcast", "f32", types={"source": "i32"}, source=ones), [[1.0, -0.0]])
    codes = np.arange(-128, 128, dtype=np.int8)[None]
    eights = run("bitcast", "f8E4M3FN", types={"source": "i8"}, source=codes)
    assert np.array_equal(run("bitcast", "i8", types={"source": "f8E4M3FN"}, source=eights), codes)
    fours = run("bitcast", "f4E2M1FN", types={"source": "i4"}, source=codes[:, 120:136])
    assert same(fours[0, 8:10], [0, 0.5]) and same(fours[0, 7], -6.0)
    assert np.array_equal(run("bitcast", "i4", types={"source": "f4E2M1FN"}, source=fours), codes[:, 120:136])
    with pytest.raises(Unsupported, match="bitcast of i1 to i8"):
        run("bitcast", "i8", types={"source": "i1"}, source=np.array([[True]]))
    cond = np.array([[True, False], [False, False]])
    for element in ("bf16", "f8E5M2", "i32"):
        a, b = (np.array([pair]).astype(STORAGE[element]) for pair in ([1, 2], [3, 4]))
        got = run("select", element, types={"cond": "i1"}, cond=cond, val_if_true=a, val_if_false=b)
        assert got.dtype == STORAGE[element] and wide(got).tolist() == [[1, 4], [3, 4]]
    address = np.array([[2**40]])
    assert run("int_to_ptr", "i64", source=address) is address


@given(st.fractions(), st.sampled_from(MODES))
def test_fractions_to_float64(number, mode):
    if number:
        assert arithmetic.rounded_fraction(number, mode) == oracle.rounded(number, "f64", mode)
