"""A profile as text for people: the analysis report, the profiling report, and one HTML page.

The analysis report has four sections. The profiling report has the tables. `for_agent` is a short form for autopilot
(`coordinate.analysis`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from tilewright.coordinate.analysis import Analysis, Recommendation
from tilewright.errors import RequestError
from tilewright.profile.figures import Figure, GpuProfile, NameRow, Profile, ProfileFinding, percent
from tilewright.profile.kinds import LAUNCH
from tilewright.report.cells import NOTHING, number
from tilewright.report.markdown import fenced, listed, section, table, text
from tilewright.report.markup import Child, Markup, bullets, folded, scroll, settings_table, tag
from tilewright.report.markup import section as page_section
from tilewright.report.markup import table as page_table
from tilewright.report.page import framed
from tilewright.report.profile_charts import KEY, split_bar, timeline
from tilewright.report.sourced import NOT_MEASURED

TOP = 15
"""The most rows in the table of kernels."""
CALLS = 10
SPLIT = ("compute", "exposed communication", "exposed copy", "idle")


def shown(figure: Figure) -> str:
    """Formats a number with its unit."""
    if figure.value is None:
        return NOT_MEASURED
    if figure.unit == "share":
        return percent(figure.value)
    return f"{number(figure.value)} {figure.unit}".rstrip() if figure.unit else f"{figure.value:,.12g}"


def outcome(profile: Profile) -> str:
    """Returns the most important finding in one sentence."""
    worst = profile.bottleneck
    return f"Primary bottleneck: {worst.kind}: {worst.text}" if worst else "Primary bottleneck: none"


def evidence(profile: Profile) -> str:
    worst = profile.bottleneck
    return _evidence(worst) if worst else "no number is beyond its limit"


def _evidence(finding: ProfileFinding) -> str:
    return "; ".join(_cited(figure) for figure in finding.evidence) + f"; {finding.threshold}"


def _cited(figure: Figure) -> str:
    lines = f" ({', '.join(figure.lines)})" if figure.lines else ""
    return f"{figure.name} {shown(figure)}{lines}"


def rung(profile: Profile) -> str:
    step = profile.rung
    return f"{step.name}, which sees {step.sees} and costs {step.costs}; {profile.why_not_higher}"


def recommendation(finding: ProfileFinding) -> str:
    return f"[{finding.level}] {finding.advice} ({finding.tag}; {finding.specialist}; finding {finding.id})"


def workload(profile: Profile) -> str:
    return " ".join(profile.command) or "not known: the trace does not name the program"


def iterations(profile: Profile) -> str:
    steps = [f"{trace.steps} in {trace.file}" for trace in profile.traces if trace.steps]
    marked = ", ".join(steps) or "not marked: the program calls no step of the profiler"
    return f"{marked}{_step_times(profile.steps_us)}"


def _step_times(us: Sequence[float]) -> str:
    """Describes the times of the steps that ran without the profiler. Returns "" if there are no such steps."""
    if not us:
        return ""
    ms = [each / 1e3 for each in us]
    spread = f"mean {number(fmean(ms))}, std {number(pstdev(ms))}, min {number(min(ms))}, max {number(max(ms))}"
    return f"; {len(ms)} steps without the profiler, by events: median {number(median(ms))} ms ({spread})"


# Markdown -----------------------------------------------------------------------------------------


def analysis(profile: Profile) -> str:
    """Returns the analysis report."""
    advice = [f"{n}. {_unbracketed(recommendation(finding))}" for n, finding in enumerate(profile.findings, 1)]
    parts = [
        f"# Analysis of {text(workload(profile) if profile.command else ', '.join(t.file for t in profile.traces))}",
        *section("Summary", text(outcome(profile)), text(f"Evidence: {evidence(profile)}"),
                 text(f"Measured by: {rung(profile)}.")),
        *section("Metrics", table(["GPU", "metric", "value", "how", "lines"], _metrics(profile))),
        *section("Findings", listed(_finding_lines(profile.findings)) or "None."),
        *section("Recommendations", "\n".join(advice) or "None."),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def for_agent(profile: Profile) -> str:
    """Returns bottleneck, evidence and recommendations in the form that autopilot reads.

    Raises RequestError if nothing was found.
    """
    worst = profile.bottleneck
    if worst is None:
        raise RequestError("the profile has no finding, so there is nothing that autopilot could do")
    lines = [_printable(recommendation(finding).partition("] ")[2]) for finding in profile.findings]
    items = (
        Recommendation(n, finding.level, line)
        for n, (finding, line) in enumerate(zip(profile.findings, lines, strict=True), 1)
    )
    return str(Analysis(_printable(f"{worst.kind}: {worst.text}"), _printable(_evidence(worst)), tuple(items)))


def _printable(line: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(line.split()))


def profiling(profile: Profile) -> str:
    """Returns the profiling report, with the quoted lines of the trace behind its numbers."""
    facts = [f"{trace.file}: {trace.events} events, hash {trace.digest}" for trace in profile.traces]
    parts = [
        "# Profiling report",
        *section("Workload", text(workload(profile))),
        *section("Trace", listed(facts), text(f"Measured by: {rung(profile)}.")),
        *section("Iterations", text(iterations(profile))),
        *section("Top Kernels", *(_kernels(gpu) for gpu in profile.gpus)),
        *section("CUDA API", *(_calls(trace.file, trace.calls) for trace in profile.traces)),
        *section("Bottleneck", text(outcome(profile)), text(f"Evidence: {evidence(profile)}"), _split(profile)),
        *section("Recommendations", listed(map(recommendation, profile.findings)) or "None."),
        *section("Trace Files", fenced("\n".join(f"{raw.source}  {raw.text}" for raw in profile.raw))),
    ]
    return "\n\n".join(parts) + "\n"


def _unbracketed(line: str) -> str:
    """Escapes a recommendation, except its level in brackets. Programs that read the report search for the level."""
    level, _, rest = line.partition("] ")
    return f"{level}] {text(rest)}"


def _metrics(profile: Profile) -> Iterator[Sequence[str]]:
    for gpu in profile.gpus:
        for figure in gpu.figures.values():
            yield gpu.label, figure.name, shown(figure), figure.how, ", ".join(figure.lines)
    for trace in profile.traces:
        for figure in trace.counters:
            yield trace.file, figure.name, shown(figure), figure.how, ", ".join(figure.lines)


def _finding_lines(findings: Iterable[ProfileFinding]) -> Iterator[str]:
    for finding in findings:
        places = f"; in the source: {', '.join(finding.places)}" if finding.places else ""
        yield f"{finding.id} ({finding.level}): {finding.text}; {_evidence(finding)}{places}"


KERNELS = ["#", "kernel", "instances", "total ms", "avg µs", "median µs", "min µs", "max µs", "%", "line"]
API = ["call", "calls", "total ms", "avg µs", "median µs", "%", "line"]


def kernel_rows(rows: Sequence[NameRow], most: int = TOP) -> list[list[str]]:
    """Returns the cells of the table of kernels."""
    return [
        [
            str(n), row.name, str(row.count), number(row.total_us / 1e3), number(row.mean_us), number(row.median_us),
            number(row.min_us), number(row.max_us), f"{row.share:.1%}".removesuffix("%"), ", ".join(row.lines),
        ]
        for n, row in enumerate(rows[:most], 1)
    ]  # fmt: skip


def call_rows(rows: Sequence[NameRow]) -> list[list[str]]:
    """Returns the cells of the table of calls: the longest calls, and all calls that launch kernels."""
    chosen = [row for n, row in enumerate(rows) if n < CALLS or LAUNCH.match(row.name)]
    return [
        [
            row.name, str(row.count), number(row.total_us / 1e3), number(row.mean_us), number(row.median_us),
            f"{row.share:.1%}".removesuffix("%"), ", ".join(row.lines),
        ]
        for row in chosen
    ]  # fmt: skip


def split_rows(profile: Profile) -> list[list[str]]:
    """Returns a row for each GPU: its time, the parts of its time, and the late host's share of its idle time."""
    names = ("time", *SPLIT, "host late of idle")
    return [[gpu.label, *(shown(gpu.figures[name]) for name in names)] for gpu in profile.gpus]


