"""The text of `print_tko`: C's printf, where a tile prints its elements in nested brackets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from tilewright.tileir.read.tree import Element
from tilewright.tileir.run.numbers import is_float, unsigned
from tilewright.tileir.run.registry import Array, Unsupported

EXPRESSION = re.compile(r"%(?P<flags>[-+ #0]*)(?P<size>\d*(?:\.\d*)?)(?:hh|h|ll|l|j|z|t|L)?(?P<kind>.?)", re.DOTALL)
INTEGERS, UNSIGNED, FLOATS = "diuoxX", "uoxX", "eEfFgGaA"


Nested: TypeAlias = "int | float | list[Nested]"


def formatted(text: str, tiles: Sequence[Array], elements: Sequence[Element]) -> str:
    """``text`` with each expression replaced by a tile (without lanes): ``[[1, 2], [3, 4]]`` for a 2×2.

    As on an H200 (tileiras 13.4): integers below 32 bits are extended with their sign to 32 before they print as
    unsigned, and an infinity or a NaN is padded with blanks. A 64-bit integer prints as such without ``ll`` too, where
    the GPU prints other digits.

    Integers print as d i u o x X, floating-point numbers as e E f F g G a A. Raises `Unsupported` for any other
    pairing, whose output the dialect leaves undefined, and where their numbers differ.
    """
    given = iter(zip(tiles, elements, strict=True))

    def replaced(found: re.Match[str]) -> str:
        return "%" if found["kind"] == "%" else _printed(found, given)

    done = EXPRESSION.sub(replaced, text)
    if next(given, None) is not None:
        raise Unsupported(f"print_tko: more arguments than expressions in {text!r}")
    return done


def _printed(found: re.Match[str], given: Iterator[tuple[Array, Element]]) -> str:
    tile, element = next(given, (None, None))
    if tile is None or element is None:
        raise Unsupported(f"print_tko: no argument for '{found[0]}'")
    kind = found["kind"]
    if not kind or kind not in (FLOATS if is_float(element) else INTEGERS):
        raise Unsupported(f"print_tko: '{found[0]}' for elements {element}")
    if is_float(element):
        tile = tile.astype(np.float64)
    elif kind in UNSIGNED:
        tile = unsigned(tile if tile.dtype.itemsize == 8 else tile.astype(np.int32), "i64")
    return _nested(tile.tolist(), found["flags"], found["size"], kind)


def _nested(value: Nested, flags: str, size: str, kind: str) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_nested(one, flags, size, kind) for one in value)}]"
    return _number(value, flags, size, kind)


def _number(value: int | float, flags: str, size: str, kind: str) -> str:
    """One number as C prints it, where Python's ``%`` differs from it."""
    if kind in UNSIGNED:
        flags = flags.replace("+", "").replace(" ", "")
    if kind in INTEGERS and "." in size:
        flags = flags.replace("0", "")
    if isinstance(value, float) and not np.isfinite(value):
        flags, size, kind = flags.replace("0", ""), size.split(".")[0], "E" if kind.isupper() else "e"
    if kind in "aA":
        return _hexadecimal(float(value), flags, size, kind)
    if "#" in flags and kind in "oxX":
        if kind == "o":
            raise Unsupported("print_tko: '%#o'")
        flags = flags if value else flags.replace("#", "")
    return f"%{flags}{size}{kind}" % value


def _hexadecimal(value: float, flags: str, size: str, kind: str) -> str:
    if flags.strip("+") or size:
        raise Unsupported(f"print_tko: '%{flags}{size}{kind}'")
    digits = re.sub(r"\.?0*p", "p", value.hex()) if "." in value.hex() else value.hex()
    digits = f"+{digits}" if "+" in flags and not digits.startswith("-") else digits
    return digits.upper() if kind == "A" else digits
