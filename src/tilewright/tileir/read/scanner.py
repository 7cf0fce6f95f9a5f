"""Splits the text of Tile IR into literals, names, numbers and strings. The message of an error shows the line."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from tilewright.errors import ToolFailed

T = TypeVar("T")

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[A-Za-z_][\w]*")
_INTEGER = re.compile(r"-?\d+(?![\w.])")
_VALUE = re.compile(r"%[\w$.\-]*[\w$.](?:#\d+)?")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_SYMBOL = re.compile(r"@([A-Za-z_][\w$.\-]*)")
_ESCAPE = re.compile(rb'\\([0-9A-Fa-f]{2}|[\\"nt])')
_NAMED_ESCAPES = {b"\\": b"\\", b'"': b'"', b"n": b"\n", b"t": b"\t"}


class ReadError(ToolFailed):
    """Tile IR cannot be read. The message comes from the disassembler, or names the line of the text and the reason."""


class Scanner:
    """A position in the text. Methods that read move the position past the text read and the whitespace after it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._statement = 0
        self._advance(0)

    @property
    def done(self) -> bool:
        return self.at == len(self.text)

    @property
    def line(self) -> int:
        return bisect_right(self._starts, self.at)

    def begin(self) -> None:
        """Marks the start of a statement. Errors are located in this statement, not at the end of the previous one."""
        self._statement = self.at

    def error(self, message: str, at: int | None = None) -> ReadError:
        """Returns the error for the text at ``at``. By default, ``at`` is just after the text that was read last."""
        number = bisect_right(self._starts, max(self._end, self._statement) if at is None else at)
        start = self._starts[number - 1]
        shown = self.text[start:].split("\n", 1)[0].strip()
        return ReadError(f"line {number}: {message}: {shown if len(shown) < 300 else shown[:297] + '...'}")

    def sees(self, literal: str) -> bool:
        return _literal(literal).match(self.text, self.at) is not None

    def accept(self, literal: str) -> bool:
        """Returns whether ``literal`` comes next in the text, and then moves past it. Words match only whole words."""
        return self.match(_literal(literal)) is not None

    def expect(self, *literals: str) -> None:
        for literal in literals:
            if not self.accept(literal):
                raise self.error(f"expected '{literal}'")

    def several(self, brackets: str, read: Callable[[], T]) -> tuple[T, ...]:
        """Reads a list in brackets such as ``[]``. ``read`` reads an item; commas separate the items."""
        items: list[T] = []
        self.expect(brackets[0])
        while not self.accept(brackets[1]):
            if items:
                self.expect(",")
            items.append(read())
        return tuple(items)

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self._advance(found.end())
        return found

    def need(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        if not (found := self.match(pattern)):
            raise self.error(f"expected {what}")
        return found

    def word(self) -> str:
        return self.need(_WORD, "a word")[0]

    def integer(self) -> int:
        found = self.need(_INTEGER, "a whole number")
        if len(found[0]) > 40:
            raise self.error("a whole number has more than 40 digits, which no type can hold")
        return int(found[0])

    def value(self) -> str:
        """Reads the name of a value, such as ``%3``. If an operation has several results, the name is ``%3#1``."""
        return self.need(_VALUE, "a value (%…)")[0]

    def string(self) -> str:
        """Reads a string. Bytes that are not printable ASCII are written as ``\\C3``."""
        raw = _ESCAPE.sub(
            lambda found: _NAMED_ESCAPES.get(found[1]) or bytes.fromhex(found[1].decode()),
            self.need(_STRING, "a string in double quotes")[1].encode("utf-8", "replace"),
        )
        return raw.decode("utf-8", "backslashreplace")

    def symbol(self) -> str:
        """Reads ``@name`` or ``@"any name"``, and returns it without the ``@``."""
        if found := self.match(_SYMBOL):
            return found[1]
        self.expect("@")
        return self.string()

    def _advance(self, to: int) -> None:
        found = _SPACE.match(self.text, to)
        assert found is not None
        self._end, self.at = to, found.end()


@cache
def _literal(literal: str) -> re.Pattern[str]:
    return re.compile(re.escape(literal) + (r"(?!\w)" if literal[-1].isalnum() else ""))
