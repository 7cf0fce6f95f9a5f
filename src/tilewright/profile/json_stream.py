"""Reads a Chrome trace event by event. A trace of gigabytes then needs only megabytes of memory.

The bytes are decoded as Latin-1, one character for each byte, so an event's position in the text is its offset in the
file. `as_text` decodes the few texts that are kept. Numbers with a decimal point stay text, because a time in µs since
1970 has more digits than a float. NaN and infinity become None, also in Kineto's spelling (``nan``, ``inf``), which is
not valid JSON.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from io import BufferedReader
from json.scanner import NUMBER_RE
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from tilewright.errors import RequestError
from tilewright.progress import Progress, silent

CHUNK = 1 << 22
"""The number of characters read at a time."""
LONGEST_VALUE = 1 << 26
"""The most characters of one value. A longer value is an error."""
RECORD = "record one with tilewright profile -- PROGRAM, or with torch.profiler's export_chrome_trace"

EVENTS = "traceEvents"
_NOT_JSON = re.compile(r"(?<=[:,\[])(\s*)(-?(?:nan|inf))(?=\s*[,}\]])")
_SPACE = re.compile(r"\s*")
_BEGINNINGS = {
    b"SQLite format 3": "a database of Nsight Systems",
    b"NVR\0": "a report of Nsight Compute",
    b"PK\x03\x04": "a zip archive",
    b"\x80\x04": "a pickle",
}
_DECODER = json.JSONDecoder(parse_float=str, parse_constant=lambda _: None, strict=False)

MOST_NANOSECONDS = 1 << 62
"""No time is this long: 146 years."""


class EventPlace(NamedTuple):
    """The place of a value in the decompressed file: offset and length in bytes, line and column counted from 1."""

    offset: int
    length: int
    line: int
    column: int


class JsonStream:
    """Iterates over the events of a trace, in the order of the file.

    head: the other fields of the trace, such as ``deviceProperties``; complete after the last event.
    digest: a hash of the file; complete after the last event.
    """

    def __init__(self, path: Path, progress: Progress = silent):
        self.path = path
        self.head: dict[str, Any] = {}
        self._progress = progress
        self._hash = blake2b(digest_size=8)
        self._text, self._at, self._base, self._ended = "", 0, 0, False
        self._line, self._line_start = 1, 0
        self._size = 0
        self._file: IO[bytes]
        self._raw: IO[bytes]

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[tuple[EventPlace, Any]]:
        try:
            with opened(self.path) as (self._raw, self._file):
                self._size = self.path.stat().st_size
                yield from self._events()
        except EOFError:
            raise self._cut_off() from None
        except (zlib.error, gzip.BadGzipFile) as error:
            raise RequestError(f"{self.path} is a damaged gzip file ({error}); copy it again, or {RECORD}") from None

    def _events(self) -> Iterator[tuple[EventPlace, Any]]:
        first = self._next()
        if not first:
            raise RequestError(f"{self.path} is empty; {RECORD}")
        if first == "[":
            yield from self._items()
        elif first == "{":
            yield from self._fields()
        else:
            raise self._other("no JSON object")

    def _fields(self) -> Iterator[tuple[EventPlace, Any]]:
        found = False
        self._step()
        while self._next() != "}":
            key, _ = self._value()
            self._expect(":")
            if key == EVENTS and self._next() == "[":
                found = True
                yield from self._items()
            else:
                self.head[str(key)] = self._value()[0]
            if self._next() != "}":
                self._expect(",")
        if not found:
            fields = ", ".join(list(self.head)[:6]) or "none"
            missing = (
                f"its {EVENTS} is no list" if EVENTS in self.head else f"it has no list {EVENTS} (fields: {fields})"
            )
            raise RequestError(f"{self.path} is JSON but no trace: {missing}; {RECORD}")

    def _items(self) -> Iterator[tuple[EventPlace, Any]]:
        self._expect("[")
        while self._next() != "]":
            value, place = self._value()
            yield place, value
            if self._next() != "]":
                self._expect(",")
        self._step()

    # Text ------------------------------------------------------------------------------------------

    def _value(self) -> tuple[Any, EventPlace]:
        """Returns the next value and its place."""
        if not self._next():
            raise self._cut_off()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                self._mend(error)
                continue
            if end == len(self._text) and not self._ended:  # a number may continue in the next chunk
                self._more()
                continue
            at = self._base + self._at
            place = EventPlace(at, end - self._at, self._line, at - self._line_start + 1)
            self._go_to(end)
            return value, place

    def _mend(self, error: json.JSONDecodeError) -> None:
        """Repairs the text at which the decoder failed, so that decoding can be tried again.

        Reads more of the file, or replaces ``nan`` and ``inf``. Raises RequestError if neither helps.
        """
        left = len(self._text) - self._at
        unfinished = error.msg.startswith("Unterminated") or error.pos + 16 > len(self._text)
        if unfinished and not self._ended and left < LONGEST_VALUE:
            self._more()
            return
        mended = _NOT_JSON.sub(lambda found: found[1] + "NaN".rjust(len(found[2])), self._text[self._at :])
        if mended != self._text[self._at :]:
            self._text = self._text[: self._at] + mended
        elif unfinished and self._ended:
            raise self._cut_off()
        else:
            line = self._line + self._text.count("\n", self._at, error.pos)
            raise RequestError(f"{self.path} line {line}: {error.msg}; the trace is not valid JSON, {RECORD}") from None

    def _next(self) -> str:
        """Returns the next character that is not white space; "" at the end of the file."""
        while True:
            end = cast("re.Match[str]", _SPACE.match(self._text, self._at)).end()
            self._go_to(end)
            if end < len(self._text):
                return self._text[end]
            if self._ended:
                return ""
            self._more()

    def _go_to(self, end: int) -> None:
        if lines := self._text.count("\n", self._at, end):
            self._line += lines
            self._line_start = self._base + self._text.rindex("\n", self._at, end) + 1
        self._at = end

    def _step(self) -> None:
        self._at += 1

    def _expect(self, sign: str) -> None:
        found = self._next()
        if not found:
            raise self._cut_off()
        if found != sign:
            raise RequestError(f"{self.path} line {self._line}: '{found}' where '{sign}' is due; {RECORD}")
        self._step()

    def _more(self) -> None:
        """Reads the next chunk, and drops the decoded text."""
        chunk = self._file.read(CHUNK)
        self._hash.update(chunk)
        self._ended = not chunk
        self._base += self._at
        self._text, self._at = self._text[self._at :] + chunk.decode("latin-1"), 0
        mebi = 1 << 20
        self._progress("reading the trace, MiB", self._raw.tell() // mebi, max(1, self._size // mebi))

    def _cut_off(self) -> RequestError:
        return RequestError(
            f"{self.path} ends in the middle of the trace (line {self._line}): the program or the copy ended early; "
            "let it end, or record fewer steps"
        )

    def _other(self, what: str) -> RequestError:
        beginning = self._text[:16].encode("latin-1")
        kind = next((name for sign, name in _BEGINNINGS.items() if beginning.startswith(sign)), what)
        return RequestError(f"{self.path} is {kind}, not a trace of torch.profiler; {RECORD}")


class opened:
    """Opens a file, and decompresses it if its content is gzip. Gives the file itself and the decompressed content."""

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self) -> tuple[IO[bytes], IO[bytes]]:
        try:
            self._raw: BufferedReader = self.path.open("rb")
            zipped = self._raw.peek(2)[:2] == b"\x1f\x8b"
        except OSError as error:
            raise RequestError(f"cannot read {self.path}: {error.strerror}") from None
        return self._raw, cast("IO[bytes]", gzip.GzipFile(fileobj=self._raw)) if zipped else self._raw

    def __exit__(self, *_: object) -> None:
        self._raw.close()


def as_text(value: object) -> str:
    """Decodes a string of the trace from UTF-8. The trace was read as Latin-1."""
    text = str(value)
    if text.isascii():
        return text
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:  # it has an escape such as \u2192, so it is decoded already
        return text


def nanoseconds(value: object) -> int | None:
    """Converts a time in µs, as `JsonStream` yields it, to whole nanoseconds. Returns None for any other value, and for
    a time of 2**62 ns or more, which no clock shows."""
    found = _nanoseconds(value)
    return found if found is not None and abs(found) < MOST_NANOSECONDS else None


def _nanoseconds(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value * 1000
    if not isinstance(value, str):
        return None
    whole, point, fraction = value.partition(".")
    digits = whole.removeprefix("-")
    if point and digits.isdecimal() and fraction.isdecimal() and len(digits) < 20:
        size = int(digits) * 1000 + int((fraction + "00")[:3])
        return -size if whole.startswith("-") else size
    us = number(value)
    return round(us * 1000) if us is not None and abs(us) < MOST_NANOSECONDS else None


def number(value: object) -> float | None:
    """Returns a number of the trace. Returns None if the value is not a finite number."""
    if isinstance(value, bool) or not (
        isinstance(value, int) or (isinstance(value, str) and NUMBER_RE.fullmatch(value))
    ):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