SPLIT_HEADER = ["GPU", "time", *SPLIT, "of idle: host late"]


def _split(profile: Profile) -> str:
    return table(SPLIT_HEADER, split_rows(profile))


def _kernels(gpu: GpuProfile) -> str:
    more = len(gpu.kernels) - TOP
    rest = f"\n\n{more} more names." if more > 0 else ""
    return f"{text(_named(gpu))}\n\n{table(KERNELS, kernel_rows(gpu.kernels))}{rest}"


def _named(gpu: GpuProfile) -> str:
    return f"{gpu.label}{f', {gpu.board}' if gpu.board else ''}"


def _calls(file: str, rows: Sequence[NameRow]) -> str:
    if not rows:
        return text(f"{file}: {NOT_MEASURED}; the trace has no calls of the host")
    return f"{text(file)}\n\n{table(API, call_rows(rows))}"


# The page -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProfileWords:
    """The texts at the top and at the end of the page."""

    profile: Profile
    predicted: bool = False
    command_name: str = "Reproduce"

    @property
    def title(self) -> str:
        names = self.profile.command or [trace.file for trace in self.profile.traces]
        return f"Profile of {' '.join(names)}"

    @property
    def subtitle(self) -> str:
        return f"measured by {rung(self.profile)}"

    @property
    def outcome(self) -> str:
        return outcome(self.profile)

    @property
    def command(self) -> str:
        words = ["--", *self.profile.command] if self.profile.command else [t.file for t in self.profile.traces]
        return f"tilewright profile {' '.join(words)}"

    def notes(self) -> Iterator[str]:
        """Yields the limits of the result."""
        if self.profile.bottleneck:
            yield f"Evidence: {evidence(self.profile)}."
        for trace in self.profile.traces:
            if not trace.calls:
                yield f"{trace.file} has no calls of the host: why the GPU was idle is {NOT_MEASURED}."

    def environment(self) -> tuple[tuple[str, str], ...]:
        """Returns pairs of name and value."""
        boards = [(gpu.label, gpu.board or "not named") for gpu in self.profile.gpus]
        traces = [(t.file, f"{t.events} events, hash {t.digest}") for t in self.profile.traces]
        return (*boards, *traces, ("iterations", iterations(self.profile)))


