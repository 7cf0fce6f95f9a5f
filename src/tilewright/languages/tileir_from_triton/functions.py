"""Mathematical functions: those of the language, and those of libdevice that Tile IR has."""

from __future__ import annotations

import re
from typing import Any

from tilewright.languages.tileir_from_triton.elementwise import NEAREST, widened
from tilewright.languages.tileir_from_triton.translation import Translation, translates
from tilewright.languages.tileir_from_triton.ttir import TtirOp, Untranslated, ValueType
from tilewright.languages.tileir_from_triton.writer import Handle

KEEPS = {"flush_to_zero": False}
FUNCTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "absf": ("AbsF", {}), "absi": ("AbsI", {}), "ceil": ("Ceil", {}), "floor": ("Floor", {}),
    "exp": ("Exp", {"rounding_mode": "FULL"}), "exp2": ("Exp2", KEEPS), "log": ("Log", {}), "log2": ("Log2", {}),
    "sin": ("Sin", {}), "cos": ("Cos", {}), "tan": ("Tan", {}), "sinh": ("SinH", {}), "cosh": ("CosH", {}),
    "tanh": ("TanH", {"rounding_mode": "FULL"}), "sqrt": ("Sqrt", NEAREST), "rsqrt": ("Rsqrt", KEEPS),
    "powf": ("FPowF", {}), "fma": ("Fma", NEAREST), "atan2": ("Atan2", {}),
}  # fmt: skip
"""Name without dialect → the Tile IR operation and its attributes."""
LIBDEVICE = {
    **{name: name for name in FUNCTIONS}, "fabs": "absf", "abs": "absi", "llabs": "absi", "pow": "powf",
    "fast_exp": "exp", "fast_log": "log", "fast_log2": "log2", "fast_sin": "sin", "fast_cos": "cos",
    "fast_tan": "tan", "fast_pow": "powf", "sqrt_rn": "sqrt", "fsqrt_rn": "sqrt", "dsqrt_rn": "sqrt",
    "fmaf_rn": "fma", "fma_rn": "fma", "fast_tanh": "tanh", "frsqrt_rn": "rsqrt", "drsqrt_rn": "rsqrt",
}  # fmt: skip
"""libdevice's name without ``__nv_`` and the ``f`` of float → name in `FUNCTIONS`."""
AT_ANY_WIDTH = ("absf", "absi")


@translates(*(f"math.{name}" for name in FUNCTIONS), "tt.precise_sqrt")
def function(t: Translation, op: TtirOp) -> Handle:
    name = "sqrt" if op.name == "tt.precise_sqrt" else op.name.partition(".")[2]
    return applied(t, name, op.type, t.all(op.operands))


def applied(t: Translation, name: str, kind: ValueType, values: list[Handle]) -> Handle:
    """Applies a function. One of 16 bits is computed in f32, and rounded once."""
    operation, attributes = FUNCTIONS[name]
    wide = kind if name in AT_ANY_WIDTH else widened(kind)
    if wide.element != "f32" and attributes.get("rounding_mode") == "FULL":
        attributes = {**attributes, "rounding_mode": "NEAREST_EVEN"}
    result = t.emit(operation, wide, *(t.convert(value, kind, wide.element) for value in values), **attributes)
    return t.convert(result, wide, kind.element)


@translates("math.erf")
def erf(t: Translation, op: TtirOp) -> Handle:
    return error_function(t, op.type, t[op.operands[0]])


ERF_ABOVE = (
    0.00022905065861350646,
    0.0034082910107109506,
    0.050955695062380861,
    0.18520832239976145,
    1.128379143519084,
)
ERF_BELOW = (
    -1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885, 0.014070470171167667, 0.11098505178285362,
    0.49746925110067538, 1.0,
)  # fmt: skip
ERF_FLAT = 3.832506856900711
"""Numerator and denominator in x², highest power first, of Eigen's rational approximation of erf, which is within a few
units of the last place of f32; from `ERF_FLAT` on the result is 1."""


