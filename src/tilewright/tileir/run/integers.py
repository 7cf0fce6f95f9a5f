"""Handlers for element-wise integer operations. Results wrap around at the width of the element type.

Cases that the dialect leaves undefined get a defined result here, and a finding of the kind "assumption":

- an overflow that the attribute ``overflow`` excludes: the result wraps around;
- a division by zero: the quotient has all bits set, the remainder is the dividend;
- the least signed number divided by -1: the quotient is the same number, the remainder is 0;
- a shift by the width or more: the result is 0, or all bits are the sign.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.tileir.read.tree import Element, Op
from tilewright.tileir.run.context import Context
from tilewright.tileir.run.numbers import PREDICATES, signed, unsigned, width_of, wrapped
from tilewright.tileir.run.registry import Array, Unsupported, implements, implements_in_context
from tilewright.tileir.watch.findings import ASSUMPTION

COMBINED: dict[str, np.ufunc] = {
    "maxi": np.maximum, "mini": np.minimum, "andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor,
}  # fmt: skip


def element_of(op: Op, operand: str | None = None) -> Element:
    """Returns the element type of an operand, or of the result. Raises Unsupported if it is no integer type."""
    element = op.tile(operand).element
    if not isinstance(element, str) or not element.startswith("i"):
        raise Unsupported(f"{op.name} of {element}; it takes integers")
    return element


def is_signed(op: Op) -> bool:
    return bool(op.attributes.get("signedness", "signed") == "signed")


def read(op: Op, operands: tuple[Array, ...], element: Element) -> tuple[Array, ...]:
    """Returns operands of type ``element`` as signed or unsigned numbers, as the operation's ``signedness`` says."""
    return tuple(signed(operand) if is_signed(op) else unsigned(operand, element) for operand in operands)


def report(context: Context, op: Op, violated: Array, message: str) -> None:
    """Reports the first block in which any element of ``violated`` is true."""
    if violated.any():
        by_lane = violated.reshape(violated.shape[0], -1).any(axis=1)
        context.finding(op, ASSUMPTION, message, lane=int(by_lane.argmax()))


def check_wrap(context: Context, op: Op, signed_wrap: Callable[[], Array], unsigned_wrap: Callable[[], Array]) -> None:
    """Reports the overflows that the operation excludes.

    signed_wrap, unsigned_wrap: return a mask of the elements that wrap around.
    A dry run also reports every signed overflow of a value on which an address or a branch depends. A run that only
    counts reports none, because looking for them takes most of its time.
    """
    if not context.world.checks_assumptions:
        return
    overflow = op.attributes.get("overflow", "none")
    if overflow in ("no_signed_wrap", "no_wrap"):
        report(context, op, signed_wrap(), f"{op.name} overflows, but is declared to have no signed overflow")
    elif context.dry and not context.world.steering.isdisjoint(op.results):
        bits = width_of(element_of(op))
        message = f"{op.name} overflows {bits} bits, and an address or a branch depends on the result"
        report(context, op, signed_wrap(), message)
    if overflow in ("no_unsigned_wrap", "no_wrap"):
        report(context, op, unsigned_wrap(), f"{op.name} overflows, but is declared to have no unsigned overflow")


@implements_in_context("addi", "subi")
def sum_or_difference(context: Context, op: Op, lhs: Array, rhs: Array) -> Array:
    """Adds or subtracts. The result wraps around."""
    element = element_of(op)
    a, b = signed(lhs), signed(rhs)
    with np.errstate(over="ignore"):
        result = wrapped(a + b if op.name == "addi" else a - b, element)

    def signed_wrap() -> Array:
        number = signed(result)
        other = ~b if op.name == "subi" else b
        return np.asarray(((a ^ number) & (other ^ number)) < 0)

    def unsigned_wrap() -> Array:
        low, high = (lhs, rhs) if op.name == "subi" else (result, lhs)
        return np.asarray(unsigned(low, element) < unsigned(high, element))

    check_wrap(context, op, signed_wrap, unsigned_wrap)
    return result


@implements_in_context("muli")
def product(context: Context, op: Op, lhs: Array, rhs: Array) -> Array:
    """Returns the low half of the product."""
    element = element_of(op)
    a, b = signed(lhs), signed(rhs)
    with np.errstate(over="ignore"):
        result = wrapped(a * b, element)

    def signed_wrap() -> Array:
        if width_of(element) < 64:
            return np.asarray(a.astype(np.int64) * b.astype(np.int64) != signed(result))
        high = _high_product(unsigned(a, element), unsigned(b, element)).view(np.int64)
        high = high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)
        return np.asarray(high != result >> 63)

    check_wrap(context, op, signed_wrap, lambda: _high(lhs, rhs, element) != 0)
    return result


@implements("mulhii")
def high_product(op: Op, x: Array, y: Array) -> Array:
    """Returns the high half of the unsigned product."""
    return wrapped(_high(x, y, element_of(op)), element_of(op))


def _high(x: Array, y: Array, element: Element) -> Array:
    a, b, width = unsigned(x, element), unsigned(y, element), width_of(element)
    return _high_product(a, b) if width == 64 else np.asarray(a.astype(np.uint64) * b) >> np.uint64(width)