def page(profile: Profile) -> str:
    """Returns the HTML page: split and time line of each GPU, findings, kernels, calls and the quoted lines."""
    first = profile.gpus[0]
    tiles = [(shown(first.figures[name]), f"{name}, {first.label}") for name in ("time", *SPLIT)]
    return framed(
        ProfileWords(profile),
        tiles,
        page_section("Where the time goes", (_picture(gpu) for gpu in profile.gpus)),
        page_section("Findings", _findings(profile)),
        page_section("Kernels", ((tag("h3", _named(gpu)), _page_kernels(gpu)) for gpu in profile.gpus)),
        page_section("Calls of the host", (_page_calls(t.file, t.calls) for t in profile.traces if t.calls)),
        page_section("Numbers and their lines", (_numbers(gpu) for gpu in profile.gpus), _raw(profile)),
    )


def _picture(gpu: GpuProfile) -> Iterator[Child]:
    yield tag("h3", _named(gpu))
    yield scroll(split_bar(gpu))
    yield tag("h3", f"Time line of {gpu.timeline.name}")
    yield scroll(timeline(gpu.timeline))
    yield KEY


def _findings(profile: Profile) -> Markup:
    header = ["level", "finding", "evidence", "what to do", "who"]
    rows = [
        (finding.level, tag("span", finding.text, id=finding.id), _evidence(finding), finding.advice,
         tag("span", finding.specialist, class_="nowrap"))
        for finding in profile.findings
    ]  # fmt: skip
    return page_table(header, rows) if rows else tag("p", "No number is beyond its limit.")


def _page_kernels(gpu: GpuProfile) -> Markup:
    return page_table(KERNELS, kernel_rows(gpu.kernels), numbers=range(2, 9))


def _page_calls(file: str, rows: Sequence[NameRow]) -> Iterator[Child]:
    yield tag("h3", file)
    yield page_table(API, call_rows(rows), numbers=range(1, 6))


def _numbers(gpu: GpuProfile) -> Iterator[Child]:
    yield tag("h3", _named(gpu))
    yield page_table(
        ["number", "value", "how", "lines"],
        [(f.name, shown(f), f.how, ", ".join(f.lines) or NOTHING) for f in gpu.figures.values()],
        numbers=(1,),
    )
    gaps = (f"{number(g.us)} µs, {g.cause}: {g.before} → {g.after} ({', '.join(g.lines)})" for g in gpu.gaps)
    yield folded("the longest gaps", bullets(gaps))


def _raw(profile: Profile) -> Markup:
    return folded("quoted lines of the trace", settings_table((raw.source, raw.text) for raw in profile.raw))
