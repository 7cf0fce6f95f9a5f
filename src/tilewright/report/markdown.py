"""The report of a run as Markdown, for a pull request or a terminal.

Text of a record is never read as markup: it is escaped, and a diff cannot close the fence around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tilewright.report.evidence import OptimizeEvidence, settings
from tilewright.report.mix import in_order
from tilewright.report.words import (
    NOTHING,
    Words,
    between,
    environment,
    faster,
    number,
    outcome_cells,
    place,
    workload_cells,
)

_SPECIAL = re.compile(r"([\\`*\[\]<|~]|(?<!\w)_|_(?!\w))")
"""What Markdown reads as markup within a line. An underscore inside a word is not markup."""


def markdown(report: OptimizeEvidence) -> str:
    """The whole report, headings from level 1."""
    words = Words(report)
    parts = [
        f"# {text(words.title)}",
        text(words.subtitle),
        f"**{text(words.outcome)}**",
        "\n".join(f"- {text(note)}" for note in words.notes()),
        *section("Workloads", table(*workload_cells(report, words))),
        *section("Iterations", _iterations(report, words)),
        *section("Why, and what else was tried", *_details(report)),
        *section("What was ruled out", "\n".join(f"- {text(one)}" for one in report.ruled_out)),
        *section("Instructions", _instructions(report)),
        *section("The patch", fenced(report.patch, "diff") if report.patch.strip() else "Empty."),
        *section("Environment", table(["", "value"], settings(environment(report)))),
        *section(words.command_name, fenced(words.command, "sh")),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def text(value: object) -> str:
    """One line that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(value).split()))


def fenced(content: str, language: str = "") -> str:
    """A block of code; its fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{content.rstrip(chr(10))}\n{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; cells are escaped. Nothing where there are no rows."""
    lines = [f"| {' | '.join(text(cell) for cell in row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(map(text, header))} |", f"|{' --- |' * len(header)}", *lines])


def section(title: str, *parts: str) -> Iterator[str]:
    content = [part for part in parts if part]
    if content:
        yield f"## {title}"
        yield from content


def _iterations(report: OptimizeEvidence, words: Words) -> str:
    header = ["", "optimization", f"{words.p}ms", "95 %", f"{words.p}gain", "correctness", "status", "reason"]
    if words.predicted:
        header = [name for name in header if name not in ("95 %", "predicted gain")]
    rows = []
    for one in report.iterations:
        named = one.optimization + (f" ({place(one)})" if place(one) else "")
        named += ", lossy" if one.risk == "lossy" else ""
        measured = [] if words.predicted else [between(one.interval_ms), faster(one.gain) if one.n else NOTHING]
        time = NOTHING if one.status == "crash" else number(words.time(one))
        rows.append([one.n, named, time, *measured, one.correctness, one.status, one.reason])
    return table(header, rows)


def _details(report: OptimizeEvidence) -> Iterator[str]:
    for one in report.tried:
        parts = [f"### {one.n}. {text(one.optimization)}: {one.status}"]
        parts += [f"Chosen: {text(one.why_chosen)}"] if one.why_chosen else []
        header, rows = outcome_cells(one)
        parts.append(table(header[:-1], [row[:-1] for row in rows]))
        parts.append(table(["tried", "status", "reason"], [(a.value, a.status, a.reason) for a in one.attempts]))
        parts += [fenced(one.comparison)] if one.comparison.strip() else []
        if one.status != "keep" and one.diff.strip():  # what was kept is in the patch
            parts.append(fenced(one.diff, "diff"))
        yield "\n\n".join(part for part in parts if part)


def _instructions(report: OptimizeEvidence) -> str:
    rows = [
        (one.workload, kind, one.before.mix.get(kind, 0), one.after.mix.get(kind, 0))
        for one in report.workloads
        for kind in in_order(one.before.mix, one.after.mix)
        if one.before.mix and one.after.mix
    ]
    return table(["workload", "class", "before", "after"], rows)
