"""Handlers for element-wise conversions between types, and for ``select``."""

from __future__ import annotations

import numpy as np

from tilewright.tileir.read.tree import Element, Op
from tilewright.tileir.run import numbers
from tilewright.tileir.run.arithmetic import directed_sum, sum_odd
from tilewright.tileir.run.context import Context
from tilewright.tileir.run.integers import check_wrap, element_of, is_signed, read, report
from tilewright.tileir.run.registry import Array, Unsupported, implements, implements_in_context

NARROW = ("f8E4M3FN", "f8E5M2", "f4E2M1FN")


def _elements(op: Op, operand: str) -> tuple[Element, Element]:
    return op.tile(operand).element, op.tile().element


def _float(op: Op, element: Element) -> str:
    numbers.dtype_of(element)
    if not numbers.is_float(element) or not isinstance(element, str):
        raise Unsupported(f"{op.name}: {element} is not a floating-point type")
    return element


@implements("ftof")
def ftof(op: Op, from_: Array) -> Array:
    """Converts floating-point numbers, and rounds once, in the direction of ``rounding_mode``.

    For numbers out of range see `numbers.round_to`. The compiler converts f64 to 8 or fewer bits by way of f32, so a
    GPU might round twice.
    """
    source, result = (_float(op, element) for element in _elements(op, "from_"))
    if source == "f8E8M0FNU" and result in NARROW:
        raise Unsupported(f"ftof from {source} to {result} is not supported")
    return numbers.round_to(from_, result, op.attributes.get("rounding_mode", "nearest_even"))


@implements("itof")
def itof(op: Op, from_: Array) -> Array:
    """Converts integers to floating-point numbers, and rounds once.

    Numbers out of range follow IEEE 754 if the result has 16 bits or more. With narrower results, numbers out of range
    raise Unsupported, because the dialect says infinity or NaN, but the compiler (tileiras 13.4) saturates.
    """
    source, result = _elements(op, "from_")
    name = _float(op, result)
    if name == "f8E8M0FNU":
        raise Unsupported("itof to f8E8M0FNU is not supported")
    mode = op.attributes.get("rounding_mode", "nearest_even")
    (number,) = read(op, (from_,), source)
    upper, lower = _parts(number)
    if name == "f64":
        if mode not in ("nearest_even", "zero", "negative_inf", "positive_inf"):
            raise Unsupported(f"itof to f64: rounding '{mode}' is not supported")
        return directed_sum(upper, lower, mode)
    exact = sum_odd(upper, lower)
    rounded = numbers.round_to(exact, name, mode)
    if name in NARROW:
        form = numbers.FORMATS[name]
        half_unit = form.largest / (2 - 2.0 ** (1 - form.precision)) * 2.0**-form.precision
        if (np.abs(exact) >= form.largest + half_unit).any():
            raise Unsupported(f"itof to {name} of a number beyond its range is not supported")
    return rounded


def _parts(integers: Array) -> tuple[Array, Array]:
    """Splits each integer into two float64: a multiple of 2**32, and the rest."""
    if integers.dtype.itemsize < 8:
        return integers.astype(np.float64), np.zeros((1,) * integers.ndim)
    kind = integers.dtype.type
    return (integers >> kind(32)) * 2.0**32, (integers & kind(0xFFFFFFFF)).astype(np.float64)


@implements_in_context("ftoi")
def ftoi(context: Context, op: Op, from_: Array) -> Array:
    """Converts floating-point numbers to integers, and rounds towards zero. NaN becomes 0.

    Numbers out of range become the least or greatest number of the result type. Without ``saturating``, a GPU gives
    other results for NaN and for numbers out of range, so they are reported as findings. For example, tileiras 13.4
    converts f32 to i8 by the low bits of a wider conversion.
    """
    source, result = _elements(op, "from_")
    _float(op, source)
    mode = op.attributes.get("rounding_mode", "nearest_int_to_zero")
    if mode not in ("nearest_int_to_zero", "zero"):
        raise Unsupported(f"ftoi: rounding '{mode}' is not supported; known: nearest_int_to_zero")
    with np.errstate(invalid="ignore"):  # a signalling NaN would warn
        whole = np.trunc(from_ if from_.dtype == np.float64 else from_.astype(np.float32).astype(np.float64))
    width = numbers.width_of(result)
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if is_signed(op) else (0, (1 << width) - 1)
    inside = (whole >= low) & (whole < float(high + 1))
    if not op.attributes.get("saturating"):
        report(context, op, ~inside, f"ftoi without saturation of NaN or of a number that {result} cannot hold")
    whole = np.where(np.isnan(whole), 0.0, whole)
    if width < 64:
        return numbers.wrapped(np.clip(whole, low, high).astype(np.int64), result)
    # float64 cannot hold 2**63 - 1 or 2**64 - 1, so numbers beyond the range are replaced after the conversion.
    kind = np.int64 if is_signed(op) else np.uint64
    inside |= whole == 0  # was NaN
    converted = np.where(inside, whole, 0.0).astype(kind)
    limits = np.where(whole < 0, kind(low), kind(high))
    return np.where(inside, converted, limits).view(np.int64)


@implements("exti")
def exti(op: Op, from_: Array) -> Array:
    """Widens integers, and fills the new bits with the sign or with zeros."""
    (number,) = read(op, (from_,), element_of(op, "from_"))
    return numbers.wrapped(number, element_of(op))


@implements_in_context("trunci")
def trunci(context: Context, op: Op, from_: Array) -> Array:
    """Narrows integers: keeps the low bits. Reports overflows that the operation excludes."""
    source, result = element_of(op, "from_"), element_of(op)
    narrow = numbers.wrapped(from_, result)

    def unsigned_wrap() -> Array:
        before, after = numbers.unsigned(from_, source), numbers.unsigned(narrow, result)
        return np.asarray(after.astype(np.uint64) != before.astype(np.uint64))

    check_wrap(context, op, lambda: numbers.signed(narrow).astype(from_.dtype) != from_, unsigned_wrap)
    return narrow


@implements("bitcast")
def bitcast(op: Op, source: Array) -> Array:
    """Reads the same bits as another type."""
    before, after = _elements(op, "source")
    bits = numbers.bits_of(before)
    if bits != numbers.bits_of(after) or "tf32" in (before, after) or ("i1" in (before, after) and before != after):
        raise Unsupported(f"bitcast of {before} to {after} is not supported")
    if before == after:
        return source
    if bits == 4:
        low = source.view(np.uint8) & np.uint8(0xF)
        return numbers.wrapped(low.view(np.int8), after) if after == "i4" else numbers.from_bits(low, after)
    return source.view(numbers.dtype_of(after))


@implements("int_to_ptr", "ptr_to_int", "ptr_to_ptr")
def pointer_cast(op: Op, source: Array) -> Array:
    """Returns the operand: pointers of every type are stored as int64 addresses."""
    return source


@implements("select")
def select(op: Op, cond: Array, val_if_true: Array, val_if_false: Array) -> Array:
    return np.where(cond, val_if_true, val_if_false)
