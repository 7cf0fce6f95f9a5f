"""The report of a run of `agent` as Markdown and as one HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilewright.records import Json
from tilewright.report import markdown as md
from tilewright.report import markup
from tilewright.report.agent.evidence import AgentEvidence
from tilewright.report.agent.impact import impact_of
from tilewright.report.agent.multiple import multiple
from tilewright.report.agent.sections import AgentReport, ReportPoint, ReportSection, kept_of
from tilewright.report.agent.single import single
from tilewright.report.evidence import fields_of, settings
from tilewright.report.markup import Child, Markup, tag
from tilewright.report.page import framed
from tilewright.report.sourced import Sourced


def report_of(evidence: AgentEvidence) -> AgentReport:
    """Returns the report of a change that the user asked for. For other runs, returns the summary of all changes."""
    return single(evidence) if evidence.single else multiple(evidence)


def markdown(evidence: AgentEvidence) -> str:
    """Returns the report as Markdown. The ledger ids of a section's numbers are below the section."""
    report = report_of(evidence)
    parts = [f"## {md.text(report.title)}", *(f"**{name}**: {md.text(text)}" for name, text in report.facts)]
    for section in report.sections:
        parts += [f"### {section.heading}", *_section(section)]
    command = f"tilewright report {evidence.run.run} --json"
    parts.append(f"Every number has a ledger id: `{command}` has them all.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(section: ReportSection) -> Iterator[str]:
    yield "\n".join(line for n, point in enumerate(section.points, 1) for line in _point(n, point))
    yield md.table(section.header, section.rows)
    yield "\n\n".join(md.text(line) for line in section.lines)
    if section.diff.strip():
        yield md.fenced(section.diff, "diff")
    if section.rows:
        yield f"Ledger: {', '.join(f'`{each}`' for each in _measurements(section.ids)) or 'nothing was measured'}"


def _measurements(ids: Iterable[str]) -> Iterator[str]:
    """Returns the measurements to which the ids belong, such as ``RUN/m3``, without duplicates."""
    yield from dict.fromkeys("/".join(each.split("/")[:2]) for each in ids)


def _point(n: int, point: ReportPoint) -> Iterator[str]:
    mark = f"{n}. " if point.mark == "1. " else point.mark
    title = f"**{md.text(point.title)}**" if point.mark == "1. " else md.text(point.title)
    yield f"{mark}{': '.join(filter(None, (title, md.text(point.text))))}"
    yield from (f"   - {md.text(line)}" for line in point.lines)


def to_json_of(evidence: AgentEvidence) -> dict[str, Json]:
    """Returns the report as JSON, with the ledger ids of each section."""
    run = evidence.run
    return {"run": run.run, "finished": run.finished is not None, "stop_reason": run.stop_reason,
            "kept": [change.id for change in evidence.parts.kept], "patch": evidence.patch,
            **report_of(evidence).to_json()}  # fmt: skip


# The page -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentWords:
    """The texts at the top and at the end of the page."""

    evidence: AgentEvidence
    report: AgentReport
    predicted: bool = False
    command_name: str = "Reproduce"

    @property
    def title(self) -> str:
        return self.report.title

    @property
    def subtitle(self) -> str:
        run = self.evidence.run
        state = "finished" if run.finished else "not finished"
        said = f"run {run.run} of {' '.join(run.program) or run.task}, {run.mode}, {state}"
        return Sourced(said, "run/run", "run/program")

    @property
    def outcome(self) -> str:
        return self.report.outcome

    @property
    def command(self) -> str:
        return self.evidence.run.reproduce or f'tilewright agent "{self.evidence.run.question}"'

    def notes(self) -> Iterator[str]:
        """Yields the goal, the starting point, the line of the casebook, and why the run stopped."""
        yield from (Sourced(f"{name}: {text}", *text.ids) if isinstance(text, Sourced) else f"{name}: {text}"
                    for name, text in self.report.facts if name != "Result")  # fmt: skip
        run = self.evidence.run
        yield f"{run.trace}" if run.trace else "The casebook was not asked."
        yield f"Stopped: {run.stop_reason}." if run.stop_reason else "Not finished: the same command resumes it."

    def environment(self) -> Iterator[tuple[str, str]]:
        """Yields pairs of name and value."""
        machine = self.evidence.run.machine
        yield "gpu", machine.gpu or "none: measured on this CPU"
        yield from fields_of(machine, "run/machine", "arch", "driver", "host")
        yield from settings(machine.versions, "run/machine/versions")
        yield from fields_of(self.evidence.run, "run", "options")


def page(evidence: AgentEvidence) -> str:
    """Returns the report as one HTML page, which also has every finding and every step."""
    report, impact = report_of(evidence), impact_of(evidence.effect)
    tiles = [(impact.latency_change.centre, "latency of the user's command"), (kept_of(evidence), "")]
    tiles += [(ms, f"latency, {when}") for ms, when in zip(impact.latency, ("start", "end"), strict=True)]
    sections = [markup.section(each.heading, _shown(each)) for each in report.sections]
    return framed(
        AgentWords(evidence, report), tiles, sections,
        markup.section("Findings", _findings(evidence)),
        markup.section("Steps", _steps(evidence)),
        markup.section("The patch", markup.diff(evidence.patch)) if evidence.patch.strip() else None,
    )  # fmt: skip


def _shown(section: ReportSection) -> Iterator[Child]:
    if section.points:
        numbered = section.points[0].mark == "1. "
        yield tag("ol" if numbered else "ul", [tag("li", _item(point)) for point in section.points])
    if section.rows:
        yield markup.table(section.header, section.rows)
    yield from (tag("p", line) for line in section.lines)
    if section.diff.strip():
        yield markup.diff(section.diff)


def _item(point: ReportPoint) -> Iterator[Child]:
    yield {"- [x] ": "☑ ", "- [ ] ": "☐ "}.get(point.mark)
    if point.title:
        yield tag("strong", point.title, ": " if point.text else None)
    yield tag("span", point.text)
    if point.lines:
        yield markup.bullets(point.lines)


def _findings(evidence: AgentEvidence) -> Markup:
    rows = [
        (finding.level, tag("span", finding.text, id=finding.id), finding.item or f"dismissed: {finding.dismissed}",
         finding.evidence)
        for finding in evidence.parts.findings
    ]  # fmt: skip
    return markup.table(["level", "finding", "what became of it", "evidence"], rows) if rows else tag("p", "None.")


def _steps(evidence: AgentEvidence) -> Markup:
    """Shows the steps of each change, with the measurements that they cite."""
    rows = [(step.change, step.name, step.state, step.reason, step.evidence) for step in evidence.parts.steps]
    return markup.table(["change", "step", "state", "reason", "evidence"], rows) if rows else tag("p", "None yet.")
