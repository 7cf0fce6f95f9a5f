"""Stores the element types of Tile IR as NumPy types, and rounds numbers to them.

Every number is rounded once. An intermediate result of higher precision is either exact or "rounded to odd": towards
zero, with the last bit set if bits were lost. Rounding such a number to a type with at least two bits fewer gives the
same as rounding the exact value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.tileir.read.literals import FLOATS, value_of
from tilewright.tileir.read.tree import Constant, Element, PointerType
from tilewright.tileir.run.registry import Array, Unsupported
from tilewright.tileir.watch.arrays import DType

STORAGE: Mapping[str, DType] = {
    element: np.dtype(stored)
    for element, stored in {
        "i1": np.bool_, "i4": np.int8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
        "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "tf32": np.float32, "f64": np.float64,
        "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2, "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
        "f4E2M1FN": ml_dtypes.float4_e2m1fn,
    }.items()
}  # fmt: skip
"""Maps an element type to the NumPy type that stores it.

An i4 is a sign-extended int8. An f4E2M1FN is in the low four bits of a byte. A tf32 is a float32 whose low 13 bits are
zero.
"""

SUB_BYTE_BITS = {"i4": 4, "f4E2M1FN": 4}
"""Maps an element type to its bits in memory, if two elements share a byte. The first element is in the low half
(`packed`). An i1 is absent: it takes a byte, 0 or 1."""
WITHOUT_ADDRESS = ("i4", "f4E2M1FN", "tf32")
"""Elements that the interpreter does not load or store. A 4-bit element has no address of its own. The specification
does not define the layout of tf32 in memory: memory holds 23 bits of fraction, a value only 10."""

MODES = ("nearest_even", "zero", "negative_inf", "positive_inf", "nearest_away")
PREDICATES: Mapping[str, np.ufunc] = {
    "equal": np.equal, "not_equal": np.not_equal, "less_than": np.less, "less_than_or_equal": np.less_equal,
    "greater_than": np.greater, "greater_than_or_equal": np.greater_equal,
}  # fmt: skip


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    precision: bits of the significand, including the leading one.
    smallest: 2**smallest is the smallest normal number.
    overflow: the result of rounding a too large number to nearest: infinity, or ``largest`` if conversions saturate.
    """

    precision: int
    smallest: int
    largest: float
    overflow: float


def _format(element: str) -> Format:
    exponent_bits, fraction_bits, first_not_finite = FLOATS[element]
    largest = value_of(first_not_finite - 1, element)
    overflow = largest if exponent_bits + fraction_bits < 8 else np.inf
    return Format(fraction_bits + 1, 2 - (1 << (exponent_bits - 1)), largest, overflow)


FORMATS: Mapping[str, Format] = {
    element: _format(element) for element in ("f16", "bf16", "f32", "tf32", "f8E4M3FN", "f8E5M2", "f4E2M1FN")
}
"""The signed formats that are narrower than f64. The 8-bit and 4-bit formats saturate, also for infinities, because the
hardware has only saturating conversions (PTX ``cvt…satfinite``)."""


def dtype_of(element: Element) -> DType:
    """Returns the NumPy type that stores ``element``. A pointer is an int64. Raises Unsupported for unknown types."""
    if isinstance(element, PointerType):
        return np.dtype(np.int64)
    if element not in STORAGE:
        raise Unsupported(f"element type '{element}' is not supported; known: {', '.join(STORAGE)}")
    return STORAGE[element]


def bits_of(element: Element) -> int:
    """Returns how many bits an element has in memory. Raises Unsupported for unknown types."""
    return SUB_BYTE_BITS.get(str(element), 8 * dtype_of(element).itemsize)


def is_float(element: Element) -> bool:
    return isinstance(element, str) and not element.startswith("i")


