"""Functions of libdevice that need several operations of Tile IR."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from tilewright.languages.tileir_from_triton.elementwise import NEAREST
from tilewright.languages.tileir_from_triton.translation import Translation
from tilewright.languages.tileir_from_triton.ttir import Untranslated, ValueType
from tilewright.languages.tileir_from_triton.writer import Attributes, Handle

KEEPS: Attributes = {"flush_to_zero": False}
Term: TypeAlias = "Handle | float"
"""A tile, or a number that becomes a constant."""


class Expressions:
    """Generates expressions on floating-point tiles of one type. Plain numbers become constants."""

    def __init__(self, t: Translation, kind: ValueType) -> None:
        self.t, self.kind, self.flags = t, kind, kind.of("i1")

    def _handle(self, value: Term) -> Handle:
        return self.t.constant(value, self.kind) if isinstance(value, float) else value

    def _apply(self, name: str, *values: Term, **attributes: str | bool | None) -> Handle:
        return self.t.emit(name, self.kind, *map(self._handle, values), **attributes)

    def add(self, a: Term, b: Term) -> Handle:
        return self._apply("AddF", a, b, **NEAREST)

    def sub(self, a: Term, b: Term) -> Handle:
        return self._apply("SubF", a, b, **NEAREST)

    def mul(self, a: Term, b: Term) -> Handle:
        return self._apply("MulF", a, b, **NEAREST)

    def div(self, a: Term, b: Term, mode: str = "NEAREST_EVEN") -> Handle:
        return self._apply("DivF", a, b, rounding_mode=mode, flush_to_zero=False)

    def fma(self, a: Term, b: Term, c: Term) -> Handle:
        return self._apply("Fma", a, b, c, **NEAREST)

    def extreme(self, name: str, a: Term, b: Term, loud: bool = False) -> Handle:
        return self._apply(name, a, b, propagate_nan=loud, flush_to_zero=False)

    def unary(self, name: str, a: Term, **attributes: str | bool | None) -> Handle:
        return self._apply(name, a, **attributes)

    def compare(self, how: str, a: Term, b: Term, ordering: str = "ORDERED") -> Handle:
        return self.t.emit("CmpF", self.flags, self._handle(a), self._handle(b), how, ordering)

    def select(self, condition: Handle, a: Term, b: Term) -> Handle:
        return self.t.emit("Select", self.kind, condition, self._handle(a), self._handle(b))

    def polynomial(self, x: Handle, terms: tuple[float, ...]) -> Handle:
        """Generates a polynomial. The coefficient of the highest power is first."""
        value = self._handle(terms[0])
        for term in terms[1:]:
            value = self.fma(value, x, term)
        return value

    def signed(self, magnitude: Handle, sign: Handle) -> Handle:
        """Generates ``-magnitude`` where the sign bit of ``sign`` is set, as in -0.0, and ``magnitude`` elsewhere."""
        integers = self.kind.of(f"i{self.kind.bits}")
        bits, zero = self.t.emit("Bitcast", integers, sign), self.t.constant(0, integers)
        negative = self.t.emit("CmpI", self.flags, bits, zero, "LESS_THAN", "Signed")
        return self.select(negative, self.unary("NegF", magnitude), magnitude)


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
"""From this number on, erf is 1. Below, erf is x · `ERF_ABOVE` / `ERF_BELOW`, two polynomials in x² (highest power
first). This is Eigen's rational approximation. Its error is a few units in the last place of f32."""


def erf(e: Expressions, x: Handle) -> Handle:
    if e.kind.element != "f32":
        raise Untranslated(f"erf of {e.kind.element}")
    x = e.extreme("MinF", e.extreme("MaxF", x, -ERF_FLAT, loud=True), ERF_FLAT, loud=True)
    square = e.mul(x, x)
    return e.div(e.mul(e.polynomial(square, ERF_ABOVE), x), e.polynomial(square, ERF_BELOW))


def truncated(e: Expressions, x: Handle) -> Handle:
    return e.signed(e.unary("Floor", e.unary("AbsF", x)), x)


def half_away(e: Expressions, x: Handle) -> Handle:
    """Generates the nearest integer. Halves are rounded away from zero."""
    size = e.unary("AbsF", x)
    below = e.unary("Floor", size)
    up = e.compare("GREATER_THAN_OR_EQUAL", e.sub(size, below), 0.5)
    return e.signed(e.select(up, e.add(below, 1.0), below), x)


