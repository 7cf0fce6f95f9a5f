"""Numbers worked out another way than `tilewright.tileir` does: in fractions, from the definitions.

A format is (precision, exponent of the least normal number, largest number). Nothing here uses floating
point but to enumerate what it compares.
"""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.tileir.read.tree import Op, TileType
from tilewright.tileir.run.registry import IN_CONTEXT, PURE

FORMATS = {
    "f64": (53, -1022, Fraction(2**53 - 1) * 2**971),
    "f32": (24, -126, Fraction(2**24 - 1) * 2**104),
    "tf32": (11, -126, Fraction(2**11 - 1) * 2**117),
    "bf16": (8, -126, Fraction(2**8 - 1) * 2**120),
    "f16": (11, -14, Fraction(65504)),
    "f8E4M3FN": (4, -6, Fraction(448)),
    "f8E5M2": (3, -14, Fraction(57344)),
    "f4E2M1FN": (2, 0, Fraction(6)),
}
SATURATING = ("f8E4M3FN", "f8E5M2", "f4E2M1FN")


def integer(exact: Fraction, mode: str) -> int:
    """The integer next to ``exact``."""
    below = math.floor(exact)
    rest = exact - below
    if rest == 0:
        return below
    if mode in ("nearest_even", "nearest_away"):
        if rest != Fraction(1, 2):
            return below + (rest > Fraction(1, 2))
        return below + (below % 2 == 1 if mode == "nearest_even" else exact > 0)
    return below + {"zero": exact < 0, "negative_inf": False, "positive_inf": True}[mode]


def rounded(exact: Fraction, element: str, mode: str = "nearest_even") -> float:
    """The number of ``element`` for a rational other than zero."""
    precision, least, largest = FORMATS[element]
    sign = -1.0 if exact < 0 else 1.0
    exponent = abs(exact).numerator.bit_length() - exact.denominator.bit_length()
    exponent -= abs(exact) < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, least) - precision + 1)
    result = integer(exact / unit, mode) * unit
    if abs(result) > largest:
        inward = mode == "zero" or mode == ("positive_inf" if sign < 0 else "negative_inf")
        return sign * (float(largest) if inward or element in SATURATING else math.inf)
    return float(result) if result else math.copysign(0.0, sign)


def same(actual: Any, wanted: Any) -> bool:
    """Equal to the sign of zero; any NaN is any other."""
    with np.errstate(invalid="ignore"):
        a, b = np.asarray(actual).astype(np.float64), np.asarray(wanted).astype(np.float64)
    return a.shape == b.shape and bool(
        np.all((np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b))))
    )


class Findings:
    """Stands for the interpreter's context: keeps what is reported."""

    dry, world = False, SimpleNamespace(checks_assumptions=True)

    def __init__(self) -> None:
        self.found: list[tuple[str, str, int | None]] = []

    def finding(self, op: Op, kind: str, message: str, lane: int | None = None, element: Any = None) -> None:
        self.found.append((kind, message, lane))


def run(name: str, result: str, context: Findings | None = None, /, *, types: Any = None, **given: Any) -> Any:
    """Runs an operation. Arrays are operands (their leading axis is that of lanes), of type ``result`` or
    what ``types`` says; everything else is an attribute."""
    arrays = {key: value for key, value in given.items() if isinstance(value, np.ndarray)}
    shape = np.broadcast_shapes(*(value.shape for value in arrays.values()))[1:]
    kinds = {key: (TileType(value.shape[1:], (types or {}).get(key, result)),) for key, value in arrays.items()}
    attributes = {key: value for key, value in given.items() if key not in arrays}
    op = Op(name, ("%r",), (TileType(shape, result),), {key: (f"%{key}",) for key in arrays}, kinds, attributes)
    if name in PURE:
        return PURE[name](op, **arrays)
    return IN_CONTEXT[name](context or Findings(), op, **arrays)
