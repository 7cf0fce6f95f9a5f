"""Every operation through the whole path, from bytecode to results, against NumPy, fractions and Python's integers.

`cases` lists the operations, so that none is forgotten; here each gets data, random shapes and element types, and
the result that it must have. What rounds in every direction and at every end is in the tests of single operations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.tile._bytecode import encodings
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tileir import oracle
from tileir.build import Builder, text_name, tile
from tileir.cases import ARITHMETIC, CASES, ELSEWHERE, MEMORY, REFUSED, SHAPES, Case

from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import PointerType, TileType
from tilewright.tileir.run.interpreter import IMPLEMENTED, run
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.numbers import STORAGE

TABLE = Path(__file__).parent.parent.parent / "docs" / "tile-ir.md"
NO_MEMORY = ("i4", "f4E2M1FN")
"""Elements that no pointer points to."""
BY_THEMSELVES = ("IntToPtr", "PtrToInt", "PtrToPtr", "Pack", "Unpack", "Iota", "Assume")
"""Tested below, with what they need around them."""

# What must come out -----------------------------------------------------------------------------------

Inputs = Mapping[str, Any]
"""Operands by name, as arrays of the storage types."""


def width(element: str) -> int:
    return int(element[1:])


def integers(values: Any, element: str, signedness: str = "signed") -> list[int]:
    numbers = [int(one) for one in np.ravel(values)]
    return numbers if signedness == "signed" else [one % (1 << width(element)) for one in numbers]


def each(function: Callable[..., Any], *operands: Sequence[Any]) -> list[Any]:
    return [function(*one) for one in zip(*operands, strict=True)]


def rounded(case: Case, exact: Fraction, element: str) -> float:
    mode = case.attributes.get("rounding_mode", "nearest_even")
    return oracle.rounded(exact, element, mode if mode in oracle_modes else "nearest_even") if exact else 0.0


oracle_modes = ("nearest_even", "zero", "negative_inf", "positive_inf")
EXACT: dict[str, Callable[..., Fraction]] = {
    "AddF": lambda a, b: a + b,
    "SubF": lambda a, b: a - b,
    "MulF": lambda a, b: a * b,
    "DivF": lambda a, b: a / b,
    "Fma": lambda a, b, c: a * b + c,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Cos": np.cos, "CosH": np.cosh, "Log": np.log, "Log2": np.log2, "Sin": np.sin, "SinH": np.sinh, "Tan": np.tan,
    "Exp": np.exp, "TanH": np.tanh, "Exp2": np.exp2, "Rsqrt": lambda a: 1 / np.sqrt(a), "Sqrt": np.sqrt,
    "FPowF": np.power, "FPowI": np.power, "Atan2": np.arctan2,
}  # fmt: skip
"""Within an ulp of the element type; a square root of one more direction may be the number beside it."""
FLOATS: dict[str, Callable[..., Any]] = {
    "AbsF": np.abs, "Ceil": np.ceil, "Floor": np.floor, "NegF": np.negative, "MaxF": np.maximum, "MinF": np.minimum,
    "RemF": np.fmod,
}  # fmt: skip
COMPARED: dict[str, Callable[..., Any]] = {
    "equal": np.equal, "not_equal": np.not_equal, "less_than": np.less, "less_than_or_equal": np.less_equal,
    "greater_than": np.greater, "greater_than_or_equal": np.greater_equal,
}  # fmt: skip
DIVIDED = {
    "zero": lambda a, b: int(Fraction(a, b)),
    "negative_inf": lambda a, b: a // b,
    "positive_inf": lambda a, b: -(-a // b),
}
INTEGERS: dict[str, Callable[..., int]] = {
    "AddI": lambda a, b: a + b, "SubI": lambda a, b: a - b, "MulI": lambda a, b: a * b, "ShLI": lambda a, b: a << b,
    "ShRI": lambda a, b: a >> b, "MaxI": max, "MinI": min, "RemI": lambda a, b: int(math.fmod(a, b)) if abs(a) < 2**53
    else (abs(a) % abs(b)) * (-1 if a < 0 else 1),
    "AndI": lambda a, b: a & b, "OrI": lambda a, b: a | b, "XOrI": lambda a, b: a ^ b,
    "NegI": lambda a: -a, "AbsI": abs,
}  # fmt: skip
PRODUCTS = ("MmaF", "MmaI", "MmaFScaled")


def wrapped(numbers: Sequence[int], element: str, shape: tuple[int, ...]) -> Any:
    bits = width(element)
    if element == "i1":
        return np.array([one % 2 == 1 for one in numbers], np.bool_).reshape(shape)
    unsigned = [one % (1 << bits) for one in numbers]
    return np.array([one - (1 << bits) * (one >> (bits - 1)) for one in unsigned], STORAGE[element]).reshape(shape)


def expected(case: Case, types: Mapping[str, TileType], result: TileType, given: Inputs) -> Any:
    """The result as an array of any type with the same numbers."""
    name, values, element = case.operation, list(given.values()), str(result.element)
    source = str(next(iter(types.values())).element)
    if name in EXACT:
        exact = [[Fraction(float(one)) for one in np.ravel(value)] for value in values]
        return np.array([rounded(case, one, element) for one in each(EXACT[name], *exact)]).reshape(result.shape)
    if name in FUNCTIONS or name in FLOATS:
        wide = [np.asarray(value).astype(np.float64) for value in values]
        return {**FUNCTIONS, **FLOATS}[name](*wide)
    if name in INTEGERS or name in ("DivI", "MulhiI"):
        return wrapped(_integer(case, element, values), element, result.shape)
    return OTHERS[name](case, source, result, *values)


def _integer(case: Case, element: str, values: Sequence[Any]) -> list[int]:
    signedness = case.attributes.get("signedness", "unsigned" if case.operation == "MulhiI" else "signed")
    operands = [integers(value, element, signedness) for value in values]
    if case.operation == "MulhiI":
        return each(lambda a, b: a * b >> width(element), *operands)
    if case.operation == "DivI":
        return each(DIVIDED[case.attributes["rounding"]], *operands)
    return each(INTEGERS[case.operation], *operands)


def _cmpi(case: Case, source: str, result: TileType, a: Any, b: Any) -> Any:
    how = COMPARED[case.attributes["comparison_predicate"]]
    left, right = (np.array(integers(one, source, case.attributes["signedness"]), object) for one in (a, b))
    return how(left, right).astype(np.bool_).reshape(result.shape)


def _cut(whole: Any, size: Sequence[int], at: Sequence[Any]) -> tuple[slice, ...]:
    return tuple(slice(int(i) * n, (int(i) + 1) * n) for i, n in zip(at, size, strict=True))


def _inserted(case: Case, source: str, result: TileType, part: Any, whole: Any, *at: Any) -> Any:
    changed = whole.copy()
    changed[_cut(whole, part.shape, at)] = part
    return changed


def _converted(case: Case, source: str, result: TileType, value: Any) -> Any:
    mode = case.attributes.get("rounding_mode", "nearest_even")
    numbers = [Fraction(float(one)) for one in np.ravel(value)]
    return np.array([oracle.rounded(one, str(result.element), mode) if one else 0.0 for one in numbers]).reshape(
        result.shape
    )


def _from_integer(case: Case, source: str, result: TileType, value: Any) -> Any:
    numbers = [Fraction(one) for one in integers(value, source, case.attributes["signedness"])]
    return np.array([oracle.rounded(one, str(result.element)) if one else 0.0 for one in numbers]).reshape(result.shape)


def _extended(case: Case, source: str, result: TileType, value: Any) -> Any:
    numbers = integers(value, source, case.attributes.get("signedness", "signed"))
    return wrapped(numbers, str(result.element), result.shape)


def _wide_product(case: Case, source: str, result: TileType, a: Any, b: Any, acc: Any, *scales: Any) -> Any:
    left, right = (np.asarray(one).astype(np.float64) for one in (a, b))
    if case.attributes.get("signedness_lhs") == "unsigned":
        left = left % 256
    if case.attributes.get("signedness_rhs") == "unsigned":
        right = right % 256
    if scales:
        left, right = (one * scale.astype(np.float64) for one, scale in zip((left, right), scales, strict=True))
    return left @ right + acc.astype(np.float64)


OTHERS: dict[str, Callable[..., Any]] = {
    "CmpF": lambda case, s, r, a, b: COMPARED[case.attributes["comparison_predicate"]](a, b),
    "CmpI": _cmpi,
    "Select": lambda case, s, r, c, a, b: np.where(c, a, b),
    "FToF": _converted,
    "IToF": _from_integer,
    "FToI": lambda case, s, r, a: np.trunc(a.astype(np.float64)),
    "ExtI": _extended,
    "TruncI": _extended,
    "Bitcast": lambda case, s, r, a: a.view(STORAGE[str(r.element)]),
    "Broadcast": lambda case, s, r, a: np.broadcast_to(a, r.shape),
    "Reshape": lambda case, s, r, a: a.reshape(r.shape),
    "Permute": lambda case, s, r, a: a.transpose(case.attributes["permutation"]),
    "Cat": lambda case, s, r, a, b: np.concatenate([a, b], case.attributes["dim"]),
    "Extract": lambda case, s, r, a, *at: a[_cut(a, r.shape, at)],
    "Insert": _inserted,
    **dict.fromkeys(PRODUCTS, _wide_product),
}


# Data -------------------------------------------------------------------------------------------------


def drawn(case: Case, name: str, kind: TileType, rng: np.random.Generator) -> Any:
    """Numbers for which the operation is defined."""
    element, shape = str(kind.element), kind.shape
    if element == "i1":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if element.startswith("i"):
        return _drawn_integers(case, name, element, shape, rng)
    if element == "f8E8M0FNU":
        return (2.0 ** rng.integers(-2, 3, shape)).astype(STORAGE[element])
    if case.operation in PRODUCTS:
        return rng.integers(-4, 5, shape).astype(np.float32).astype(STORAGE[element])
    values = rng.normal(size=shape) * 2.0 ** rng.integers(-3, 4, shape)
    if case.operation in ("Log", "Log2", "Rsqrt", "Sqrt", "FPowF", "FPowI"):
        values = np.abs(values) + 0.25
    if case.operation == "DivF":
        values = np.where(values == 0, 1.0, values)
    if case.operation == "FToI":
        values = np.abs(values) if case.attributes.get("signedness") == "unsigned" else values
    found = np.asarray(values).astype(STORAGE[element])
    return np.where(found == 0, STORAGE[element].type(1), found)


def _drawn_integers(case: Case, name: str, element: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    bits = width(element)
    low, high = -(1 << (bits - 1)), 1 << (bits - 1)
    if not shape:
        low, high = 0, 2  # an index of a slice
    elif name == "exponent":
        low, high = -3, 4
    elif case.operation in ("ShLI", "ShRI") and name == "rhs":
        low, high = 0, 3 if "overflow" in case.attributes else bits
    elif case.operation in ("DivI", "RemI") and name == "rhs":
        low, high = 1, high
    elif case.attributes.get("overflow", "none") != "none":
        low, high = (8, 12) if name == "lhs" else (1, 4) if case.operation != "NegI" else (0, 1)
    return rng.integers(low, high, shape).astype(STORAGE[element])


# The path ---------------------------------------------------------------------------------------------


def pointers(b: Builder, base: Any, kind: TileType) -> Any:
    """To the elements of a tile that lies at ``base``, row-major."""
    of = TileType(kind.shape, PointerType(str(kind.element)))
    ones = TileType((1,) * len(kind.shape), of.element)
    spread = b.op("Broadcast", of, source=b.op("Reshape", ones, source=base)) if kind.shape else base
    if not kind.shape:
        return spread
    flat = b.op("Iota", TileType((kind.size,), "i32"))
    places = b.op("Reshape", TileType(kind.shape, "i32"), source=flat)
    return b.op("Offset", of, ptr=spread, offset=places)


def entry(b: Builder, name: str, case: Case, types: Sequence[tuple[str, TileType]], result: TileType) -> None:
    """Loads the operands, runs the operation, stores its result."""
    scalars = [kind if not kind.shape else TileType((), PointerType(str(kind.element))) for _, kind in types]
    with b.entry(name, *scalars, TileType((), PointerType(str(result.element)))) as values:
        operands: dict[str, Any] = {}
        for (operand, kind), value in zip(types, values[:-1], strict=True):
            loaded = value
            if kind.shape:
                loaded = b.op("LoadPtrTko", kind, "token", source=pointers(b, value, kind))[0]
            many = isinstance(case.operands[operand], list)
            operands[operand] = [*operands.get(operand, []), loaded] if many else loaded
        found = b.op(case.operation, result, **operands, **case.attributes)
        b.op("StorePtrTko", "token", destination=pointers(b, values[-1], result), value=found)


def operand_types(case: Case) -> list[tuple[str, TileType]]:
    found = []
    for name, kinds in case.operands.items():
        found += [(name, tile(str(one))) for one in (kinds if isinstance(kinds, list) else [kinds])]
    return found


def check(cases: Sequence[tuple[Case, list[tuple[str, TileType]], TileType]], seed: int) -> None:
    """All cases in one module, an entry each."""
    rng = np.random.default_rng(seed)
    with Builder("13.4", entries=len(cases)) as b:
        for number, (case, types, result) in enumerate(cases):
            entry(b, f"k{number}", case, types, result)
    module = read_bytecode(b.code)
    for number, (case, types, result) in enumerate(cases):
        arrays = [drawn(case, name, kind, rng) for name, kind in types]
        out = np.zeros(result.shape or (1,), STORAGE[str(result.element)])
        memory = Memory()
        bound = [
            memory.allocate(f"operand {n}", a, written=True).address if a.shape else a[()]
            for n, a in enumerate(map(np.asarray, arrays))
        ]
        place = memory.allocate("result", out, written=False).address
        ran = run(module, [*bound, place], (1,), memory, entry=f"k{number}")
        assert not ran.findings, (case, ran.findings)
        named = {f"{name}{n}": array for n, ((name, _), array) in enumerate(zip(types, arrays, strict=True))}
        wanted = np.asarray(expected(case, dict(types), result, named)).reshape(out.shape)
        assert_result(case, str(result.element), out, wanted)


EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}


def assert_result(case: Case, element: str, got: Any, wanted: Any) -> None:
    if case.operation in FUNCTIONS:
        rtol, atol = EPSILON[element] * (8 if element == "f64" else 1), 2.0**-24 if element == "f16" else 0
        with np.errstate(over="ignore"):
            numbers = wanted.astype(got.dtype).astype(np.float64)
        assert np.allclose(got.astype(np.float64), numbers, rtol=rtol, atol=atol), (case, got, wanted)
    else:
        bits = got.dtype.kind in "ib" or case.operation == "Bitcast"
        same = got.tobytes() == wanted.astype(got.dtype).tobytes() if bits else np.all(got == wanted.astype(got.dtype))
        assert same, (case, got, wanted)


# Tests ------------------------------------------------------------------------------------------------

LISTED = [case for case in (*ARITHMETIC, *SHAPES) if case.operation not in BY_THEMSELVES]
ELEMENTWISE = re.compile(r"4x(f32|f64|i32|i1)")


def test_every_listed_case_as_it_stands() -> None:
    cases = [case for case in LISTED if _all_in_memory(case)]
    assert len(cases) == len(LISTED)
    check([(case, operand_types(case), tile(str(case.results[0]))) for case in cases], seed=0)


def _all_in_memory(case: Case) -> bool:
    return all(kind.element not in NO_MEMORY for _, kind in operand_types(case))


def varied(case: Case) -> bool:
    """Whether it may have other shapes and element types: an element-wise operation without what f32 alone has."""
    kinds = [*(str(one) for one in case.operands.values()), str(case.results[0])]
    return (
        all(ELEMENTWISE.fullmatch(kind) for kind in kinds)
        and not case.attributes.get("flush_to_zero")
        and case.attributes.get("rounding_mode") not in ("approx", "full")
        and case.operation not in ("Bitcast", "FToF", "ExtI", "TruncI", "IToF", "FToI")
    )


shapes = st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3).map(tuple)


@pytest.mark.long
@settings(
    max_examples=15, derandomize=True, deadline=None, database=None, phases=[Phase.generate], report_multiple_bugs=False
)
@given(
    shape=shapes,
    floating=st.sampled_from(["f16", "bf16", "f32", "f64"]),
    integer=st.sampled_from(["i8", "i16", "i32", "i64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_operations_on_other_types_and_shapes(shape: tuple[int, ...], floating: str, integer: str, seed: int) -> None:
    def changed(kind: TileType) -> TileType:
        element = str(kind.element)
        return TileType(shape, element if element == "i1" else integer if element[0] == "i" else floating)

    cases = [case for case in LISTED if varied(case) and (case.operation, integer) != ("FPowI", "i64")]  # at most i32
    check(
        [
            (case, [(name, changed(kind)) for name, kind in operand_types(case)], changed(tile(str(case.results[0]))))
            for case in cases
        ],
        seed,
    )


FLOAT_ELEMENTS = ("f16", "bf16", "f32", "f64", "f8E4M3FN", "f8E5M2")
INTEGER_ELEMENTS = ("i8", "i16", "i32", "i64")


@settings(max_examples=10, derandomize=True, deadline=None, database=None)
@given(shape=shapes, seed=st.integers(0, 2**32 - 1))
def test_conversions_between_all_types(shape: tuple[int, ...], seed: int) -> None:
    found: list[tuple[Case, list[tuple[str, TileType]], TileType]] = []

    def add(name: str, start: str, end: str, operand: str = "from_", **attributes: Any) -> None:
        case = Case(name, [end], {operand: start}, attributes)
        found.append((case, [(operand, TileType(shape, start))], TileType(shape, end)))

    for start in FLOAT_ELEMENTS:
        for end in FLOAT_ELEMENTS:
            if start != end:
                add("FToF", start, end)
        for integer in ("i16", "i32", "i64") if start in FLOAT_ELEMENTS[:4] else ():
            for signedness in ("signed", "unsigned"):
                add("FToI", start, integer, signedness=signedness)
    for start in INTEGER_ELEMENTS:
        for end in INTEGER_ELEMENTS:
            if width(start) < width(end):
                add("ExtI", start, end, signedness="signed")
                add("ExtI", start, end, signedness="unsigned")
            elif width(start) > width(end):
                add("TruncI", start, end)
        for floating in ("bf16", "f32", "f64"):
            add("IToF", start, floating, signedness="signed")
            add("IToF", start, floating, signedness="unsigned")
    for start, end in (("i32", "f32"), ("f32", "i32"), ("bf16", "i16"), ("i64", "f64"), ("i8", "f8E5M2")):
        add("Bitcast", start, end, "source")
    check([one for one in found if one[0].operation != "Bitcast" or one[0].results[0] != "f8E5M2"], seed)


def test_pointers_as_numbers() -> None:
    with Builder() as b, b.entry("k", TileType((), PointerType("i32")), TileType((), PointerType("i64"))) as (x, out):
        some = pointers(b, x, TileType((4,), "i32"))
        bytes_ = b.op("PtrToPtr", TileType((4,), PointerType("i8")), source=some)
        numbers = b.op("PtrToInt", "4xi64", source=bytes_)
        again = b.op("IntToPtr", TileType((4,), PointerType("i32")), source=numbers)
        loaded = b.op("LoadPtrTko", "4xi32", "token", source=again)[0]
        wide = b.op("ExtI", "4xi64", from_=loaded, signedness="signed")
        total = b.op("AddI", "4xi64", lhs=wide, rhs=numbers)
        b.op("StorePtrTko", "token", destination=pointers(b, out, TileType((4,), "i64")), value=total)
    memory, given_, result = Memory(), np.array([5, 6, 7, 8], np.int32), np.zeros(4, np.int64)
    start, end = (memory.allocate(n, a, written=True).address for n, a in (("x", given_), ("out", result)))
    assert not run(read_bytecode(b.code), [start, end], (1,), memory).findings
    assert (result - start).tolist() == [5, 10, 15, 20]


def test_bytes_and_halves_of_bytes() -> None:
    with Builder() as b, b.entry("k", *[TileType((), PointerType("i8"))] * 2) as (x, out):
        data = b.op("LoadPtrTko", "8xi8", "token", source=pointers(b, x, tile("8xi8")))[0]
        halves = b.op("Unpack", "16xi4", source=data)
        wide = b.op("ExtI", "16xi8", from_=halves, signedness="signed")
        doubled = b.op("AddI", "16xi8", lhs=wide, rhs=wide)
        back = b.op("Pack", "8xi8", source=b.op("TruncI", "16xi4", from_=doubled))
        b.op("StorePtrTko", "token", destination=pointers(b, out, tile("8xi8")), value=back)
    memory, given_, result = Memory(), np.arange(-70, 90, 20, dtype=np.int8), np.zeros(8, np.int8)
    places = [memory.allocate(n, a, written=True).address for n, a in (("x", given_), ("out", result))]
    assert not run(read_bytecode(b.code), places, (1,), memory).findings
    raw = given_.view(np.uint8)
    assert (result.view(np.uint8) == ((raw & 0xF) * 2 & 0xF | ((raw >> 4) * 2 & 0xF) << 4)).all()


@pytest.mark.parametrize("bad", [False, True])
def test_a_promise_is_checked(bad: bool) -> None:
    promises = [case for case in SHAPES if case.operation == "Assume" and case.results[0] in ("4xi32", "4x8xi32")]
    with Builder() as b, b.entry("k"):
        for case in promises:
            kind = tile(str(case.results[0]))
            value = list(range(-100, kind.size - 100)) if bad else 0
            b.op("Assume", kind, value=b.constant(kind, value), **case.attributes)
    ran = run(read_bytecode(b.code), [], (1,), Memory())
    assert bool(ran.findings) == bad


# Nothing is forgotten ---------------------------------------------------------------------------------


def operations() -> set[str]:
    """Of cuda-tile's encoders."""
    return {found[1] for name in dir(encodings) if (found := re.fullmatch(r"encode_(\w+)Op", name))}


