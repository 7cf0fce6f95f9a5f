"""The report of a run of `optimize` as one HTML page that needs nothing else: no script, no font, no picture.

What is long is folded; without folding the page still reads from top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ledger.records import Iteration
from tilewright.report.charts import latencies, roofline
from tilewright.report.evidence import OptimizeEvidence, settings
from tilewright.report.markup import (
    Child,
    Markup,
    bullets,
    diff,
    document,
    folded,
    heading,
    scroll,
    section,
    settings_table,
    table,
    tag,
)
from tilewright.report.mix import in_order, mix, mix_classes, mixes
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


def page(report: OptimizeEvidence) -> str:
    """The whole page, from its doctype."""
    words, measured = Words(report), report.run.measured
    return document(
        f"{words.title}: {words.outcome}",
        heading(words.title, words.subtitle, words.outcome, words.notes(), _tiles(report, words), measured=measured),
        _latencies(report, words),
        section("Workloads", _workloads(report, words)),
        _before_and_after(report, words),
        section("Iterations", _iterations(report, words)),
        section("The patch", diff(report.patch) if report.patch.strip() else tag("p", "Empty.")),
        section("What was ruled out", bullets(report.ruled_out)) if report.ruled_out else None,
        section("Environment", settings_table(settings(environment(report)))),
        section(words.command_name, tag("pre", words.command)),
    )


def _tiles(report: OptimizeEvidence, words: Words) -> list[tuple[str, str]]:
    return [
        (faster(report.speedup), f"{words.p}speed-up, geometric mean"),
        (number(report.before_ms), f"{words.p}ms before"),
        (number(report.after_ms), f"{words.p}ms after"),
        (f"{len(report.kept)} of {len(report.tried)}", "iterations kept"),
    ]


def _latencies(report: OptimizeEvidence, words: Words) -> Markup | None:
    chart = latencies(report)
    title = "Predicted latency of each iteration" if words.predicted else "Latency of each iteration"
    text = "Geometric mean over the workloads. A name is the playbook's entry of a kept change."
    if not words.predicted:
        text += " Bars are 95 % intervals."
    return section(title, tag("p", text, class_="soft"), scroll(chart)) if chart else None


def _workloads(report: OptimizeEvidence, words: Words) -> Markup:
    header, rows = workload_cells(report, words)
    shown: list[list[Child]] = []
    for n, (row, one) in enumerate(zip(rows, report.workloads, strict=True), 1):
        bound = one.before.bound
        shown.append([n, *row[:-1], tag("span", row[-1], title=bound.why if bound else None)])
    return table(["", *header], shown, numbers=range(2, len(header)))


def _before_and_after(report: OptimizeEvidence, words: Words) -> Markup | None:
    roofs, bars = roofline(report.run, report.workloads), mix(report)
    sides = []
    if roofs:
        sides.append(
            tag("div", tag("h3", f"Roofline{', at predicted times' if words.predicted else ''}"), scroll(roofs))
        )
    if bars:
        sides.append(tag("div", tag("h3", "Instruction mix"), scroll(bars), _mix_key(report), _mix_counts(report)))
    return section("Before and after", tag("div", sides, class_="pair")) if sides else None


def _mix_key(report: OptimizeEvidence) -> Markup:
    names = enumerate(mix_classes(report))
    return tag(
        "ul",
        [
            tag("li", tag("svg", tag("rect", class_=f"mix{n}", width=12, height=12), viewBox="0 0 12 12"), name)
            for n, name in names
        ],
        class_="key",
    )


def _mix_counts(report: OptimizeEvidence) -> Markup:
    tables = []
    for before, after, workloads in mixes(report):
        rows = [(kind, before.get(kind, 0), after.get(kind, 0)) for kind in in_order(before, after)]
        names = ", ".join(report.workloads[n].workload for n in workloads)
        tables.append(table([names, "before", "after"], rows, numbers=(1, 2)))
    return folded("instructions by class (each once, whatever loop it stands in)", tables)


# Iterations -----------------------------------------------------------------------------------------------


def _iterations(report: OptimizeEvidence, words: Words) -> Markup:
    gain = [] if words.predicted else ["gain"]
    names = ["", "optimization", f"{words.p}ms", *gain, "correctness", "status", "reason"]
    header = tag("tr", [tag("th", name) for name in names])
    rows = [row for one in report.iterations for row in (_row(one, words), _more(one))]
    return scroll(tag("table", tag("thead", header), tag("tbody", rows), class_="iterations"))


def _row(one: Iteration, words: Words) -> Markup:
    time = NOTHING if one.status == "crash" else number(words.time(one))
    within = f" ({between(one.interval_ms)})" if one.interval_ms and time != NOTHING else ""
    lossy = tag("span", "lossy", class_="badge lossy") if one.risk == "lossy" else None
    gain = tag("td", faster(one.gain if one.n else None), class_="nowrap", data_label="gain")
    return tag(
        "tr",
        tag("td", one.n, class_="number"),
        tag("td", tag("strong", one.optimization), " ", lossy, tag("div", place(one), class_="soft")),
        tag("td", time, tag("span", within, class_="soft"), data_label=f"{words.p}ms"),
        None if words.predicted else gain,
        tag("td", one.correctness, data_label="correctness"),
        tag("td", tag("span", one.status, class_=f"badge {one.status}")),
        tag("td", one.reason),
        class_="head",
        id=f"iteration-{one.n}",
    )


def _more(one: Iteration) -> Markup:
    content = [part for part in _evidence(one) if part]
    more = folded(_summary(one), content) if content else None
    return tag("tr", tag("td"), tag("td", more, colspan=6), class_="more")


def _summary(one: Iteration) -> str:
    seconds = f", {one.seconds:.0f} s" if one.seconds else ""
    values = f"{len(one.attempts)} value{'' if len(one.attempts) == 1 else 's'} tried" if one.attempts else "evidence"
    return values + seconds


def _evidence(one: Iteration) -> Iterator[Markup | None]:
    if one.why_chosen:
        yield tag("p", tag("span", "Chosen: ", class_="soft"), one.why_chosen)
    if one.outcomes:
        yield table(*outcome_cells(one))
    if one.attempts:
        yield table(["tried", "status", "reason"], [(a.value, a.status, a.reason) for a in one.attempts])
    if one.comparison.strip():
        yield tag("pre", one.comparison)
    if one.diff.strip():
        yield diff(one.diff)
    for attempt in one.attempts:
        if attempt.diff.strip() and attempt.diff != one.diff:
            yield folded(f"diff of {attempt.value}", diff(attempt.diff))
    if one.ruled_out:
        yield tag("div", tag("p", "Ruled out before it:", class_="soft"), bullets(one.ruled_out))
    if one.environment or one.commit:
        yield settings_table(settings({"commit": one.commit, **one.environment} if one.commit else one.environment))
