"""Bad input to a space is one clear line, never a traceback (style rule 7, Part 7 check 5, X-18)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import pytest

from tilewright.errors import RequestError, SpaceError, UnknownChoice
from tilewright.space.space import Space

SHIPPED = {"TILE_M": 128, "occupancy": None}


def space(**changes: object) -> Space:
    declared: dict[str, object] = {
        "constants": {"TILE_M": [64, 128]},
        "hints": {"occupancy": [None, 2]},
        "shipped": SHIPPED,
    }
    return Space(**{**declared, **changes})  # type: ignore[arg-type]


BAD: dict[str, tuple[dict[str, object], str]] = {
    "empty knob list": ({"constants": {"TILE_M": []}}, "constants['TILE_M'] is empty; list at least one value"),
    "generator as values": ({"constants": {"TILE_M": (x for x in (1, 2))}}, "is a generator; give a list"),
    "string as values": ({"constants": {"TILE_M": "64"}}, "constants['TILE_M'] is a string; give a list"),
    "number as values": ({"constants": {"TILE_M": 64}}, "is an int; give a list of values"),
    "dictionary as values": ({"constants": {"TILE_M": {64: 1}}}, "is a dictionary; give a list of values"),
    "set as values": ({"constants": {"TILE_M": {64, 128}}}, "is a set; give a list of values"),
    "list as constants": ({"constants": [64, 128]}, "constants= is a list; give a mapping of knob to list"),
    "tuple as value": ({"constants": {"TILE_M": [(64, 64)]}}, "(64, 64) is a tuple; use int, float, bool or str"),
    "not a number": ({"constants": {"TILE_M": [float("nan")]}}, "nan is not a finite number"),
    "comma in a word": ({"constants": {"TILE_M": ["a,b"]}}, "'a,b' must be a word"),
    "knob named arch": ({"constants": {"arch": [90]}}, "'arch' cannot name a knob"),
    "knob that is no name": ({"constants": {"TILE M": [90]}}, "'TILE M' cannot name a knob"),
    "constant and hint": (
        {"constants": {"TILE_M": [64], "occupancy": [1]}},
        "'occupancy' is both a constant and a hint; declare it once",
    ),
    "unknown hint": ({"hints": {"ocupancy": [1]}}, "unknown hint 'ocupancy'; did you mean 'occupancy'? known: "),
    "bad occupancy": ({"hints": {"occupancy": [33]}}, "occupancy=33 is not valid; use 1 to 32, or None"),
    "bad num_ctas": ({"hints": {"num_ctas": [3]}}, "num_ctas=3 is not valid; use 1, 2, 4, 8, 16, or None"),
    "bad warps": ({"hints": {"num_worker_warps": [16]}}, "num_worker_warps=16 is not valid; use 4, 8, or None"),
    "bad opt_level": ({"hints": {"opt_level": [4]}}, "opt_level=4 is not valid; use 0 to 3, or None"),
    "bool as hint": ({"hints": {"occupancy": [True]}}, "occupancy=True is not valid"),
    "word as hint": ({"hints": {"occupancy": ["auto"]}}, "occupancy='auto' is not valid"),
    "shipped incomplete": ({"shipped": {"TILE_M": 128}}, "shipped: knob 'occupancy' is missing; name all of:"),
    "shipped too much": (
        {"shipped": {**SHIPPED, "TILE_N": 1}},
        "shipped: 'TILE_N' is no knob of this space; did you mean 'TILE_M'? known: TILE_M, occupancy",
    ),
    "shipped no mapping": ({"shipped": None}, "shipped is None; give a mapping of knob to value"),
    "shipped bad hint": ({"shipped": {**SHIPPED, "occupancy": 0}}, "shipped: occupancy=0 is not valid"),
    "only empty": ({"only": []}, "only= is empty; list at least one configuration"),
    "only generator": ({"only": (p for p in [SHIPPED])}, "only is a generator; give a list of configurations"),
    "only dictionary": ({"only": SHIPPED}, "only is a dictionary; give a list of configurations"),
    "only unknown knob": ({"only": [SHIPPED, {"TILE_K": 1}]}, "only[1]: 'TILE_K' is no knob of this space"),
    "include string": ({"include": ["TILE_M=64"]}, "include[0] is a string; give a mapping of knob to value"),
    "where function": ({"where": lambda TILE_M: True}, "where is a function; give a list of functions"),
    "where text": ({"where": ["TILE_M < 128"]}, "where= takes functions, not str 'TILE_M < 128'"),
    "where varargs": ({"where": [lambda *all_of_them: True]}, "must name each parameter"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case: str) -> None:
    changes, message = BAD[case]
    with pytest.raises(SpaceError) as caught:
        space(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


PREDICATES: dict[str, tuple[Callable[..., object], str]] = {
    "unknown name": (
        lambda TILE_M, L: TILE_M <= L,
        "where: 'TILE_M <= L' asks for 'L'; known: TILE_M, occupancy, M, arch",
    ),
    "auto in arithmetic": (
        lambda occupancy: occupancy > 1,
        "where: 'occupancy > 1' fails for occupancy=auto (auto is None: the compiler chooses)",
    ),
    "no answer": (lambda TILE_M: None, "where: 'None' returned None; return True or False"),
    "positional only": (operator.not_, ""),
    "partial": (functools.partial(lambda TILE_M, L: TILE_M <= L), "asks for 'L'"),
}


@pytest.mark.parametrize("case", PREDICATES)
def test_bad_predicate_is_one_clear_line_at_first_use(case: str) -> None:
    predicate, message = PREDICATES[case]
    with pytest.raises(SpaceError) as caught:
        space(where=[predicate]).configurations(90, {"M": 1})
    assert message in str(caught.value)


def test_a_name_that_is_both_a_knob_and_a_dimension_is_refused() -> None:
    with pytest.raises(SpaceError, match="'TILE_M' is both a dimension and a knob"):
        space(where=[lambda TILE_M: TILE_M > 0]).configurations(90, {"TILE_M": 1})


def test_a_product_without_end_is_refused() -> None:
    wide = Space(constants={name: range(1, 200) for name in "abc"}, shipped=dict.fromkeys("abc", 1))
    with pytest.raises(SpaceError, match="7,880,599 configurations"):
        wide.configurations(90, {})


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("TILE_K=64", UnknownChoice, "unknown knob 'TILE_K'; did you mean 'TILE_M'? known: TILE_M, occupancy"),
        ("TILE_M", SpaceError, "'TILE_M' is not of the form knob=value; for example: TILE_M=128,occupancy=auto"),
        ("TILE_M=big", SpaceError, "TILE_M=big is not a value of this knob; for example: 64, 128"),
        ("TILE_M=96", SpaceError, "TILE_M=96 is not a power of two"),
        ("TILE_M=auto", SpaceError, "TILE_M=auto is not a value"),
        ("TILE_M=", SpaceError, "is not a value"),
        ("occupancy=40", SpaceError, "occupancy=40 is not valid"),
        ("occupancy=many", SpaceError, "occupancy='many' is not valid"),
        ("TILE_M=64,TILE_M=128", SpaceError, "'TILE_M' is given twice"),
        ("", SpaceError, "'' names no knob; give knob=value, with commas between several; knobs: TILE_M, "),
        (" , ", SpaceError, "' , ' names no knob; "),
    ],
)
def test_parse_says_what_is_wrong(text: str, kind: type[RequestError], message: str) -> None:
    with pytest.raises(kind) as caught:
        space().parse(text)
    assert message in str(caught.value)


def test_parse_reads_each_type() -> None:
    mixed = Space(
        constants={"TILE_M": [64], "eps": [0.5, 1e-6], "order": ["row", "column"], "swap": [False, True]},
        hints={"num_ctas": [1]},
        shipped={"TILE_M": 64, "eps": 0.5, "order": "row", "swap": False, "num_ctas": 1},
    )
    config = mixed.parse(" TILE_M=256, eps=1e-3 ,order=column,swap=true,num_ctas=AUTO,")
    assert dict(config) == {"TILE_M": 256, "eps": 1e-3, "order": "column", "swap": True, "num_ctas": None}
    assert mixed.chosen(None) == () and mixed.chosen({}) == (mixed.shipped,)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (None, "space is None; pass tilewright.Space("),
        ({"TILE_M": [64]}, "space is a dictionary; pass tilewright.Space(constants={"),
        ((c for c in [SHIPPED]), "space is a generator; pass tilewright.Space("),
        ([SHIPPED], "space is a list; pass tilewright.Space(only=["),
        ("TILE_M", "space is a string; pass tilewright.Space("),
        (Space, "space is a type; pass tilewright.Space("),
    ],
)
def test_checked_names_the_fix(thing: object, message: str) -> None:
    """Part 7 check 5 and A-45: generator, dict and empty inputs give clear errors."""
    with pytest.raises(SpaceError) as caught:
        Space.checked(thing)
    assert message in str(caught.value)


def test_checked_passes_a_space() -> None:
    good = space()
    assert Space.checked(good) is good


def test_allows_and_the_rest_tell_a_configuration_of_another_space() -> None:
    assert "'TILE_K' is no knob" in (space().allows({**SHIPPED, "TILE_K": 1}, 90, {}) or "")
    assert "knob 'occupancy' is missing" in (space().allows({"TILE_M": 64}, 90, {}) or "")
    for use in (space().split, lambda config: space().neighbours(config, 90, {})):
        with pytest.raises(SpaceError, match="knob 'occupancy' is missing"):
            use({"TILE_M": 64})


def test_a_kernel_without_knobs_has_the_one_configuration() -> None:
    fixed = Space(shipped={})
    assert [dict(config) for config in fixed.configurations(90, {})] == [{}]
    assert fixed.neighbours(fixed.shipped, 90, {}) == ()