def error_function(t: Translation, kind: ValueType, value: Handle) -> Handle:
    """Tile IR has no erf, so it is composed of a rational function of f32."""
    wide = widened(kind)
    if wide.element != "f32":
        raise Untranslated("erf of f64")
    limits = [t.constant(sign * ERF_FLAT, wide) for sign in (-1, 1)]
    x = t.convert(value, kind, "f32")
    x = t.emit("MaxF", wide, x, limits[0], propagate_nan=True, flush_to_zero=False)
    x = t.emit("MinF", wide, x, limits[1], propagate_nan=True, flush_to_zero=False)
    square = t.emit("MulF", wide, x, x, **NEAREST)
    above, below = (_polynomial(t, wide, square, terms) for terms in (ERF_ABOVE, ERF_BELOW))
    above = t.emit("MulF", wide, above, x, **NEAREST)
    return t.convert(t.emit("DivF", wide, above, below, **NEAREST), wide, kind.element)


def _polynomial(t: Translation, kind: ValueType, x: Handle, terms: tuple[float, ...]) -> Handle:
    value = t.constant(terms[0], kind)
    for term in terms[1:]:
        value = t.emit("Fma", kind, value, x, t.constant(term, kind), **NEAREST)
    return value


@translates("tt.extern_elementwise")
def libdevice(t: Translation, op: TtirOp) -> Handle:
    """A function of libdevice, by the name of its symbol."""
    symbol = str(op.attributes["symbol"])
    known = re.fullmatch(r"__nv_(\w+)", symbol)
    stem = known[1] if known else ""
    values, kind = t.all(op.operands), op.operands[0].type
    for name in (stem, stem.removesuffix("f")):
        if name in COMPOSED:
            return COMPOSED[name](t, op.operands[0].type, values)
        if name in LIBDEVICE and op.type.is_float == kind.is_float:
            return applied(t, LIBDEVICE[name], op.type, values)
    raise Untranslated(f"Tile IR has no counterpart of libdevice's {symbol}")


def _is(how: str, ordering: str, magnitude: bool) -> Any:
    """A test of a number against infinity, or of its difference from itself; the result is i32, as libdevice's."""

    def test(t: Translation, kind: ValueType, values: list[Handle]) -> Handle:
        (value,) = values
        other = t.constant(float("inf"), kind) if magnitude else value
        left = t.emit("AbsF", kind, value) if magnitude else value
        found = t.emit("CmpF", kind.of("i1"), left, other, how, ordering)
        return t.emit("ExtI", kind.of("i32"), found, "Unsigned")

    return test


def _division(mode: str) -> Any:
    def divided(t: Translation, kind: ValueType, values: list[Handle]) -> Handle:
        return t.emit("DivF", kind, *values, rounding_mode=mode, flush_to_zero=False)

    return divided


def _truncated(t: Translation, kind: ValueType, values: list[Handle]) -> Handle:
    """Rounds to zero: floor of the magnitude, with the number's sign."""
    size = t.emit("Floor", kind, t.emit("AbsF", kind, values[0]))
    negative = t.emit("CmpF", kind.of("i1"), values[0], t.constant(0.0, kind), "LESS_THAN", "ORDERED")
    return t.emit("Select", kind, negative, t.emit("NegF", kind, size), size)


def _exp10(t: Translation, kind: ValueType, values: list[Handle]) -> Handle:
    return t.emit(
        "Exp2", kind, t.emit("MulF", kind, values[0], t.constant(3.321928094887362, kind), **NEAREST), **KEEPS
    )


def _extreme(name: str) -> Any:
    def extreme(t: Translation, kind: ValueType, values: list[Handle]) -> Handle:
        return t.emit(name, kind, *values, propagate_nan=False, flush_to_zero=False)

    return extreme


COMPOSED: dict[str, Any] = {
    "erf": lambda t, kind, values: error_function(t, kind, values[0]),
    "isnan": _is("NOT_EQUAL", "UNORDERED", magnitude=False), "isnanf": _is("NOT_EQUAL", "UNORDERED", magnitude=False),
    "isnand": _is("NOT_EQUAL", "UNORDERED", magnitude=False),
    "isinf": _is("EQUAL", "ORDERED", magnitude=True), "isinff": _is("EQUAL", "ORDERED", magnitude=True),
    "isinfd": _is("EQUAL", "ORDERED", magnitude=True),
    "finitef": _is("LESS_THAN", "ORDERED", magnitude=True), "isfinited": _is("LESS_THAN", "ORDERED", magnitude=True),
    "fdiv_rn": _division("NEAREST_EVEN"), "ddiv_rn": _division("NEAREST_EVEN"), "fast_fdivide": _division("FULL"),
    "trunc": _truncated, "exp10": _exp10, "fast_exp10": _exp10, "fmax": _extreme("MaxF"), "fmin": _extreme("MinF"),
}  # fmt: skip
"""libdevice functions that are composed of several operations."""
