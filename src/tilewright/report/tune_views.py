"""The report of a run of `tune` as Markdown and as one HTML page, with candidates, races and roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.records import Candidate
from tilewright.report import charts
from tilewright.report import markdown as md
from tilewright.report.cells import NOTHING, both_lights, faster, interval_us, light, number, time_us
from tilewright.report.evidence import settings
from tilewright.report.markup import Child, breakable, bullets, folded, scroll, section, settings_table, table, tag
from tilewright.report.page import framed, two_step_sections
from tilewright.report.sourced import Sourced, key
from tilewright.report.tune_evidence import TunedWorkload, TuneEvidence, knobs
from tilewright.report.words import WORKLOADS_AT, TuneWords


def page(report: TuneEvidence) -> str:
    """Returns the page of a run of `tune`."""
    words = TuneWords(report)
    summary = ([*cells, breakable(best)] for *cells, best in _summary(report))
    roofs = charts.roofline(report.run, report.changes, ("shipped", "best"))
    candidates = [workload.candidates for workload in report.workloads]
    tiles = [
        (faster(report.speedup), f"{words.p}speed-up over the shipped, geometric mean"),
        (Sourced(len(report.workloads), WORKLOADS_AT), "workloads"),
        (Sourced(sum(map(len, candidates)), *(f"{each.at}/candidates" for each in report.workloads)), "candidates"),
    ]
    return framed(
        words,
        tiles,
        two_step_sections(report),
        section("Workloads", table(_summary_header(words), summary, numbers=range(2, 6))),
        section(f"Roofline{', at predicted times' if words.predicted else ''}", scroll(roofs)) if roofs else None,
        [section(f"Workload {workload.name}", _workload(workload, words)) for workload in report.workloads],
    )


def markdown(report: TuneEvidence) -> str:
    """Returns the Markdown of a run of `tune`."""
    words = TuneWords(report)
    parts = [*md.two_step_sections(report)]
    parts += [*md.section("Workloads", md.table(_summary_header(words), _summary(report)))]
    for workload in report.workloads:
        rows = (
            [name, ", ".join([candidate.status, *roles]), *cells] for candidate, name, roles, cells in _rows(workload)
        )
        parts += md.section(
            f"Workload {md.text(workload.name)}", md.listed(_reasons(workload)), md.table(_header(words), rows)
        )
    return md.framed(words, *parts)


# Parts that Markdown and page share


def _summary_header(words: TuneWords) -> list[str]:
    times = [f"{words.p}shipped, µs", f"{words.p}best, µs", f"{words.p}speed-up", f"{words.p}speed of light"]
    return ["", "workload", *times, "bound", "best configuration"]


def _summary(report: TuneEvidence) -> Iterator[list[str]]:
    for n, workload in enumerate(report.workloads, 1):
        change, best = workload.change, workload.result.best
        yield [
            Sourced(n, workload.at), workload.name, *(time_us(*side) for side in change.sides),
            faster(change.speedup), both_lights(change), workload.result.bound.kind,
            str(best.configuration) if best else "none works",
        ]  # fmt: skip


def _reasons(workload: TunedWorkload) -> Iterator[str]:
    """Yields the dimensions, the bound, the best configuration with its reason, and the noise of the race."""
    result = workload.result
    dims, at = result.workload.dims, f"{workload.at}/workload/dims"
    text = ", ".join(f"{name}={value}" for name, value in dims.items())
    yield Sourced(f"Dimensions: {text}.", *(f"{at}/{key(name)}" for name in dims))
    if result.searched and not result.searched.complete:
        yield f"Search: {result.searched}."
    yield f"Bound: {result.bound.why}."
    best = result.best.configuration if result.best else None
    yield f"Best: {best or 'none'}; {result.reason}."
    yield f"Shipped today: {result.shipped}."
    if tied := [str(configuration) for configuration in result.tied if configuration != best]:
        yield f"Tied with the best: {'; '.join(tied)}."
    noise = (result.race or {}).get("noise")
    if isinstance(noise, dict):
        yield f"A/A noise: {noise.get('why')}."


def _header(words: TuneWords) -> list[str]:
    times = ["predicted, µs"] if words.predicted else ["predicted, µs", "measured, µs", "95 %"]
    return ["configuration", "status", *times, f"{words.p}speed of light", "registers", "spills", "reason"]


def _rows(workload: TunedWorkload) -> Iterator[tuple[Candidate, str, list[str], list[str]]]:
    """Yields the rows of candidates: the candidate, its name, its roles (best, shipped today), and the other cells."""
    for candidate in workload.candidates:
        named = knobs(candidate.configuration, workload.varying) or "the only one"
        name = Sourced(named, f"{workload.at_of(candidate)}/configuration")
        shipped = candidate.configuration == workload.result.shipped
        roles = ["best"] * workload.is_best(candidate) + ["shipped today"] * shipped
        yield candidate, name, roles, _cells(candidate, workload)


def _cells(candidate: Candidate, workload: TunedWorkload) -> list[str]:
    """Returns the cells after the status. Predicted and measured times have separate columns."""
    code, metrics, at = candidate.code, workload.metrics(candidate), workload.at_of(candidate)
    predicted = Sourced(number(candidate.predicted.us), f"{at}/predicted/us") if candidate.predicted else NOTHING
    measured = [time_us(metrics, at), interval_us(metrics, at)] if workload.measured else []
    registers = spills = NOTHING
    if code:
        registers = Sourced(code.registers, f"{at}/code/registers")
    if code and not code.unread:
        spills = Sourced(f"{code.local_stores}/{code.local_loads}", f"{at}/code/local_stores", f"{at}/code/local_loads")
    return [predicted, *measured, light(metrics, at, f"{workload.at}/bound"), registers, spills, candidate.reason]


# The page


def _workload(workload: TunedWorkload, words: TuneWords) -> Iterator[Child]:
    yield bullets(map(breakable, _reasons(workload)))
    picture = charts.race(workload)
    if picture is not None:
        yield tag("h3", "The race")
        yield scroll(picture)
    yield tag("h3", "Candidates")
    shipped = workload.result.shipped
    if same := knobs(shipped, [knob for knob in shipped if knob not in workload.varying]):
        every = breakable(Sourced(same, f"{workload.at}/shipped"))
        yield tag("p", "For all: ", every, ". Spills are local stores/loads.", class_="soft")
    header = _header(words)[:-1]
    yield table(header, _shown(workload), numbers=range(2, len(header)))
    if workload.result.race:
        race = settings(workload.result.race, f"{workload.at}/race", "race")
        yield folded("how it was measured", settings_table(race))


def _shown(workload: TunedWorkload) -> Iterator[Sequence[Child]]:
    """Yields the rows of the table. The reason is below the name, because a separate column would be too narrow."""
    for candidate, name, roles, (*cells, reason) in _rows(workload):
        kind = {"raced": "keep", "failed": "crash", "wrong": "crash"}.get(candidate.status, "revert")
        badges = [tag("span", candidate.status, class_=f"badge {kind}"), " "]
        badges += [part for role in roles for part in (tag("span", role, class_="badge keep"), " ")]
        yield [tag("strong", breakable(name)), tag("div", reason, class_="soft")], badges, *cells