def _high_product(a: Array, b: Array) -> Array:
    """Returns the upper 64 bits of the product of two uint64, computed from 32-bit halves."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    with np.errstate(over="ignore"):
        cross = (a >> shift) * (b & low) + ((a & low) * (b & low) >> shift)
        other = (a & low) * (b >> shift) + (cross & low)
        return np.asarray((a >> shift) * (b >> shift) + (cross >> shift) + (other >> shift))


@implements("absi")
def absi(op: Op, source: Array) -> Array:
    """Returns the magnitude. The magnitude of the least signed number wraps around to this number itself."""
    with np.errstate(over="ignore"):
        return wrapped(np.abs(signed(source)), element_of(op))


@implements_in_context("negi")
def negi(context: Context, op: Op, source: Array) -> Array:
    element, number = element_of(op), signed(source)
    check_wrap(context, op, lambda: number == -(1 << (width_of(element) - 1)), lambda: number != 0)
    with np.errstate(over="ignore"):
        return wrapped(-number, element)


def _check_division(context: Context, op: Op, a: Array, b: Array) -> tuple[Array, Array]:
    """Reports undefined divisions. Returns a mask of zero divisors, and a mask of quotients that overflow."""
    zero = b == 0
    report(context, op, zero, f"{op.name} by zero")
    overflows = np.zeros((1,) * max(a.ndim, 1), np.bool_)
    if is_signed(op):
        overflows = (b == -1) & (a == -(1 << (width_of(element_of(op)) - 1)))
        report(context, op, overflows, f"{op.name} of the least signed number by -1")
    return zero, overflows


@implements_in_context("divi")
def divi(context: Context, op: Op, lhs: Array, rhs: Array) -> Array:
    """Returns the quotient, rounded towards zero, down (``negative_inf``) or up (``positive_inf``)."""
    rounding = op.attributes.get("rounding", "zero")
    if rounding not in ("zero", "negative_inf", "positive_inf"):
        raise Unsupported(f"divi: rounding '{rounding}' is not supported; known: zero, negative_inf, positive_inf")
    a, b = read(op, (lhs, rhs), element_of(op))
    zero, overflows = _check_division(context, op, a, b)
    divisor = np.where(zero | overflows, b.dtype.type(1), b)
    quotient, rest = np.divmod(a, divisor)  # rounds down, so the remainder has the sign of the divisor
    if rounding == "positive_inf":
        quotient = quotient + (rest != 0).astype(quotient.dtype)
    elif rounding == "zero" and is_signed(op):
        quotient = quotient + ((rest != 0) & ((a < 0) != (divisor < 0))).astype(quotient.dtype)
    quotient = np.where(zero, ~b.dtype.type(0), quotient)
    return wrapped(quotient, element_of(op))  # for an overflow, `_check_division` replaced the divisor by 1


@implements_in_context("remi")
def remi(context: Context, op: Op, lhs: Array, rhs: Array) -> Array:
    """Returns the remainder of the division rounded towards zero. It has the sign of ``lhs``."""
    a, b = read(op, (lhs, rhs), element_of(op))
    zero, overflows = _check_division(context, op, a, b)
    rest = np.fmod(a, np.where(zero | overflows, b.dtype.type(1), b))
    return wrapped(np.where(zero, a, rest), element_of(op))


@implements(*COMBINED)
def combined(op: Op, lhs: Array, rhs: Array) -> Array:
    """Returns the larger or the smaller number, or combines the bits."""
    element = element_of(op)
    return wrapped(np.asarray(COMBINED[op.name](*read(op, (lhs, rhs), element))), element)


def _amount(context: Context, op: Op, rhs: Array) -> tuple[Array, Array]:
    """Reports shifts by the width or more. Returns the amounts limited to width - 1, and a mask of larger amounts."""
    element = element_of(op)
    amount, width = unsigned(rhs, element), width_of(element)
    beyond = amount >= width
    report(context, op, beyond, f"{op.name} by the width of {element} or more")
    return np.minimum(amount, amount.dtype.type(width - 1)), beyond


@implements_in_context("shli")
def shli(context: Context, op: Op, lhs: Array, rhs: Array) -> Array:
    """Shifts left and fills with zeros. The amount is unsigned."""
    element = element_of(op)
    amount, beyond = _amount(context, op, rhs)
    bits = unsigned(lhs, element)
    result = wrapped(np.where(beyond, bits.dtype.type(0), bits << amount), element)

    def signed_wrap() -> Array:
        number = signed(result)
        return np.asarray((number >> amount.astype(number.dtype)) != signed(lhs))

    check_wrap(context, op, signed_wrap, lambda: (unsigned(result, element) >> amount) != bits)
    return result


@implements_in_context("shri")
def shri(context: Context, op: Op, lhs: Array, rhs: Array) -> Array:
    """Shifts right and fills with the sign if the operation is signed, else with zeros. The amount is unsigned."""
    element = element_of(op)
    amount, beyond = _amount(context, op, rhs)
    if is_signed(op):
        number = signed(lhs)
        return wrapped(number >> amount.astype(number.dtype), element)  # a shift by width - 1 leaves only the sign
    bits = unsigned(lhs, element)
    return wrapped(np.where(beyond, bits.dtype.type(0), bits >> amount), element)


@implements("cmpi")
def cmpi(op: Op, lhs: Array, rhs: Array) -> Array:
    """Compares signed or unsigned numbers. A true i1 is -1 if signed, else 1."""
    a, b = read(op, (lhs, rhs), element_of(op, "lhs"))
    return np.asarray(PREDICATES[op.attributes["comparison_predicate"]](a, b))
