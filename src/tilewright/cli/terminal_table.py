"""A table that fits the width of its terminal, and lists that show only their first rows.

A column with the same value in every row becomes a line above the table. If the table is still too wide, spare columns
move to a second line under each row, and then the widest text column wraps. No text is cut off or interpreted as
markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from tilewright.printable import plural

NOTHING = "–"
ROWS = 10
"""The most rows that are shown without ``--all``."""
REASONS = 6
"""The most reasons that are listed for hidden rows."""
GAP, INDENT, NARROWEST = 2, 4, 12

T = TypeVar("T")


@dataclass(frozen=True)
class Column:
    """A column of a table. Its ``name`` is the heading and may have line breaks.

    right: aligns the values to the right.
    spare: on a narrow terminal, columns with the highest number move under their rows first; 0: never moves.
    knob: writes ``name=value`` if the value is shown outside the table.
    always: keeps the column even if all its values are the same.
    """

    name: str
    right: bool = False
    spare: int = 0
    knob: bool = False
    always: bool = False

    def with_value(self, value: Text) -> str:
        """Returns the column's name and one value, as text outside the table."""
        name = re.sub(r"(?<=_)\n", "", self.name).replace("\n", " ")
        return f"{name}={value.plain}" if self.knob else f"{name} {value.plain}"


def knob_column(knob: str) -> Column:
    """Returns the column of a knob. A long name is broken at its underscores, so that the column stays narrow."""
    return Column(knob if len(knob) <= 9 else knob.replace("_", "_\n"), right=True, spare=1, knob=True)


class TerminalTable:
    """A table to print with rich. Each row may have notes, which are printed under it."""

    def __init__(self, *columns: Column | str, title: str = ""):
        self.columns = [Column(column) if isinstance(column, str) else column for column in columns]
        self.title = title
        self._rows: list[tuple[list[Text], list[Text]]] = []

    def add(self, cells: Iterable[str | Text], *notes: str | Text) -> None:
        """Adds one row; empty notes are left out."""
        self._rows.append(([_text(cell) for cell in cells], [_text(note) for note in notes if note]))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        if self.title:
            yield Text(self.title, style="bold")
        same = self._same()
        if values := self._in_a_line(same, self._rows[0][0] if self._rows else ()):
            yield Text(f"the same in all: {values}", style="dim")
        differing = [at for at in range(len(self.columns)) if at not in same]
        shown, below, widths = self._layout(differing, options.max_width)
        yield from self._heading(shown, widths)
        for cells, notes in self._rows:
            yield from self._lines([cells[at] for at in shown], shown, widths, console)
            if moved := self._in_a_line(below, cells):
                notes = [Text.assemble(moved, "; ", notes[0]) if notes else Text(moved), *notes[1:]]
            for note in notes:
                yield from Indented(note).__rich_console__(console, options)

    def _in_a_line(self, places: Iterable[int], cells: Sequence[Text]) -> str:
        """Returns the cells of one row at ``places`` as text, each with its column's name. Empty cells are left out."""
        shown = (at for at in places if cells[at].plain not in ("", NOTHING))
        return ", ".join(self.columns[at].with_value(cells[at]) for at in shown)

    def _same(self) -> list[int]:
        """Returns the indices of the columns that have the same value in every row."""
        if len(self._rows) < 2:
            return []
        values = ({cells[at].plain for cells, _ in self._rows} for at in range(len(self.columns)))
        return [at for at, different in enumerate(values) if len(different) == 1 and not self.columns[at].always]

    def _layout(self, shown: list[int], width: int) -> tuple[list[int], list[int], dict[int, int]]:
        """Returns the columns that stay, the columns that move under their rows, and the width of each column."""
        wide = {at: self._width(at) for at in shown}
        below: list[int] = []
        while sum(wide[at] + GAP for at in shown) - GAP > width and any(self.columns[at].spare for at in shown):
            rank = max(self.columns[at].spare for at in shown)
            below += [at for at in shown if self.columns[at].spare == rank]
            shown = [at for at in shown if at not in below]
        over = sum(wide[at] + GAP for at in shown) - GAP - width
        wrapping = max((at for at in shown if not self.columns[at].right), key=lambda at: wide[at], default=None)
        if over > 0 and wrapping is not None:
            wide[wrapping] = max(wide[wrapping] - over, NARROWEST)
        return shown, sorted(below), wide

    def _width(self, at: int) -> int:
        texts = (self.columns[at].name, *(cells[at].plain for cells, _ in self._rows))
        return max(cell_len(line) for text in texts for line in text.split("\n"))

    def _heading(self, shown: Sequence[int], widths: dict[int, int]) -> Iterator[Text]:
        names = [self.columns[at].name.split("\n") for at in shown]
        height = max(map(len, names), default=0)
        for line in zip(*([""] * (height - len(name)) + name for name in names), strict=True):
            yield self._line(map(Text, line), shown, widths)
        yield Text("─" * (sum(widths[at] + GAP for at in shown) - GAP), style="dim")

    def _lines(
        self, cells: Sequence[Text], shown: Sequence[int], widths: dict[int, int], console: Console
    ) -> Iterator[Text]:
        wrapped = [list(cell.wrap(console, widths[at])) or [Text()] for cell, at in zip(cells, shown, strict=True)]
        for number in range(max(map(len, wrapped), default=0)):
            yield self._line((lines[number] if number < len(lines) else Text() for lines in wrapped), shown, widths)

    def _line(self, cells: Iterable[Text], shown: Sequence[int], widths: dict[int, int]) -> Text:
        line = Text()
        for cell, at in zip(cells, shown, strict=True):
            cell.rstrip()
            pad = " " * (widths[at] - cell.cell_len)
            line.append_text(Text(pad) + cell if self.columns[at].right else cell + Text(pad))
            line.append(" " * GAP)
        line.rstrip()
        return line


