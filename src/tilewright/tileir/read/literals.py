"""Reads constants, assumptions and hints in the text of Tile IR.

A floating-point number is written in decimal, with enough digits to identify the element, or as bits in hexadecimal (19
bits for tf32). More than 100 elements are written as one string of bytes in hexadecimal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from tilewright.tileir.read.scanner import Scanner, T
from tilewright.tileir.read.tree import Assumption, Constant, Hints, TileType
from tilewright.tileir.read.type_reader import read_element

FLOATS = {
    "f16": (5, 10, 31 << 10), "bf16": (8, 7, 255 << 7), "f32": (8, 23, 255 << 23), "tf32": (8, 10, 255 << 10),
    "f64": (11, 52, 2047 << 52), "f8E4M3FN": (4, 3, 0x7F), "f8E5M2": (5, 2, 31 << 2), "f8E8M0FNU": (8, 0, 0xFF),
    "f4E2M1FN": (2, 1, 8), "fnv8E5M3FNU": (5, 3, 0xFF),
}  # fmt: skip
"""Maps an element to (bits of the exponent, bits of the fraction, lowest code of a number that is not finite).

A code is the element's bits without the sign. A final U in the element's name means that the format has no sign.
"""

_NUMBER = re.compile(r"-?\d{1,400}(?:\.\d{1,400}(?:[eE][-+]?\d{1,3})?)?(?![\w.])")
_BITS = re.compile(r"0x[0-9A-Fa-f]{1,16}(?!\w)")
_BYTES = re.compile(r'"0x((?:[0-9A-Fa-f]{2})*)"')
_EITHER = re.compile(f"{_BITS.pattern}|{_NUMBER.pattern}")

Number = int | float


def read_constant(scanner: Scanner, type_: Callable[[], TileType]) -> tuple[Constant, TileType]:
    """Reads a constant such as ``<f32: …> : tile<4xf32>``. ``type_``: reads the type after the last colon."""
    start = scanner.at
    scanner.expect("<")
    element = read_element(scanner)
    scanner.expect(":")
    dense = scanner.match(_BYTES)
    numbers = [] if dense else _elements(scanner, element)
    scanner.expect(">", ":")
    tile = type_()
    if tile.element != element:
        raise scanner.error(f"a constant of {element} has the type {tile}", start)
    if dense:
        return _from_bytes(scanner, start, tile, bytes.fromhex(dense[1])), tile
    if len(numbers) not in (1, tile.size):
        raise scanner.error(f"{len(numbers)} numbers for the {tile.size} elements of {tile}", start)
    return _constant(element, numbers), tile


def read_identities(scanner: Scanner) -> tuple[Constant, ...]:
    """Reads the identities of a reduction, such as ``[0xFF800000 : f32, -1 : i32, true]``."""

    def identity() -> Constant:
        if scanner.sees("true") or scanner.sees("false"):
            return Constant("i1", (scanner.word() == "true",))
        start = scanner.at
        text = scanner.need(_EITHER, "a number")[0]
        omitted = "f64" if "." in text else "i64"  # MLIR omits these two types
        element = read_element(scanner) if scanner.accept(":") else omitted
        after, scanner.at = scanner.at, start
        constant = _constant(element, [_element(scanner, element)])
        scanner.at = after
        return constant

    return scanner.several("[]", identity)


def read_assumption(scanner: Scanner) -> Assumption:
    """Reads the predicate of ``assume``: ``div_by<…>``, ``same_elements<…>`` or ``bounded<…>``."""
    scanner.accept("#cuda_tile.")
    start, kind = scanner.at, scanner.word()
    if kind not in ("div_by", "same_elements", "bounded"):
        raise scanner.error(f"unknown assumption '{kind}'", start)
    scanner.expect("<")
    if kind == "same_elements":
        assumption = Assumption(kind, values=scanner.several("[]", scanner.integer))
    elif kind == "bounded":
        low = None if scanner.accept("?") else scanner.integer()
        scanner.expect(",")
        assumption = Assumption(kind, low=low, high=None if scanner.accept("?") else scanner.integer())
    else:
        assumption = Assumption(kind, divisor=scanner.integer())
        if scanner.accept(","):
            scanner.expect("every")
            every = scanner.integer()
            scanner.expect("along")
            assumption = replace(assumption, every=every, along=scanner.integer())
    scanner.expect(">")
    return assumption


def read_hints(scanner: Scanner) -> Hints:
    """Reads hints such as ``= <sm_100 = {latency = 3}>``. Returns them by architecture (or ``default``) and name."""

    def named(value: Callable[[], T]) -> tuple[str, T]:
        name = scanner.word()
        scanner.expect("=")
        return name, value()

    def value() -> int | bool:
        return read_flag(scanner) if scanner.sees("true") or scanner.sees("false") else scanner.integer()

    scanner.expect("=")
    return dict(scanner.several("<>", lambda: named(lambda: dict(scanner.several("{}", lambda: named(value))))))


def read_flag(scanner: Scanner) -> bool:
    if scanner.accept("true"):
        return True
    scanner.expect("false")
    return False


class _Bits(int):
    """The bits of a floating-point element."""


def _elements(scanner: Scanner, element: str) -> list[Number]:
    """Reads a number, or a nested list of numbers. Returns all numbers in order."""
    if not scanner.accept("["):
        return [_element(scanner, element)]
    numbers: list[Number] = []
    while True:
        numbers.extend(_elements(scanner, element))
        if scanner.accept("]"):
            return numbers
        scanner.expect(",")


def _element(scanner: Scanner, element: str) -> Number:
    start = scanner.at
    if element == "i1":
        return read_flag(scanner)
    if element in FLOATS and (hexadecimal := scanner.match(_BITS)):
        return _Bits(_fitting(scanner, start, int(hexadecimal[0], 16), 0, 1 << _width(element)))
    text = scanner.need(_NUMBER, "a number")[0]
    if element in FLOATS:
        bits = bits_of(Fraction(text), element)
        if bits is None:
            raise scanner.error(f"{text} does not fit its type", start)
        return math.copysign(value_of(bits, element), -1 if text.startswith("-") else 1)
    if not text.lstrip("-").isdigit():
        raise scanner.error(f"{text} is no {element}", start)
    return _fitting(scanner, start, int(text), -1 << (_width(element) - 1), 1 << _width(element))


def _fitting(scanner: Scanner, start: int, number: int, low: int, end: int) -> int:
    if not low <= number < end:
        raise scanner.error(f"{number} does not fit its type", start)
    return number


def _constant(element: str, numbers: list[Number]) -> Constant:
    """Returns the constant with these elements. If the text has the bits of any element, all are kept as bits."""
    if any(isinstance(number, _Bits) for number in numbers):
        return Constant(element, tuple(_as_bits(number, element) for number in numbers), is_bits=True)
    return Constant(element, tuple(numbers))


def _as_bits(number: Number, element: str) -> int:
    if isinstance(number, _Bits):
        return int(number)
    bits = bits_of(Fraction(number), element)
    assert bits is not None, f"{number} was read as {element}"
    return bits + (math.copysign(1, number) < 0 and number == 0 and 1 << sum(FLOATS[element][:2]))


def _from_bytes(scanner: Scanner, start: int, tile: TileType, data: bytes) -> Constant:
    """Returns the constant with the elements in ``data``: row-major, little-endian, in whole bytes. Only i1 may be
    packed, eight elements to a byte."""
    element = str(tile.element)
    width = (_width(element) + 7) // 8
    if element == "i1" and len(data) == (tile.size + 7) // 8 != tile.size:
        return Constant(element, tuple(bool(data[n // 8] >> n % 8 & 1) for n in range(tile.size)))
    if len(data) not in (width, width * tile.size):
        raise scanner.error(f"{len(data)} bytes for {tile}", start)
    parts = [data[n : n + width] for n in range(0, len(data), width)]
    if element == "i1":
        return Constant(element, tuple(any(part) for part in parts))
    is_bits = element in FLOATS
    return Constant(element, tuple(int.from_bytes(part, "little", signed=not is_bits) for part in parts), is_bits)


def _width(element: str) -> int:
    if element in FLOATS:
        return sum(FLOATS[element][:2]) + (not element.endswith("U"))
    return int(element[1:])


def bits_of(number: Fraction, element: str) -> int | None:
    """Returns the bits of the element nearest to ``number`` (ties to even), or None if ``element`` cannot hold it."""
    exponent_bits, fraction_bits, end = FLOATS[element]
    bias = (1 << (exponent_bits - 1)) - 1
    implicit = 1 if fraction_bits else 0  # a format without fraction has neither subnormals nor zero
    if number == 0:
        return 0 if implicit else None
    exponent = abs(number).numerator.bit_length() - number.denominator.bit_length()
    exponent -= abs(number) < Fraction(2) ** exponent  # now 2**exponent <= abs(number) < 2**(exponent + 1)
    exponent = max(exponent, implicit - bias)
    steps = round(abs(number) * Fraction(2) ** (fraction_bits - exponent))
    bits = steps + ((exponent + bias - 1) << fraction_bits)
    sign = number < 0 and 1 << (exponent_bits + fraction_bits)
    if not 0 <= bits < end or (sign and element.endswith("U")):
        return None
    return bits + sign


def value_of(bits: int, element: str) -> float:
    """Returns the finite number with these bits, exactly."""
    exponent_bits, fraction_bits, _ = FLOATS[element]
    exponent, fraction = divmod(bits & ((1 << (exponent_bits + fraction_bits)) - 1), 1 << fraction_bits)
    if exponent or not fraction_bits:
        fraction += 1 << fraction_bits
    else:
        exponent = 1
    size = math.ldexp(fraction, exponent - ((1 << (exponent_bits - 1)) - 1) - fraction_bits)
    return -size if bits >> (exponent_bits + fraction_bits) else size
