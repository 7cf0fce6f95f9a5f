"""Handlers for element-wise floating-point operations.

f32 and f64 follow IEEE 754 and are rounded once, in the direction that the operation specifies. f16 and bf16 are
computed in f32 and then rounded. For the f16 and bf16 operations that the dialect calls native (addition,
multiplication, ``fma``, ``sqrt``), the result is the same as with a single rounding.

Mathematical functions are computed in float64, and rounded to f32 and then to f16 or bf16 (the dialect: "emulated in
f32"). f64 functions are NumPy's functions. ``approx`` and ``full`` are computed as precisely as the rest, so a GPU may
differ by some units in the last place. ``flush_to_zero`` (f32 only) replaces subnormal operands and results by zeros.

NaN results are quiet. Their other bits are NumPy's, not the GPU's 0x7FFFFFFF.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tilewright.tileir.read.tree import Op
from tilewright.tileir.run.numbers import FORMATS, PREDICATES, STORAGE, flushed, round_to, signed
from tilewright.tileir.run.registry import Array, Unsupported, implements

Function = Callable[..., Array]

BASE = ("f16", "bf16", "f32", "f64")
APPROXIMATE = ("approx", "full")
IEEE = ("nearest_even", "zero", "negative_inf", "positive_inf")
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "addf": operator.add, "subf": operator.sub, "mulf": operator.mul, "divf": operator.truediv, "sqrt": np.sqrt,
    "fma": lambda a, b, c: a * b + c,
}  # fmt: skip
"""The function that computes each operation on arrays. All except the square root also take fractions."""
FUNCTIONS: dict[str, Function] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "rsqrt": lambda values: 1.0 / np.sqrt(values), "atan2": np.arctan2, "fpowf": np.power, "fpowi": np.power,
}  # fmt: skip


def _element(op: Op) -> str:
    """Returns the element type of the operands. Raises Unsupported unless it is f16, bf16, f32 or f64."""
    element = op.tile("lhs" if op.name == "cmpf" else None).element
    if not isinstance(element, str) or element not in BASE:
        raise Unsupported(f"{op.name} of {element} is not supported; known: {', '.join(BASE)}")
    return element


def _single(values: Array) -> Array:
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)


def _flushes(op: Op, element: str) -> bool:
    if not op.attributes.get("flush_to_zero"):
        return False
    if element != "f32":
        raise Unsupported(f"{op.name}: flush_to_zero of {element} is not supported; only f32 has it")
    return True


@implements("addf", "subf", "mulf", "divf", "sqrt", "fma")
def arithmetic(op: Op, **named: Array) -> Array:
    """Computes sums, differences, products, quotients, square roots and ``lhs * rhs + acc``, and rounds once."""
    element, mode = _element(op), op.attributes.get("rounding_mode", "nearest_even")
    flushing = _flushes(op, element)
    if mode in APPROXIMATE and op.name in ("divf", "sqrt") and element == "f32":
        mode = "nearest_even"
    elif mode not in IEEE:
        raise Unsupported(f"{op.name}: rounding '{mode}' of {element} is not supported; known: {', '.join(IEEE)}")
    with np.errstate(all="ignore"):
        operands = tuple(_single(operand) for operand in named.values())
        if flushing:
            operands = tuple(flushed(operand) for operand in operands)
        result = _computed(op.name, operands, element, mode)
        # A result that rounds up to the least normal number is not flushed: the dialect flushes rounded results.
        return flushed(result) if flushing else result


def _computed(name: str, operands: tuple[Array, ...], element: str, mode: str) -> Array:
    if element == "f64":
        near = np.asarray(ARITHMETIC[name](*operands))
        if mode == "nearest_even" and name != "fma":
            return near
        return float64_exactly(name, near, operands, mode)
    if mode != "nearest_even":
        return round_to(_odd(name, tuple(operand.astype(np.float64) for operand in operands), mode), element, mode)
    if name == "fma":
        return _fused(operands, element)
    # Rounding to f32 first does not change the result, because f32 has more than twice the bits of f16 and bf16. This
    # is true for subnormal products of bf16 too: f32 has them exactly down to 2**-134, and smaller ones become 0.
    return np.asarray(ARITHMETIC[name](*operands)).astype(STORAGE[element], copy=False)


def _odd(name: str, wide: tuple[Array, ...], mode: str) -> Array:
    """Returns a float64 result of f32 operands that rounds correctly to f32.

    Rounding this result by ``mode`` gives the same number or signed zero as rounding the exact result.
    """
    if name == "mulf":
        return wide[0] * wide[1]
    if name in ("divf", "sqrt"):
        return np.asarray(ARITHMETIC[name](*wide))  # inexact, but between the same two f32 as the exact result
    first, second = (wide[0] * wide[1], wide[2]) if name == "fma" else wide
    if name == "subf":
        second = -second
    total = sum_odd(first, second)
    if mode == "negative_inf":  # x + -x is -0 if rounded down
        cancelled = (total == 0) & (np.signbit(first) != np.signbit(second))
        total = np.where(cancelled, -0.0, total)
    return total


def _fused(operands: tuple[Array, ...], element: str) -> Array:
    """Computes ``lhs * rhs + acc``, rounded once to nearest even.

    The product is exact in float64. The sum is rounded to float64 and then to ``element``. Rounding twice can be wrong
    only if the float64 sum is halfway between two numbers of ``element``, or is subnormal in ``element``. Such sums are
    computed again, rounded to odd.
    """
    lhs, rhs, acc = (operand.astype(np.float64) for operand in operands)
    product = lhs * rhs
    total = np.asarray(product + acc)
    result = round_to(total, element)
    form = FORMATS[element]
    lost = 53 - form.precision
    halfway = (total.view(np.int64) & np.int64((1 << lost) - 1)) == np.int64(1 << (lost - 1))
    doubtful = halfway | ((np.abs(total) < 2.0**form.smallest) & (total != 0))
    if doubtful.any():
        terms = (np.broadcast_to(term, total.shape)[doubtful] for term in (product, acc))
        result[doubtful] = round_to(sum_odd(*terms), element)
    return result


@implements("remf")
def remf(op: Op, lhs: Array, rhs: Array) -> Array:
    """Returns the exact remainder of the truncating division, with the sign of ``lhs`` (C's ``fmod``)."""
    element = _element(op)
    with np.errstate(all="ignore"):
        return np.fmod(_single(lhs), _single(rhs)).astype(STORAGE[element])


@implements("absf", "negf")
def change_sign(op: Op, source: Array) -> Array:
    """Clears or flips the sign bit, also for zeros and NaN."""
    _element(op)
    bits = source.view(f"u{source.dtype.itemsize}")
    sign = np.array(1 << (8 * source.dtype.itemsize - 1), bits.dtype)
    return np.asarray(bits & ~sign if op.name == "absf" else bits ^ sign).view(source.dtype)


@implements("maxf", "minf")
def extreme(op: Op, lhs: Array, rhs: Array) -> Array:
    """Computes the maximum or minimum of IEEE 754-2019. -0 is less than +0.

    If one operand is NaN, the result depends on ``propagate_nan``. With the flag, the result is NaN (IEEE's maximum and
    minimum). Without the flag, the result is the other operand (IEEE's maximumNumber and minimumNumber).
    """
    element = _element(op)
    largest = op.name == "maxf"
    with np.errstate(all="ignore"):
        first, second = _single(lhs), _single(rhs)
        if _flushes(op, element):
            first, second = flushed(first), flushed(second)
        result = np.asarray((np.maximum if largest else np.minimum)(first, second))
        zero = result == 0
        if zero.any():  # of +0 and -0, NumPy may return either
            together = first + second if largest else -(-first - second)
            result = np.where(zero & (first == second), together, result)
        if (result != result).any():
            if not op.attributes.get("propagate_nan", False):  # np.fmax would return a signalling NaN
                result = np.where(np.isnan(first), second, np.where(np.isnan(second), first, result))
            result = np.where(np.isnan(result), result.dtype.type(np.nan), result)
        return result.astype(STORAGE[element], copy=False)


@implements("ceil", "floor")
def whole(op: Op, source: Array) -> Array:
    """Rounds up or down to an integer. A zero result has the sign of the operand."""
    element = _element(op)
    with np.errstate(all="ignore"):
        result = np.asarray((np.ceil if op.name == "ceil" else np.floor)(_single(source)))
        return result.astype(STORAGE[element], copy=False)


@implements("cmpf")
def cmpf(op: Op, lhs: Array, rhs: Array) -> Array:
    """Compares numbers. With a NaN operand, an ordered comparison is false and an unordered comparison is true."""
    _element(op)
    with np.errstate(all="ignore"):
        first, second = _single(lhs), _single(rhs)
        holds = PREDICATES[op.attributes["comparison_predicate"]](first, second)
        unordered = (first != first) | (second != second)
    return np.asarray(holds & ~unordered if op.attributes["comparison_ordering"] == "ordered" else holds | unordered)


@implements(*FUNCTIONS)
def function(op: Op, **named: Array) -> Array:
    """Computes a function in float64, rounds the result to f32, and then to a narrower element type.

    The first operand of ``atan2`` is the ordinate, although the dialect calls it x: cuTile's ``atan2(y, x)`` passes its
    operands in this order. Powers follow C's ``pow``. The integers of ``fpowi`` are signed.
    """
    element, mode = _element(op), op.attributes.get("rounding_mode", "full")
    if mode not in (*APPROXIMATE, "nearest_even"):
        raise Unsupported(f"{op.name}: rounding '{mode}' is not supported; known: {', '.join(APPROXIMATE)}")
    flushing = _flushes(op, element)
    with np.errstate(all="ignore"):
        operands = (flushed(operand) if flushing else signed(operand) for operand in named.values())
        result = np.asarray(FUNCTIONS[op.name](*(operand.astype(np.float64) for operand in operands)))
        if element == "f64":
            return result
        result = result.astype(np.float32)
        return (flushed(result) if flushing else result).astype(STORAGE[element], copy=False)


def sum_and_rest(a: Array, b: Array) -> tuple[Array, Array]:
    """Returns the float64 ``a + b`` rounded to nearest, and the rounding error, exactly unless the sum overflows."""
    total = np.asarray(a + b)
    from_b = total - a
    return total, (a - (total - from_b)) + (b - from_b)


def sum_odd(a: Array, b: Array) -> Array:
    """Returns the float64 ``a + b`` rounded to odd."""
    near, rest = sum_and_rest(a, b)
    bits = near.view(np.int64)
    wrong = (rest != 0) & (bits & 1 == 0) & np.isfinite(near) & np.isfinite(rest)
    outward = np.signbit(rest) == np.signbit(near)
    return np.where(wrong, bits + np.where(outward, 1, -1), bits).view(np.float64)


def directed_sum(a: Array, b: Array, mode: str) -> Array:
    """Returns the float64 ``a + b`` rounded by ``mode``. The sum must not overflow."""
    near, rest = sum_and_rest(a, b)
    if mode == "nearest_even":
        return near
    down = (rest < 0) & ((near > 0) if mode == "zero" else np.bool_(mode == "negative_inf"))
    up = (rest > 0) & ((near < 0) if mode == "zero" else np.bool_(mode == "positive_inf"))
    return np.where(down, np.nextafter(near, -np.inf), np.where(up, np.nextafter(near, np.inf), near))


def float64_exactly(name: str, near: Array, operands: tuple[Array, ...], mode: str) -> Array:
    """Computes the operation ``name`` on float64 ``operands`` exactly, as fractions, and rounds once by ``mode``.

    near: the result of float64 arithmetic. It is the result if an operand is infinite or NaN, and for a division by
        zero.
    """
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    columns = [np.broadcast_to(operand, shape).ravel() for operand in operands]
    results = np.array(np.broadcast_to(near, shape), np.float64).ravel()
    finite = [np.isfinite(column) for column in columns]
    known = np.all(finite, axis=0)
    if name == "fma":  # with an infinite term, a product that overflows only in float64 does not matter
        results = np.where(finite[0] & finite[1] & ~finite[2], columns[2], results)
    if name == "divf":
        known &= columns[1] != 0
    for place in np.flatnonzero(known):
        numbers = [float(column[place]) for column in columns]
        if name == "sqrt":
            results[place] = _rounded_root(numbers[0], mode) if numbers[0] > 0 else results[place]
        else:
            exact = ARITHMETIC[name](*map(Fraction, numbers))
            results[place] = rounded_fraction(exact, mode) if exact else _zero(name, numbers, mode)
    return results.reshape(shape)


def _zero(name: str, numbers: list[float], mode: str) -> float:
    """Returns +0 or -0 for a result that is exactly zero.

    A product or quotient has the product of the operands' signs. A sum has the terms' common sign. If the terms have
    different signs, ``mode`` decides.
    """
    product = math.copysign(1.0, numbers[0]) * math.copysign(1.0, numbers[1])
    if name in ("mulf", "divf"):
        return math.copysign(0.0, product)
    first = product if name == "fma" else numbers[0]
    last = -numbers[-1] if name == "subf" else numbers[-1]
    if math.copysign(1.0, first) == math.copysign(1.0, last):
        return math.copysign(0.0, first)
    return -0.0 if mode == "negative_inf" else 0.0


def _rounded_root(number: float, mode: str) -> float:
    """Returns the square root, rounded by ``mode``. It is computed from an integer root of at least 60 bits."""
    exact = Fraction(number)
    shift = 2 * (120 + exact.denominator.bit_length())
    scaled = (exact.numerator << shift) // exact.denominator  # exact, because the denominator is a power of two
    root = math.isqrt(scaled)
    # If the integer root is not exact, the real root is neither a float64 nor halfway between two. So any number just
    # above the integer root rounds to the same float64.
    return rounded_fraction(Fraction(2 * root + (root * root != scaled), 2 << (shift // 2)), mode)


def rounded_fraction(exact: Fraction, mode: str) -> float:
    """Returns a rational number other than zero as a float64, rounded by ``mode``."""
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
    outward = mode == "nearest_even" or mode == ("negative_inf" if exact < 0 else "positive_inf")
    beyond = math.inf if outward else sys.float_info.max
    number = float(result) if result < Fraction(2) ** 1024 else beyond
    return -number if exact < 0 else number