STRUCTURE = {"Entry", "Global", "Module"}
"""What holds operations."""


def test_every_operation_is_listed_and_runs_or_is_refused_by_name() -> None:
    assert operations() == {case.operation for case in CASES} | ELSEWHERE | set(REFUSED)
    assert {case.operation for case in CASES} & {*ELSEWHERE, *REFUSED} == set()
    assert {text_name(one) for one in operations() - STRUCTURE - set(REFUSED)} == IMPLEMENTED
    tested = {*EXACT, *FUNCTIONS, *FLOATS, *INTEGERS, "DivI", "MulhiI", *OTHERS, *BY_THEMSELVES}
    assert tested == {case.operation for case in (*ARITHMETIC, *SHAPES)}
    assert {case.operation for case in MEMORY}.isdisjoint(tested)


def test_the_table_of_the_document_is_complete() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (runs|refused) \| (.*) \|$", TABLE.read_text(), re.MULTILINE)
    refused = {"_".join(re.findall(r"[A-Z][a-z]*", one)).lower(): why for one, why in REFUSED.items()}
    wanted = {text_name(one): "runs" for one in operations() - STRUCTURE - set(REFUSED)}
    wanted |= {one.lower(): "runs" for one in STRUCTURE} | dict.fromkeys(refused, "refused")
    assert {name: status for name, status, _ in rows} == wanted
    assert len(rows) == len(wanted) == len(operations()) == 109
    assert {name: note for name, status, note in rows if status == "refused"} == refused
    assert [name for name, _, _ in rows] == sorted(wanted)
