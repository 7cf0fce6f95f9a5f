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
        (str(sum(len(one.candidates) for one in report.workloads)), "candidates"),
    ]
    return document(
        f"{words.title}: {words.outcome}",
        heading(words.title, words.subtitle, words.outcome, words.notes(), tiles, measured=report.run.measured),
        section("Workloads", table(_summary_header(words), _summary(report), numbers=range(2, 6))),
        section(f"Roofline{'' if report.run.measured else ', at predicted times'}", scroll(roofs)) if roofs else None,
        [section(f"Workload {one.workload}", _workload(one, words)) for one in report.workloads],
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
    for one in report.workloads:
        reasons = "\n".join(f"- {text(line)}" for line in _reasons(one))
        parts += markdown_section(f"Workload {text(one.workload)}", reasons, _candidates_in_markdown(one, words))
    parts += markdown_section("Environment", markdown_table(["", "value"], settings(environment(report))))
    parts += markdown_section("Reproduce", fenced(words.command, "sh"))
    return "\n\n".join(part for part in parts if part) + "\n"


# What both show


def _summary_header(words: TuneWords) -> list[str]:
    times = [f"{words.p}shipped, µs", f"{words.p}best, µs", f"{words.p}speed-up", f"{words.p}speed of light"]
    return ["", "workload", *times, "bound", "best configuration"]


def _summary(report: TuneEvidence) -> Iterator[list[str]]:
    for n, one in enumerate(report.workloads, 1):
        change, best = one.change, one.result.best
        yield [
            str(n),
            one.workload,
            number(time_us(change.before)),
            number(time_us(change.after)),
            faster(change.speedup),
            f"{light(change.before)} → {light(change.after)}",
            one.result.bound.kind,
            str(best.configuration) if best else "none works",
        ]


def _reasons(one: TunedWorkload) -> Iterator[str]:
    """Why the best is the best, and what the reader must know of the race."""
    result = one.result
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


def _cells(candidate: Candidate, one: TunedWorkload) -> list[str]:
    """One row without configuration and status; predicted and measured times never share a column."""
    code = candidate.code
    metrics = Metrics(
        workload=one.workload,
        measured=candidate.measured,
        predicted=None if one.measured else candidate.predicted,
        bound=one.result.bound,
    )
    measured = [number(candidate.measured.us if candidate.measured else None), interval_us(metrics)]
    return [
        number(candidate.predicted.us if candidate.predicted else None),
        *(measured if one.measured else []),
        light(metrics),
        str(code.registers) if code else NOTHING,
        f"{code.local_stores}/{code.local_loads}" if code else NOTHING,
        candidate.reason,
    ]


def _roles(candidate: Candidate, one: TunedWorkload) -> list[str]:
    shipped = candidate.configuration == one.result.shipped
    return ["best"] * one.is_best(candidate) + ["shipped today"] * shipped


def _same_knobs(one: TunedWorkload) -> str:
    """The knobs that are the same for all candidates."""
    first = one.result.shipped
    return knobs(first, [knob for knob in first if knob not in one.varying])


def _candidates_in_markdown(one: TunedWorkload, words: TuneWords) -> str:
    rows = [
        [
            knobs(candidate.configuration, one.varying) or "the only one",
            ", ".join([candidate.status, *_roles(candidate, one)]),
            *_cells(candidate, one),
        ]
        for candidate in one.candidates
    ]
    return markdown_table(_header(words), rows)


# The page


def _workload(one: TunedWorkload, words: TuneWords) -> Iterator[Child]:
    yield bullets(_reasons(one))
    picture = charts.race(one)
    if picture is not None:
        yield tag("h3", "The race")
        yield scroll(picture)
    yield tag("h3", "Candidates")
    if same := _same_knobs(one):
        yield tag("p", f"For all: {same}. Spills are local stores/loads.", class_="soft")
    header = _header(words)[:-1]
    yield table(header, _rows(one), numbers=range(2, len(header)))
    if one.result.race:
        yield folded("how it was measured", settings_table(settings({"race": to_json(one.result.race)})))


def _rows(one: TunedWorkload) -> Iterator[Sequence[Child]]:
    """The reason is below the name: a column of its own would be too narrow."""
    for candidate in one.candidates:
        *cells, reason = _cells(candidate, one)
        name = tag("strong", knobs(candidate.configuration, one.varying) or "the only one")
        roles = [tag("span", role, class_="badge keep") for role in _roles(candidate, one)]
        yield [name, tag("div", reason, class_="soft")], _joined([_status(candidate), *roles]), *cells


def _status(candidate: Candidate) -> Markup:
    kind = {"raced": "keep", "failed": "crash", "wrong": "crash"}.get(candidate.status, "revert")
    return tag("span", candidate.status, class_=f"badge {kind}")


def _joined(badges: Sequence[Markup]) -> Child:
    return [part for badge in badges for part in (badge, " ")]
