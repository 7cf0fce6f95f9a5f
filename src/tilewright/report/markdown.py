"""Common parts of all reports in Markdown: the frame, sections, tables, lists and blocks of code.

Text from the ledger is escaped, so it is never interpreted as markup. The fence of a diff is longer than any fence in
the diff.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tilewright.printable import printable
from tilewright.report.evidence import OptimizeEvidence
from tilewright.report.tune_evidence import TuneEvidence
from tilewright.report.two_steps import two_steps
from tilewright.report.words import TuneWords, Words

_SPECIAL = re.compile(r"([\\`*\[\]<|~]|(?<!\w)_|_(?!\w))")
"""Characters that are markup within a line. An underscore inside a word is no markup."""


def framed(words: Words | TuneWords, *parts: str) -> str:
    """Returns a complete report: the title, the outcome, ``parts``, the environment and the command."""
    whole = [
        f"# {text(words.title)}",
        text(words.subtitle),
        f"**{text(words.outcome)}**",
        listed(words.notes()),
        *parts,
        *section("Environment", table(["", "value"], words.environment())),
        *section(words.command_name, fenced(words.command, "sh")),
    ]
    return "\n\n".join(part for part in whole if part) + "\n"


def two_step_sections(report: OptimizeEvidence | TuneEvidence) -> Iterator[str]:
    """Yields the sections about a Triton kernel's translation to Tile IR."""
    for part in two_steps(report):
        yield from section(part.heading, table(*part.table()))


def text(value: object) -> str:
    """Returns the value as one line, escaped so that Markdown shows it unchanged."""
    return _SPECIAL.sub(r"\\\1", " ".join(printable(str(value)).split()))


def listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {text(line)}" for line in lines)


def fenced(content: str, language: str = "") -> str:
    """Returns a block of code. Its fence is longer than any run of backticks in the code."""
    content = printable(content)
    longest = max((len(run) for run in re.findall(r"`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{content.rstrip(chr(10))}\n{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table with escaped cells; "" if there are no rows."""
    lines = [f"| {' | '.join(text(cell) for cell in row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(map(text, header))} |", f"|{' --- |' * len(header)}", *lines])


def section(title: str, *parts: str) -> Iterator[str]:
    content = [part for part in parts if part]
    if content:
        yield f"## {title}"
        yield from content
