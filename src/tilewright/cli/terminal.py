"""Output of the command line: results go to stdout; notes, errors and progress go to stderr."""

from __future__ import annotations

import codecs
import io
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from tilewright.printable import printable
from tilewright.progress import BEST, Progress, silent

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_OF_FILES = 180
"""Characters per line of output into a file or a pipe, if `$COLUMNS` is not set."""

SECONDS_BETWEEN_LINES = 5.0

ERRORS = "tilewright"
REPLACEMENTS = {
    "✓": "+", "✗": "x", "–": "-", "−": "-", "→": "->", "×": "x", "±": "+-", "≤": "<=", "≈": "~", "µ": "u", "…": "...",
}  # fmt: skip
"""Replacements for characters that stdout's encoding lacks. With ``?``, ✓ and ✗ of `doctor` would look the same."""


def replace_what_stdout_lacks() -> None:
    """Makes stdout replace the characters that its encoding lacks, instead of raising UnicodeEncodeError.

    For example, Latin-1 has no arrow, and UTF-8 cannot encode the surrogates in an undecodable file name. stderr needs
    no change: Python escapes such characters there.
    """
    codecs.register_error(ERRORS, _replacement)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ERRORS)


def _replacement(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(REPLACEMENTS.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


class _Printable:
    """A stream that shows control characters as escapes (`printable`), and is ``stream`` in all else."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def printable_output() -> Iterator[None]:
    """Inside the block, no escape sequence of a store, a ledger, a source or a file name reaches the terminal."""
    before = sys.stdout, sys.stderr
    wrapped: Any = tuple(each if isinstance(each, _Printable) else _Printable(each) for each in before)
    sys.stdout, sys.stderr = wrapped
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextmanager
def own_output() -> Iterator[None]:
    """Inside the block, output is not changed: for text that styles itself, and for data that is no text to read."""
    before = sys.stdout
    sys.stdout = _as_it_is(before)
    try:
        yield
    finally:
        sys.stdout = before


def _as_it_is(stream: TextIO) -> TextIO:
    inner: Any = stream
    while isinstance(inner, _Printable):
        inner = inner.stream
    out: TextIO = inner
    return out


def stdout() -> Console:
    """Returns a console for stdout, as wide as the terminal or ``$COLUMNS``."""
    return _console(sys.stdout, shutil.get_terminal_size((WIDTH_OF_FILES, 24)).columns)


def stderr() -> Console:
    return _console(sys.stderr)


def _console(stream: TextIO, width: int | None = None) -> Console:
    """Returns a console that styles text, and shows the control characters of the text itself as escapes."""
    from tilewright.cli.console import PrintableConsole  # rich is not loaded for JSON

    return PrintableConsole(file=_as_it_is(stream), width=width, markup=False, highlight=False, emoji=False)


def note(text: str) -> None:
    """Prints one line to stderr, because stdout is only for the result."""
    print(f"note: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress(quiet: bool) -> Iterator[Progress]:
    """Shows progress: as bars on a terminal, as a line every few seconds elsewhere, not at all if ``quiet``."""
    if quiet:
        yield silent
    elif sys.stderr.isatty():
        from tilewright.cli import bars

        with bars.stages(stderr()) as shown:
            yield bars.Bars(shown)
    else:
        yield _Lines()


class _Lines:
    """Prints one line every `SECONDS_BETWEEN_LINES` seconds. Short work therefore prints nothing."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._best = ""

    def __call__(self, stage: str, done: int, total: int | None, note: str = "") -> None:
        if stage == BEST:
            self._best = f"; best so far: {note}"
            return
        now = time.monotonic()
        if now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        of = f" of {total}" if total is not None else ""
        print(f"{stage} {done}{of} {note}".rstrip() + self._best, file=sys.stderr, flush=True)
