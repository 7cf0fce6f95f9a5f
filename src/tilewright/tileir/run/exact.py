"""Sums, products, quotients, roots and fused multiply-adds of floating-point numbers, rounded once.

NumPy rounds to nearest even in the type it computes in. For float32 operands (or narrower ones) only sums need care in
float64: a product is exact there, and a quotient or a root that is not exact is at least 2**-49 of itself away from
every float32, so that rounding it to float64 does not carry it across one. Sums are rounded to odd, and
`numbers.round_to` then rounds to the operands' type in any direction.

Between float64 operands directed rounding and the fused multiply-add are worked out in rational numbers, one element at
a time: exact, and slow.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tilewright.tileir.run.registry import Array


def _made_odd(near: Array, remainder: Array) -> Array:
    """``near + remainder`` rounded to odd, where ``near`` is that sum rounded to nearest (float64)."""
    bits = np.asarray(near).view(np.int64)
    wrong = (remainder != 0) & (bits & 1 == 0) & np.isfinite(near) & np.isfinite(remainder)
    outward = np.signbit(remainder) == np.signbit(near)
    return np.where(wrong, bits + np.where(outward, 1, -1), bits).view(np.float64)


def sum_and_rest(a: Array, b: Array) -> tuple[Array, Array]:
    """float64 ``a + b`` rounded to nearest, and what that lost (exactly, unless the sum overflows)."""
    total = np.asarray(a + b)
    from_b = total - a
    return total, (a - (total - from_b)) + (b - from_b)


def sum_odd(a: Array, b: Array) -> Array:
    """float64 ``a + b`` rounded to odd."""
    return _made_odd(*sum_and_rest(a, b))


def directed_sum(a: Array, b: Array, mode: str) -> Array:
    """float64 ``a + b``, rounded by ``mode``; the sum must not overflow."""
    near, rest = sum_and_rest(a, b)
    if mode == "nearest_even":
        return near
    down = (rest < 0) & ((near > 0) if mode == "zero" else np.bool_(mode == "negative_inf"))
    up = (rest > 0) & ((near < 0) if mode == "zero" else np.bool_(mode == "positive_inf"))
    return np.where(down, np.nextafter(near, -np.inf), np.where(up, np.nextafter(near, np.inf), near))


LARGEST = (2 - 2.0**-52) * 2.0**1023
RATIONAL: dict[str, Callable[..., Fraction]] = {
    "addf": operator.add,
    "subf": operator.sub,
    "mulf": operator.mul,
    "divf": operator.truediv,
    "fma": lambda a, b, c: a * b + c,
}


def float64_exactly(name: str, near: Array, operands: tuple[Array, ...], mode: str) -> Array:
    """The operation ``name`` between float64 ``operands``, rounded once by ``mode``.

    ``near`` is the result of float64 arithmetic: it stands where an operand or the exact result is zero, infinite or
    NaN, but for the sign of a sum that cancels (negative when rounding down).
    """
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    columns = [np.broadcast_to(operand, shape).ravel() for operand in operands]
    results = np.array(np.broadcast_to(near, shape), np.float64).ravel()
    finite = [np.isfinite(column) for column in columns]
    known = np.all(finite, axis=0)
    if name == "fma":  # a product that overflows in float64 only must not meet an infinite term
        results = np.where(finite[0] & finite[1] & ~finite[2], columns[2], results)
    if name == "divf":
        known &= columns[1] != 0
    for place in np.flatnonzero(known):
        numbers = [float(column[place]) for column in columns]
        if name == "sqrt":
            results[place] = _rounded_root(numbers[0], mode) if numbers[0] > 0 else results[place]
            continue
        exact = RATIONAL[name](*(Fraction(number) for number in numbers))
        if exact:
            results[place] = rounded_fraction(exact, mode)
        else:
            results[place] = _zero(name, numbers, mode)
    return results.reshape(shape)


def _zero(name: str, numbers: list[float], mode: str) -> float:
    """The zero that an exact result of zero is: of the terms' common sign, else by the direction."""
    if name in ("mulf", "divf"):
        return math.copysign(0.0, math.copysign(1.0, numbers[0]) * math.copysign(1.0, numbers[1]))
    first = numbers[0]
    last = -numbers[-1] if name == "subf" else numbers[-1]
    if name == "fma":
        first = math.copysign(1.0, numbers[0]) * math.copysign(1.0, numbers[1])
    if math.copysign(1.0, first) == math.copysign(1.0, last):
        return math.copysign(0.0, first)
    return -0.0 if mode == "negative_inf" else 0.0


def _rounded_root(number: float, mode: str) -> float:
    """The square root, from an integer root of 60 bits or more and whether it is exact."""
    exact = Fraction(number)
    shift = 2 * (120 + exact.denominator.bit_length())
    scaled = (exact.numerator << shift) // exact.denominator  # exact: the denominator is a power of two
    root = math.isqrt(scaled)
    # A root that is not exact is neither a float nor a tie: any number just above stands for it.
    return rounded_fraction(Fraction(2 * root + (root * root != scaled), 2 << (shift // 2)), mode)


def rounded_fraction(exact: Fraction, mode: str) -> float:
    """A rational number other than zero as a float64, rounded by ``mode``."""
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -1022) - 52)
    whole, rest = divmod(magnitude, unit)
    up = {
        "nearest_even": rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1),
        "zero": False,
        "negative_inf": exact < 0 and rest > 0,
        "positive_inf": exact > 0 and rest > 0,
    }[mode]
    result = (whole + up) * unit
    if result >= Fraction(2) ** 1024:
        outward = mode == "nearest_even" or mode == ("negative_inf" if exact < 0 else "positive_inf")
        number = math.inf if outward else LARGEST
    else:
        number = float(result)
    return -number if exact < 0 else number
