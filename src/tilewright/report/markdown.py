"""The report of a run as Markdown, for a pull request or a terminal.

Text from the ledger is escaped, so it is never read as markup. A diff's fence is longer than any fence in the diff.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tilewright.report.charts import in_order
from tilewright.report.evidence import OptimizeEvidence, TuneEvidence
from tilewright.report.two_steps import two_steps
from tilewright.report.words import (
    TuneWords,
    Words,
    attempts,
    gain,
    interval_ms,
    mix_row,
    outcome_cells,
    place,
    time_ms,
)

_SPECIAL = re.compile(r"([\\`*\[\]<|~]|(?<!\w)_|_(?!\w))")
"""Characters that are markup within a line. An underscore inside a word is not markup."""


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


def markdown(report: OptimizeEvidence) -> str:
    """Returns the report of a run of `optimize`."""
    words = Words(report)
    return framed(
        words,
        *two_step_sections(report),
        *section("Workloads", table(*words.workloads())),
        *section("Candidates to confirm on a GPU", table(*words.to_confirm())),
        *section("Iterations", _iterations(report, words)),
        *section("Why, and what else was tried", *_details(report)),
        *section("What was ruled out", listed(report.ruled_out)),
        *section("Instructions", _instructions(report)),
        *section("The patch", fenced(report.patch, "diff") if report.patch.strip() else "Empty."),
    )


def two_step_sections(report: OptimizeEvidence | TuneEvidence) -> Iterator[str]:
    """Yields the sections about a Triton kernel's way to Tile IR."""
    for part in two_steps(report):
        yield from section(part.heading, table(*part.table()))


def text(value: object) -> str:
    """Returns the value as one line, escaped so that Markdown shows it unchanged."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(value).split()))


def listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {text(line)}" for line in lines)


def fenced(content: str, language: str = "") -> str:
    """Returns a block of code. Its fence is longer than any run of backticks in it."""
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


def _iterations(report: OptimizeEvidence, words: Words) -> str:
    header = ["", "optimization", f"{words.p}ms", "95 %", f"{words.p}gain", "correctness", "status", "reason"]
    if words.predicted:
        header = [name for name in header if name not in ("95 %", "predicted gain")]
    rows = []
    for iteration in report.iterations:
        named = iteration.optimization + (f" ({place(iteration)})" if place(iteration) else "")
        named += ", lossy" if iteration.risk == "lossy" else ""
        measured = [] if words.predicted else [interval_ms(iteration), gain(iteration)]
        time = time_ms(iteration, report.run.measured)
        end = (iteration.correctness, iteration.status, iteration.reason)
        rows.append([iteration.n, named, time, *measured, *end])
    return table(header, rows)


def _details(report: OptimizeEvidence) -> Iterator[str]:
    for iteration in report.tried:
        parts = [f"### {iteration.n}. {text(iteration.optimization)}: {iteration.status}"]
        parts += [f"Chosen: {text(iteration.why_chosen)}"] if iteration.why_chosen else []
        header, rows = outcome_cells(iteration)
        parts.append(table(header[:-1], [row[:-1] for row in rows]))
        parts.append(table(*attempts(iteration)))
        parts += [fenced(iteration.comparison)] if iteration.comparison.strip() else []
        if iteration.status != "keep" and iteration.diff.strip():  # what was kept is in the patch
            parts.append(fenced(iteration.diff, "diff"))
        yield "\n\n".join(part for part in parts if part)


def _instructions(report: OptimizeEvidence) -> str:
    rows = [
        (change.workload, *mix_row(change, kind))
        for change in report.workloads
        for kind in in_order(change.before.mix, change.after.mix)
        if change.before.mix and change.after.mix
    ]
    return table(["workload", "class", "before", "after"], rows)