def _text(value: str | Text) -> Text:
    return value if isinstance(value, Text) else Text(value)


@dataclass(frozen=True)
class Indented:
    """Text that wraps, with every line indented."""

    text: Text
    by: int = INDENT

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for line in self.text.wrap(console, max(options.max_width - self.by, NARROWEST)):
            line.rstrip()
            yield Text(" " * self.by) + line


# Lists that show their first rows -----------------------------------------------------------------


def first(rows: Sequence[T], show_all: bool) -> Sequence[T]:
    """Returns all rows, or only the first ten."""
    return rows if show_all else rows[:ROWS]


def first_lines(lines: Sequence[str], show_all: bool) -> list[str]:
    """Returns all lines, or the first ten and a line that counts the others."""
    shown = [*first(lines, show_all)]
    return shown + [f"and {len(lines) - len(shown)} more; --all shows them"] * (len(shown) < len(lines))


def not_shown(hidden: Sequence[tuple[str, str]], what: str = "row") -> list[RenderableType]:
    """Returns lines that count the hidden rows. ``hidden``: the status and the reason of each hidden row. ``what``: the
    singular of what the rows are.

    Reasons that differ only in numbers and knob values are counted together; ``…`` replaces the parts that differ.
    """
    if not hidden:
        return []
    kinds: dict[tuple[str, str], list[str]] = {}
    for status, reason in hidden:
        kinds.setdefault((status, _kind(reason)), []).append(_head(reason))
    by_count = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    lines = [f"{len(heads)} {status}: {reduce(_common, heads)}".removesuffix(": ") for (status, _), heads in by_count]
    if len(lines) > REASONS:
        lines[REASONS:] = [f"{sum(len(heads) for _, heads in by_count[REASONS:])} for other reasons"]
    more = f"{plural(len(hidden), f'more {what}')}; --all shows {'it' if len(hidden) == 1 else 'them'}"
    return [Text(more, "dim"), *(Indented(Text(line, "dim")) for line in lines)]


def _head(reason: str) -> str:
    return reason.partition(";")[0]


def _kind(reason: str) -> str:
    """Returns the reason with ``…`` in place of each number and each knob value."""
    return re.sub(r"\S*[\d=]\S*", "…", _head(reason))


def _common(a: str, b: str) -> str:
    """Returns the words that two reasons of one kind share, with ``…`` in place of the other words."""
    return " ".join(word if word == other else "…" for word, other in zip(a.split(" "), b.split(" "), strict=True))
