"""The parts of a report of `agent`, the same for Markdown, HTML page and JSON: sections with lists, tables and lines.

Every number cites its ledger ids (see `sourced`). A missing measurement is shown as not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.coordinate.principles import PRINCIPLES
from tilewright.ledger.agent_records import AgentChange, AgentItem, AgentMeasurement
from tilewright.printable import plural
from tilewright.records import Json
from tilewright.report.agent.evidence import AgentEvidence
from tilewright.report.sourced import NOT_MEASURED, Sourced, ids_of, key, row_json

PROOF = "Proof that the changed code ran"
Mark: TypeAlias = Literal["- ", "- [x] ", "- [ ] ", "1. "]


@dataclass(frozen=True)
class ReportPoint:
    """An item of a list. ``lines``: the lines below it. ``mark``: a bullet, a check box, or its number."""

    text: str
    mark: Mark = "- "
    lines: tuple[str, ...] = ()
    title: str = ""
    """The bold beginning of the line."""


@dataclass(frozen=True)
class ReportSection:
    """A section with a heading, a list, a table, lines of text and a diff. Each of these may be empty."""

    heading: str
    points: tuple[ReportPoint, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[Sequence[str], ...] = ()
    lines: tuple[str, ...] = ()
    diff: str = ""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ledger ids of all numbers in the section."""
        texts = [text for point in self.points for text in (point.text, *point.lines)]
        return ids_of([*texts, *(cell for row in self.rows for cell in row), *self.lines])

    def to_json(self) -> dict[str, Json]:
        points: list[Json] = [
            {"text": f"{point.title}{': ' * bool(point.title)}{point.text}", "lines": list(map(str, point.lines)),
             "checked": {"- [x] ": True, "- [ ] ": False}.get(point.mark)}
            for point in self.points
        ]  # fmt: skip
        rows: list[Json] = [row_json(self.header, row) for row in self.rows]
        lines: list[Json] = [str(line) for line in self.lines]
        return {"points": points, "rows": rows, "lines": lines, "ledger": list(self.ids)}


@dataclass(frozen=True)
class AgentReport:
    """A whole report. ``facts``: named lines below the title. ``outcome``: the result in one sentence."""

    title: str
    outcome: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[ReportSection, ...]

    def to_json(self) -> dict[str, Json]:
        return {
            "title": self.title,
            **{name: str(text) for name, text in self.facts},
            "ledger": list(ids_of(text for _, text in self.facts)),
            "sections": {section.heading: section.to_json() for section in self.sections},
        }


def kept_of(evidence: AgentEvidence) -> Sourced:
    """Formats how many of the tried changes are kept."""
    tried = evidence.tried
    text = f"{len(evidence.parts.kept)} of {plural(len(tried), 'change')} applied" if tried else "no change was made"
    return Sourced(text, *(f"steps/{key(each.id)}" for each in tried))


def described(evidence: AgentEvidence, change: AgentChange) -> str:
    """Says what a change does, and at which place."""
    where = f" at {evidence.site(change)}" if change.site else ""
    return f"{change.name}{where}: {change.rationale}"


def principle(evidence: AgentEvidence, item: AgentItem) -> str:
    """Returns the principle of an item and its description; "" if there is no principle."""
    name = evidence.tag(item)
    return f"{name}: {PRINCIPLES[name].says}" if name in PRINCIPLES else name


def verdict(what: str, measurement: AgentMeasurement | None) -> str:
    if measurement is None:
        return f"{what}: {NOT_MEASURED}"
    said = ", ".join(filter(None, (measurement.verdict, measurement.reason)))
    return Sourced(f"{what}: {said}", f"{measurement.id}/verdict", f"{measurement.id}/reason")