def half_even(e: Expressions, x: Handle) -> Handle:
    """Generates the nearest integer. Halves are rounded to the even integer.

    From 2**23 (f64: 2**52) on, all numbers are integers.
    """
    large = 2.0 ** (52 if e.kind.element == "f64" else 23)
    size = e.unary("AbsF", x)
    rounded = e.sub(e.add(size, large), large)
    return e.signed(e.select(e.compare("LESS_THAN", size, large), rounded, size), x)


def log1p(e: Expressions, x: Handle) -> Handle:
    """Generates log(1 + x), corrected for the rounding error of the sum (Kahan's method)."""
    sum_ = e.add(x, 1.0)
    exact = e.compare("EQUAL", sum_, 1.0)
    lost = e.div(e.mul(e.unary("Log", sum_), x), e.sub(sum_, 1.0))
    whole = e.select(e.compare("LESS_THAN", sum_, float("inf")), lost, sum_)
    return e.select(exact, x, whole)


def expm1(e: Expressions, x: Handle) -> Handle:
    """Generates exp(x) - 1, corrected for the rounding error of exp (Kahan's method)."""
    power = e.unary("Exp", x, rounding_mode="FULL")
    less = e.sub(power, 1.0)
    lost = e.div(e.mul(less, x), e.unary("Log", power))
    inside = e.t.emit(
        "AndI", e.flags, e.compare("GREATER_THAN", less, -1.0), e.compare("LESS_THAN", power, float("inf"))
    )
    return e.select(e.compare("EQUAL", power, 1.0), x, e.select(inside, lost, less))


def arc(e: Expressions, x: Handle, cosine: bool) -> Handle:
    """Generates asin or acos as the angle of the point (sqrt(1 - x²), x)."""
    root = e.mul(e.sub(1.0, x), e.add(x, 1.0))
    other = e.unary("Sqrt", root, **NEAREST)
    return e.unary("Atan2", other, y=x) if cosine else e.unary("Atan2", x, y=other)


def test_of(how: str, ordering: str, magnitude: bool) -> Callable[[Expressions, Handle], Handle]:
    """Returns a function that generates a test for infinity, NaN or a finite number.

    The test compares the number's magnitude with infinity (``magnitude``), or the number with itself. Its result is
    i32, as in libdevice.
    """

    def test(e: Expressions, x: Handle) -> Handle:
        found = e.compare(how, e.unary("AbsF", x), float("inf")) if magnitude else e.compare(how, x, x, ordering)
        return e.t.emit("ExtI", e.kind.of("i32"), found, "Unsigned")

    return test


Composed: TypeAlias = Callable[..., Handle]
NAN = test_of("NOT_EQUAL", "UNORDERED", magnitude=False)
INFINITE = test_of("EQUAL", "ORDERED", magnitude=True)
FINITE = test_of("LESS_THAN", "ORDERED", magnitude=True)
LOG_10, LOG2_10 = 2.302585092994046, 3.321928094887362

COMPOSED: dict[str, Composed] = {
    "erf": erf, "trunc": truncated, "round": half_away, "rint": half_even, "nearbyint": half_even, "log1p": log1p,
    "expm1": expm1, "asin": partial(arc, cosine=False), "acos": partial(arc, cosine=True),
    "atan": lambda e, x: e.unary("Atan2", x, y=e.t.constant(1.0, e.kind)),
    "log10": lambda e, x: e.div(e.unary("Log", x), LOG_10), "fast_log10": lambda e, x: e.div(e.unary("Log", x), LOG_10),
    "exp10": lambda e, x: e.unary("Exp2", e.mul(x, LOG2_10), **KEEPS),
    "fast_exp10": lambda e, x: e.unary("Exp2", e.mul(x, LOG2_10), **KEEPS),
    "copysign": lambda e, x, y: e.signed(e.unary("AbsF", x), y), "saturate": lambda e, x: e.extreme(
        "MinF", e.extreme("MaxF", x, 0.0), 1.0),
    "fdiv_rn": Expressions.div, "ddiv_rn": Expressions.div, "fast_fdivide": partial(Expressions.div, mode="FULL"),
    "fmax": lambda e, x, y: e.extreme("MaxF", x, y), "fmin": lambda e, x, y: e.extreme("MinF", x, y),
    "isnan": NAN, "isnand": NAN, "isinf": INFINITE, "isinfd": INFINITE, "finite": FINITE, "isfinited": FINITE,
}  # fmt: skip
"""Maps a libdevice function to the Python function that generates it as operations of Tile IR. The names lack
libdevice's prefix ``__nv_`` and its suffix ``f`` for float32."""
