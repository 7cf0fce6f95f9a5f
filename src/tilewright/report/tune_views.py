"""The report of a run of `tune`, as Markdown and as one HTML page: candidates, races and roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ledger.codec import to_json
from tilewright.ledger.records import Metrics
from tilewright.records import Candidate
from tilewright.report import charts
from tilewright.report.evidence import TunedWorkload, TuneEvidence, knobs, settings, time_us
from tilewright.report.markdown import fenced, text
from tilewright.report.markdown import section as markdown_section
from tilewright.report.markdown import table as markdown_table
from tilewright.report.markup import (
    Child,
    Markup,
    bullets,
    document,
    folded,
    heading,
    scroll,
    section,
    settings_table,
    table,
    tag,
)
from tilewright.report.words import NOTHING, TuneWords, environment, faster, interval_us, light, number

NAMES = ("shipped", "best")


def page(report: TuneEvidence) -> str:
    """The whole page, from its doctype."""
    words = TuneWords(report)
    roofs = charts.roofline(report.run, report.changes, NAMES)
    tiles = [
        (faster(report.speedup), f"{words.p}speed-up over the shipped, geometric mean"),
        (str(len(report.workloads)), "workloads"),
        (str(sum(len(workload.candidates) for workload in report.workloads)), "candidates"),
    ]
    return document(
        f"{words.title}: {words.outcome}",
        heading(words.title, words.subtitle, words.outcome, words.notes(), tiles, measured=report.run.measured),
        section("Workloads", table(_summary_header(words), _summary(report), numbers=range(2, 6))),
        section(f"Roofline{'' if report.run.measured else ', at predicted times'}", scroll(roofs)) if roofs else None,
        [section(f"Workload {workload.name}", _workload(workload, words)) for workload in report.workloads],
        section("Environment", settings_table(settings(environment(report)))),
        section("Reproduce", tag("pre", words.command, tabindex=0)),
    )


def markdown(report: TuneEvidence) -> str:
    """The whole report, headings from level 1."""
    words = TuneWords(report)
    parts = [
        f"# {text(words.title)}",
        text(words.subtitle),
        f"**{text(words.outcome)}**",
        "\n".join(f"- {text(note)}" for note in words.notes()),
        *markdown_section("Workloads", markdown_table(_summary_header(words), _summary(report))),
    ]
    for workload in report.workloads:
        reasons = "\n".join(f"- {text(line)}" for line in _reasons(workload))
        parts += markdown_section(f"Workload {text(workload.name)}", reasons, _candidates_in_markdown(workload, words))
    parts += markdown_section("Environment", markdown_table(["", "value"], settings(environment(report))))
    parts += markdown_section("Reproduce", fenced(words.command, "sh"))
    return "\n\n".join(part for part in parts if part) + "\n"


# What both show


def _summary_header(words: TuneWords) -> list[str]:
    times = [f"{words.p}shipped, µs", f"{words.p}best, µs", f"{words.p}speed-up", f"{words.p}speed of light"]
    return ["", "workload", *times, "bound", "best configuration"]


def _summary(report: TuneEvidence) -> Iterator[list[str]]:
    for n, workload in enumerate(report.workloads, 1):
        change, best = workload.change, workload.result.best
        yield [
            str(n),
            workload.name,
            number(time_us(change.before)),
            number(time_us(change.after)),
            faster(change.speedup),
            f"{light(change.before)} → {light(change.after)}",
            workload.result.bound.kind,
            str(best.configuration) if best else "none works",
        ]


def _reasons(workload: TunedWorkload) -> Iterator[str]:
    """Why the best is the best, and what the reader must know of the race."""
    result = workload.result
    dims = ", ".join(f"{name}={value}" for name, value in result.workload.dims.items())
    yield f"Dimensions: {dims}."
    yield f"Bound: {result.bound.why}."
    yield f"Best: {result.best.configuration if result.best else 'none'}; {result.reason}."
    yield f"Shipped today: {result.shipped}."
    tied = [
        str(configuration)
        for configuration in result.tied
        if not result.best or configuration != result.best.configuration
    ]
    if tied:
        yield f"Tied with the best: {'; '.join(tied)}."
    noise = (result.race or {}).get("noise")
    if isinstance(noise, dict):
        yield f"A/A noise: {noise.get('why')}."


def _header(words: TuneWords) -> list[str]:
    measured = ["measured, µs", "95 %"] if not words.p else []
    return [
        "configuration",
        "status",
        "predicted, µs",
        *measured,
        f"{words.p}speed of light",
        "registers",
        "spills",
        "reason",
    ]


def _cells(candidate: Candidate, workload: TunedWorkload) -> list[str]:
    """One row without configuration and status; predicted and measured times never share a column."""
    code = candidate.code
    metrics = Metrics(
        workload=workload.name,
        measured=candidate.measured,
        predicted=None if workload.measured else candidate.predicted,
        bound=workload.result.bound,
    )
    measured = [number(candidate.measured.us if candidate.measured else None), interval_us(metrics)]
    return [
        number(candidate.predicted.us if candidate.predicted else None),
        *(measured if workload.measured else []),
        light(metrics),
        str(code.registers) if code else NOTHING,
        f"{code.local_stores}/{code.local_loads}" if code else NOTHING,
        candidate.reason,
    ]


def _roles(candidate: Candidate, workload: TunedWorkload) -> list[str]:
    shipped = candidate.configuration == workload.result.shipped
    return ["best"] * workload.is_best(candidate) + ["shipped today"] * shipped


def _same_knobs(workload: TunedWorkload) -> str:
    """The knobs that are the same for all candidates."""
    first = workload.result.shipped
    return knobs(first, [knob for knob in first if knob not in workload.varying])


def _candidates_in_markdown(workload: TunedWorkload, words: TuneWords) -> str:
    rows = [
        [
            knobs(candidate.configuration, workload.varying) or "the only one",
            ", ".join([candidate.status, *_roles(candidate, workload)]),
            *_cells(candidate, workload),
        ]
        for candidate in workload.candidates
    ]
    return markdown_table(_header(words), rows)


# The page


def _workload(workload: TunedWorkload, words: TuneWords) -> Iterator[Child]:
    yield bullets(_reasons(workload))
    picture = charts.race(workload)
    if picture is not None:
        yield tag("h3", "The race")
        yield scroll(picture)
    yield tag("h3", "Candidates")
    if same := _same_knobs(workload):
        yield tag("p", f"For all: {same}. Spills are local stores/loads.", class_="soft")
    header = _header(words)[:-1]
    yield table(header, _rows(workload), numbers=range(2, len(header)))
    if workload.result.race:
        yield folded("how it was measured", settings_table(settings({"race": to_json(workload.result.race)})))


def _rows(workload: TunedWorkload) -> Iterator[Sequence[Child]]:
    """The reason is below the name: a column of its own would be too narrow."""
    for candidate in workload.candidates:
        *cells, reason = _cells(candidate, workload)
        name = tag("strong", knobs(candidate.configuration, workload.varying) or "the only one")
        roles = [tag("span", role, class_="badge keep") for role in _roles(candidate, workload)]
        yield [name, tag("div", reason, class_="soft")], _joined([_status(candidate), *roles]), *cells


def _status(candidate: Candidate) -> Markup:
    kind = {"raced": "keep", "failed": "crash", "wrong": "crash"}.get(candidate.status, "revert")
    return tag("span", candidate.status, class_=f"badge {kind}")


def _joined(badges: Sequence[Markup]) -> Child:
    return [part for badge in badges for part in (badge, " ")]
