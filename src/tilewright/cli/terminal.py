"""Output of the command line: results go to stdout; notes, errors and progress go to stderr."""

from __future__ import annotations

import codecs
import io
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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


def stdout() -> Console:
    """Returns a console for stdout, as wide as the terminal or ``$COLUMNS``."""
    from rich.console import Console  # not loaded for JSON

    width = shutil.get_terminal_size((WIDTH_OF_FILES, 24)).columns
    return Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)


def stderr() -> Console:
    from rich.console import Console

    return Console(file=sys.stderr, markup=False, highlight=False, emoji=False)


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
