"""Output of the command line: results go to stdout; notes, errors and progress go to stderr."""

from __future__ import annotations

import codecs
import io
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from tilewright.progress import BEST, Progress, silent

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

    For example, Latin-1 lacks →, and UTF-8 cannot encode the surrogates in an undecodable file name. stderr needs no
    change: Python escapes such characters there.
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
    width = shutil.get_terminal_size((WIDTH_OF_FILES, 24)).columns
    return Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)


def stderr() -> Console:
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
        with stages(stderr()) as bars:
            yield _Bars(bars)
    else:
        yield _Lines()


class _Stages(Bars):
    """Progress bars. The current work and the best result so far are shown below them."""

    note = best = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        if self.note:
            yield Text(self.note, style="dim")
        if self.best:
            yield Text(f"best so far: {self.best}")


def stages(console: Console, clock: Callable[[], float] = time.monotonic) -> _Stages:
    """Returns a display with one bar for each stage, the time it has taken, and the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeColumn())
    return _Stages(*columns, console=console, transient=True, get_time=clock)


class TimeColumn(ProgressColumn):
    """Shows the time that a stage has taken, and the time left, estimated from its speed in the last half minute."""

    def render(self, task: Task) -> Text:
        rest = "" if task.finished or task.time_remaining is None else f", about {_duration(task.time_remaining)} left"
        return Text(f"{_duration(task.finished_time or task.elapsed or 0)}{rest}")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class _Bars:
    """Updates one bar for each stage, and the best result so far. May be called from several threads."""

    def __init__(self, bars: _Stages) -> None:
        self._bars = bars
        self._stages: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int | None, note: str = "") -> None:
        if stage == BEST:
            self._bars.best = note
            return
        if stage not in self._stages:
            self._stages[stage] = self._bars.add_task(stage, total=total)
        self._bars.note = note
        self._bars.update(self._stages[stage], completed=done, total=total)


class _Lines:
    """Prints one line every `SECONDS_BETWEEN_LINES` seconds. Short work therefore prints none."""

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
