"""Element-wise conversions between types, and ``select``."""

from __future__ import annotations

import numpy as np

from tilewright.tileir.read.tree import Element, Op
from tilewright.tileir.run.arithmetic import directed_sum, sum_odd
from tilewright.tileir.run.context import Context
from tilewright.tileir.run.integers import check_wrap, element_of, is_signed, read, report
from tilewright.tileir.run.numbers import (
    FORMATS,
    bits_of,
    dtype_of,
    from_bits,
    is_float,
    round_to,
    rounded_to_integer,
    signed,
    unsigned,
    width_of,
    wrapped,
)
from tilewright.tileir.run.registry import Array, Unsupported, implements, implements_in_context


def _elements(op: Op, operand: str) -> tuple[Element, Element]:
    return op.tile(operand).element, op.tile().element


def _float(op: Op, element: Element) -> str:
    dtype_of(element)
    if not is_float(element) or not isinstance(element, str):
        raise Unsupported(f"{op.name}: {element} is not a floating-point type")
    return element


@implements("ftof")
def ftof(op: Op, from_: Array) -> Array:
    """Rounds once, in the direction that is named; see `numbers.round_to` for what is out of range. (From f64 to 8 bits
    and fewer the compiler goes through f32, so a GPU may round twice.)"""
    source, result = (_float(op, element) for element in _elements(op, "from_"))
    if source == "f8E8M0FNU" and result in ("f8E4M3FN", "f8E5M2", "f4E2M1FN"):
        raise Unsupported(f"ftof from {source} to {result}")
    return round_to(from_, result, op.attributes.get("rounding_mode", "nearest_even"))


@implements("itof")
def itof(op: Op, from_: Array) -> Array:
    """Rounds once. Beyond the range of f16 and wider: as IEEE 754 has it. Beyond that of a narrower type it is refused:
    the dialect says infinity or NaN, the compiler (tileiras 13.4) saturates."""
    source, result = _elements(op, "from_")
    name = _float(op, result)
    if name == "f8E8M0FNU":
        raise Unsupported("itof to f8E8M0FNU")
    mode = op.attributes.get("rounding_mode", "nearest_even")
    (number,) = read(op, (from_,), source)
    upper, lower = _parts(number)
    if name == "f64":
        if mode not in ("nearest_even", "zero", "negative_inf", "positive_inf"):
            raise Unsupported(f"itof to f64: rounding '{mode}'")
        return directed_sum(upper, lower, mode)
    exact = sum_odd(upper, lower)
    rounded = round_to(exact, name, mode)
    if name in ("f8E4M3FN", "f8E5M2", "f4E2M1FN"):
        form = FORMATS[name]
        half_unit = form.largest / (2 - 2.0 ** (1 - form.precision)) * 2.0**-form.precision
        if (np.abs(exact) >= form.largest + half_unit).any():
            raise Unsupported(f"itof to {name} of a number beyond its range")
    return rounded


def _parts(numbers: Array) -> tuple[Array, Array]:
    """Two float64 whose sum is the integer: a multiple of 2**32, and the rest."""
    if numbers.dtype.itemsize < 8:
        return numbers.astype(np.float64), np.zeros((1,) * numbers.ndim)
    kind = numbers.dtype.type
    return (numbers >> kind(32)) * 2.0**32, (numbers & kind(0xFFFFFFFF)).astype(np.float64)


@implements_in_context("ftoi")
def ftoi(context: Context, op: Op, from_: Array) -> Array:
    """The integer next to the number, rounded to zero. What is out of the range of the result becomes its least or
    greatest number, NaN becomes 0. Without ``saturating`` such operands are reported: the compiler takes the low bits
    of a wider conversion there (tileiras 13.4, f32 to i8)."""
    source, result = _elements(op, "from_")
    _float(op, source)
    mode = op.attributes.get("rounding_mode", "nearest_int_to_zero")
    if mode not in ("nearest_int_to_zero", "zero"):
        raise Unsupported(f"ftoi: rounding '{mode}'; known: nearest_int_to_zero")
    with np.errstate(invalid="ignore"):  # signalling NaN
        numbers = from_ if from_.dtype == np.float64 else from_.astype(np.float32).astype(np.float64)
    whole = rounded_to_integer(numbers, "zero")
    width = width_of(result)
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if is_signed(op) else (0, (1 << width) - 1)
    inside = (whole >= low) & (whole < float(high + 1))
    if not op.attributes.get("saturating"):
        report(context, op, ~inside, f"ftoi, not saturating, of NaN or of a number that {result} does not have")
    whole = np.where(np.isnan(whole), 0.0, whole)
    if width < 64:
        return wrapped(np.clip(whole, low, high).astype(np.int64), result)
    # 2**63 - 1 and 2**64 - 1 are not float64: convert what is below, and put the limit where it is not.
    kind = np.int64 if is_signed(op) else np.uint64
    inside |= whole == 0  # NaN
    converted = np.where(inside, whole, 0.0).astype(kind)
    limits = np.where(whole < 0, kind(low), kind(high))
    return np.where(inside, converted, limits).view(np.int64)


@implements("exti")
def exti(op: Op, from_: Array) -> Array:
    """Widens, filling with the sign or with zeros."""
    (number,) = read(op, (from_,), element_of(op, "from_"))
    return wrapped(number, element_of(op))


@implements_in_context("trunci")
def trunci(context: Context, op: Op, from_: Array) -> Array:
    source, result = element_of(op, "from_"), element_of(op)
    narrow = wrapped(from_, result)

    def unsigned_wrap() -> Array:
        return np.asarray(unsigned(narrow, result).astype(np.uint64) != unsigned(from_, source).astype(np.uint64))

    check_wrap(context, op, lambda: signed(narrow).astype(from_.dtype) != from_, unsigned_wrap)
    return narrow


@implements("bitcast")
def bitcast(op: Op, source: Array) -> Array:
    before, after = _elements(op, "source")
    if bits_of(before) != bits_of(after) or "tf32" in (before, after) or ("i1" in (before, after) and before != after):
        raise Unsupported(f"bitcast of {before} to {after}")
    if before == after:
        return source
    if bits_of(before) == 4:
        low = source.view(np.uint8) & np.uint8(0xF)
        return wrapped(low.view(np.int8), after) if after == "i4" else from_bits(low, after)
    return source.view(dtype_of(after))


@implements("int_to_ptr", "ptr_to_int", "ptr_to_ptr")
def pointer_cast(op: Op, source: Array) -> Array:
    """Addresses are int64 in every type of pointer."""
    del op
    return source


@implements("select")
def select(op: Op, cond: Array, val_if_true: Array, val_if_false: Array) -> Array:
    del op
    return np.where(cond, val_if_true, val_if_false)