def round_to(values: Array, element: str, mode: str = "nearest_even") -> Array:
    """Rounds floating-point ``values`` of any element type to ``element``, once.

    mode: ``nearest_even``, ``nearest_away`` (ties away from zero), ``zero``, ``negative_inf`` or ``positive_inf``.
    Numbers beyond the range become infinity or the largest number, as IEEE 754 says. The 8-bit and 4-bit formats
    saturate (`FORMATS`). NaN stays NaN, but becomes 6 in f4E2M1FN, which has no NaN (PTX ``cvt``).
    """
    if mode not in MODES:
        raise Unsupported(f"rounding '{mode}' in a conversion to {element} is not supported; known: {', '.join(MODES)}")
    dtype_of(element)
    with np.errstate(all="ignore"):
        if values.dtype not in (np.float32, np.float64):
            values = values.astype(np.float32)  # exact, because all other types are narrower
        if element == "f64" or (element == "f32" and values.dtype == np.float32):
            return values.astype(STORAGE[element], copy=False)
        if element == "f8E8M0FNU":
            return _round_to_powers_of_two(values, mode)
        if element == "tf32" and mode in ("nearest_even", "nearest_away", "zero"):
            return _tf32(values if values.dtype == np.float32 else odd_float32(values), mode)
        if mode != "nearest_even":
            return _stored(_round_by_scaling(values, FORMATS[element], mode), element)
        if element in ("f32", "f16"):
            return values.astype(STORAGE[element])
        values = values if values.dtype == np.float32 else odd_float32(values)
        if element == "bf16":
            return values.astype(STORAGE[element])
        largest = np.float32(FORMATS[element].largest)
        return _stored(np.clip(values, -largest, largest), element)


def _tf32(values: Array, mode: str) -> Array:
    """Rounds float32 to tf32. Adds to the low 13 bits, so that a carry rounds up, and then clears the low 13 bits."""
    bits = values.view(np.uint32)
    if mode == "nearest_even":
        bits = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    elif mode == "nearest_away":
        bits = bits + np.uint32(0x1000)
    return np.where(np.isfinite(values), (bits & np.uint32(0xFFFFE000)).view(np.float32), values)


def _stored(values: Array, element: str) -> Array:
    """Returns ``values`` in the storage of ``element``: exactly, or rounded to nearest."""
    if element == "f4E2M1FN":
        values = np.where(np.isnan(values), values.dtype.type(FORMATS[element].largest), values)
    return values.astype(STORAGE[element])


