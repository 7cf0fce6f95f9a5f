"""Where the command line writes: results to stdout, everything else to stderr."""

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
"""Columns of what goes into a file or a pipe, where `$COLUMNS` says nothing."""

SECONDS_BETWEEN_LINES = 5.0

ERRORS = "tilewright"
REPLACEMENTS = {
    "✓": "+", "✗": "x", "–": "-", "−": "-", "→": "->", "×": "x", "±": "+-", "≤": "<=", "≈": "~", "µ": "u", "…": "...",
}  # fmt: skip
"""With a plain ``?``, the yes and the no of `doctor` would look alike."""


def replace_what_stdout_lacks() -> None:
    """From now on stdout replaces characters that its encoding lacks: Latin-1 lacks →, and UTF-8 lacks the bytes of a
    file's name that are no text. Python's stderr does so already."""
    codecs.register_error(ERRORS, _replaced)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ERRORS)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(REPLACEMENTS.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def stdout() -> Console:
    """As wide as the terminal or ``$COLUMNS`` says."""
    width = shutil.get_terminal_size((WIDTH_OF_FILES, 24)).columns
    return Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)


def stderr() -> Console:
    return Console(file=sys.stderr, markup=False, highlight=False, emoji=False)


def note(text: str) -> None:
    """One line beside the result; stdout stays for the result alone."""
    print(f"note: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress(quiet: bool) -> Iterator[Progress]:
    """Bars on a terminal, a line now and then elsewhere, nothing where ``quiet``."""
    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with stages(stderr()) as bars:
            yield _Bars(bars)
    else:
        yield _Lines()


class _Stages(Bars):
    """The bars, and below them what is worked on and the best so far."""

    note = best = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        if self.note:
            yield Text(self.note, style="dim")
        if self.best:
            yield Text(f"best so far: {self.best}")


def stages(console: Console, clock: Callable[[], float] = time.monotonic) -> _Stages:
    """A bar a stage: how far it is, and the time that is left."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeColumn())
    return _Stages(*columns, console=console, transient=True, get_time=clock)


class TimeColumn(ProgressColumn):
    """The time that a stage has taken, and an estimate of what is left at the speed of the last half minute."""

    def render(self, task: Task) -> Text:
        left = "" if task.finished or task.time_remaining is None else f", about {_spelled(task.time_remaining)} left"
        return Text(f"{_spelled(task.finished_time or task.elapsed or 0)}{left}")


def _spelled(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class _Bars:
    """One bar a stage, and a line with the best so far. May be called from several threads."""

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
    """The first line after some seconds, then at that distance: short work says nothing."""

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
