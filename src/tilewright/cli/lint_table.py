"""The output of `tilewright lint`, as text for a terminal and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from tilewright.lint.linting import LintReport
from tilewright.lint.rule import LEVELS
from tilewright.printable import plural
from tilewright.records import Json


def lines(report: LintReport, width: int) -> Iterator[str]:
    """Yields one line for each finding, then the reason and the fix of each rule that has findings.

    Reasons and fixes wrap at ``width`` characters. A finding is never wrapped, so that grep finds it.
    """
    for finding in report.findings:
        place = f"{finding.file}:{finding.line}:{finding.column}"
        yield f"{place}: {finding.level} {finding.rule.name} {finding.message}"
    for rule in sorted({finding.rule for finding in report.findings}, key=lambda rule: rule.rule_id):
        yield ""
        yield f"{rule.name}: {rule.title}"
        yield from _paragraph("why", rule.why, width)
        yield from _paragraph("fix", rule.fix, width)
    if report.findings:
        yield ""
    yield summary(report)


def _paragraph(word: str, text: str, width: int) -> list[str]:
    indented = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    indented.initial_indent, indented.subsequent_indent = f"  {word}  ", " " * 7
    return indented.wrap(text)


def summary(report: LintReport) -> str:
    counts = ", ".join(plural(count, level) for level in LEVELS if (count := report.count(level)))
    ignored = f", {report.ignored} ignored by comments" if report.ignored else ""
    return f"{counts or 'nothing found'} in {plural(len(report.files), 'file')}{ignored}"


def inventory_lines(report: LintReport) -> Iterator[str]:
    """Yields the kernels, launches, spaces and searches of each file, and a line with their total counts."""
    total: dict[str, int] = {}
    for file, items in report.inventories:
        yield str(file)
        for item in items:
            total[item.what] = total.get(item.what, 0) + 1
            where = f" in {item.function}" if item.function else ""
            yield f"  {item.line:>5}  {item.what:<12}  {item.name}{where}"
    counts = ", ".join(plural(count, what) for what, count in sorted(total.items()))
    yield f"{counts or 'nothing'} in {len(report.inventories)} of {len(report.files)} files"


def to_json(report: LintReport) -> dict[str, Json]:
    """Returns the value of `lint --json`; scripts rely on these names."""
    return {
        "files": len(report.files),
        "counts": {level: report.count(level) for level in LEVELS},
        "ignored": report.ignored,
        "findings": [
            {
                "code": finding.code, "name": finding.rule.name.replace("_", "-"), "level": finding.level,
                "file": str(finding.file), "line": finding.line, "column": finding.column, "message": finding.message,
                "why": finding.rule.why, "fix": finding.rule.fix, "sources": list(finding.rule.sources),
            }
            for finding in report.findings
        ],
        "inventory": {
            str(file): [
                {"what": item.what, "line": item.line, "name": item.name, "function": item.function} for item in items
            ]
            for file, items in report.inventories
        },
    }  # fmt: skip