def _round_by_scaling(values: Array, form: Format, mode: str) -> Array:
    """Rounds to the format ``form``. Returns float64."""
    exact = values.astype(np.float64)
    exponents = np.frexp(exact)[1].astype(np.int64)
    unit = np.maximum(exponents - form.precision, form.smallest - form.precision + 1)
    # Scaled in two steps, because 2**-unit overflows float64 if the number is subnormal in float64.
    scaled = np.ldexp(np.ldexp(exact, -(unit // 2)), -(unit - unit // 2))
    rounded = np.ldexp(rounded_to_integer(scaled, mode), unit)
    finite = np.isfinite(exact)
    rounded = np.where(finite, rounded, exact)
    beyond = np.full(rounded.shape, form.overflow)  # replaces numbers beyond the range
    if mode == "zero":
        beyond[finite] = form.largest
    elif mode in ("negative_inf", "positive_inf"):
        beyond[finite & (np.signbit(rounded) == (mode == "positive_inf"))] = form.largest
    return np.where(np.abs(rounded) > form.largest, np.copysign(beyond, rounded), rounded)


def rounded_to_integer(values: Array, mode: str) -> Array:
    """Rounds to integers, and keeps the sign of zeros."""
    if mode == "nearest_even":
        return np.rint(values)
    if mode == "nearest_away":
        whole = np.trunc(values)
        return np.where(np.abs(values - whole) >= 0.5, whole + np.copysign(1.0, values), whole)
    directed = {"zero": np.trunc, "negative_inf": np.floor, "positive_inf": np.ceil}
    return np.asarray(directed[mode](values))


def _round_to_powers_of_two(values: Array, mode: str) -> Array:
    """Rounds to f8E8M0FNU: the powers of two from 2**-127 to 2**127 and NaN, without zero, sign and infinity.

    Numbers out of range, also zero, become the nearer end of the range (PTX ``cvt.satfinite``). Modes are ``zero``,
    ``positive_inf``, and for constants ``nearest_even``, which rounds ties up. Raises Unsupported for negative numbers,
    because their result is not documented.
    """
    exact = values.astype(np.float64)
    if np.any(exact < 0) or mode not in ("nearest_even", "zero", "positive_inf"):
        raise Unsupported(f"f8E8M0FNU of negative numbers, or rounded by '{mode}', is not supported")
    mantissa, exponents = np.frexp(exact)  # the mantissa of a power of two is 1/2
    up = {"zero": mantissa >= 2, "positive_inf": mantissa > 0.5}.get(mode, mantissa >= 0.75)
    exponents = exponents - 1 + up
    exponents = np.where(exact == 0, -127, np.where(np.isinf(exact), 127, np.clip(exponents, -127, 127)))
    codes = np.where(np.isnan(exact), 255, exponents + 127).astype(np.uint8)
    return codes.view(STORAGE["f8E8M0FNU"])


def odd_float32(values: Array) -> Array:
    """Rounds float64 to float32, to odd. Infinity and NaN do not change.

    A too large magnitude becomes the largest finite number, a too small magnitude becomes the smallest number.
    """
    near = np.asarray(values.astype(np.float32))
    back = near.astype(np.float64)
    bits = near.view(np.int32)
    wrong = (back != values) & (bits & 1 == 0) & np.isfinite(values)
    if not wrong.any():
        return near
    towards = np.where(np.abs(back) > np.abs(values), np.int32(-1), np.int32(1))
    return np.where(wrong, bits + towards, bits).view(np.float32)


def flushed(values: Array) -> Array:
    """Replaces subnormal f32 by zeros of the same sign."""
    small = np.abs(values) < np.float32(2.0**-126)  # the smallest normal number
    return np.where(small, np.copysign(np.float32(0), values), values) if small.any() else values


def width_of(element: Element) -> int:
    """Returns the bits of an integer or a pointer."""
    return 64 if isinstance(element, PointerType) else int(element[1:])


def unsigned(values: Array, element: Element) -> Array:
    """Reads the same bits as unsigned numbers, in an unsigned NumPy type of the same size."""
    if values.dtype == np.bool_:
        return values.view(np.uint8)
    bits = values.view(f"u{values.dtype.itemsize}")
    return bits & np.uint8(0xF) if element == "i4" else bits


def signed(values: Array) -> Array:
    """Reads the same bits as signed numbers. A true i1 is -1."""
    return -values.astype(np.int8) if values.dtype == np.bool_ else values


def wrapped(values: Array, element: Element) -> Array:
    """Returns integers of any NumPy type modulo 2**bits, in the storage of ``element``."""
    if element == "i1":
        return (values & values.dtype.type(1)).astype(np.bool_) if values.dtype != np.bool_ else values
    narrow: Array = values.astype(dtype_of(element), copy=False)
    return (narrow << np.int8(4)) >> np.int8(4) if element == "i4" else narrow


def within(values: Array, least: int, most: int) -> Array:
    """Does the work of ``np.clip``, which takes three times as long for a few hundred blocks."""
    return np.asarray(np.minimum(np.maximum(values, least), most))


def poisoned(dtype: DType, byte: int) -> Array:
    """Returns an undefined element, shape (). All its bytes are ``byte``."""
    if dtype == np.bool_:
        return np.array(byte != 0)
    return np.full(dtype.itemsize, byte, np.uint8).view(dtype).reshape(())


def constant_values(constant: Constant) -> Array:
    """Returns the values of a ``constant`` in the storage of its element type, shape (number of values,).

    Floats are rounded to nearest even, and integers wrap around.
    """
    values, element = constant.values, constant.element
    if constant.is_bits and is_float(element):
        return from_bits(np.array([int(value) for value in values], np.uint64), element)
    if is_float(element):
        return round_to(np.array([float(value) for value in values], np.float64), element)
    if element == "i1":
        return np.array([bool(value) for value in values], np.bool_)
    low = (1 << 64) - 1
    return wrapped(np.array([int(value) & low for value in values], np.uint64).view(np.int64), element)


def from_bits(bits: Array, element: Element) -> Array:
    """Returns the floating-point numbers with the ``bits``, given as unsigned integers. A tf32 has 19 bits."""
    if element == "tf32":
        return (bits.astype(np.uint32) << np.uint32(13)).view(np.float32)
    dtype = dtype_of(element)
    return bits.astype(f"u{dtype.itemsize}").view(dtype)


def packed(values: Array) -> Array:
    """Packs two i4 or f4E2M1FN into each byte, the first in the low four bits. The last axis must be even."""
    halves = values.view(np.uint8) & np.uint8(0xF)
    return halves[..., 0::2] | (halves[..., 1::2] << np.uint8(4))


def unpacked(data: Array, element: str) -> Array:
    """Unpacks bytes into i4 or f4E2M1FN, two elements from each byte, first the low four bits."""
    halves = np.stack([data.view(np.uint8) & np.uint8(0xF), data.view(np.uint8) >> np.uint8(4)], -1)
    halves = halves.reshape(*data.shape[:-1], -1)
    return wrapped(halves.view(np.int8), element) if element == "i4" else halves.view(dtype_of(element))
