"""The report of a run of `optimize` as Markdown and as one HTML page. Long parts of the page are folded."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ledger.records import Iteration
from tilewright.report import markdown as md
from tilewright.report.cells import (
    NOTHING,
    attempts,
    faster,
    gain,
    interval_ms,
    mix_row,
    ordinal,
    outcome_cells,
    place,
    time_ms,
)
from tilewright.report.charts import in_order, latencies, mix, mix_classes, mixes, roofline
from tilewright.report.evidence import OptimizeEvidence, settings
from tilewright.report.markup import Child, Markup, bullets, diff, folded, scroll, section, settings_table, table, tag
from tilewright.report.page import framed, two_step_sections
from tilewright.report.sourced import Sourced, citing
from tilewright.report.words import Words


def markdown(report: OptimizeEvidence) -> str:
    """Returns the report of a run of `optimize`."""
    words = Words(report)
    return md.framed(
        words,
        *md.two_step_sections(report),
        *md.section("Workloads", md.table(*words.workloads())),
        *md.section("What limits the kernel", md.table(*words.limits()), md.table(*words.moves())),
        *md.section("Candidates to confirm on a GPU", md.table(*words.to_confirm())),
        *md.section("Attempts to tamper", md.table(*words.tampering())),
        *md.section("Iterations", _iterations_table(report, words)),
        *md.section("Why, and what else was tried", *_details(report)),
        *md.section("What was ruled out", md.listed(report.ruled_out)),
        *md.section("Instructions", _instructions(report)),
        *md.section("The patch", md.fenced(report.patch, "diff") if report.patch.strip() else "Empty."),
    )


def _iterations_table(report: OptimizeEvidence, words: Words) -> str:
    header = ["", "optimization", f"{words.p}ms", "95 %", f"{words.p}gain", "correctness", "status", "reason"]
    if words.predicted:
        header = [name for name in header if name not in ("95 %", "predicted gain")]
    rows = []
    for iteration in report.iterations:
        named = iteration.optimization + (f" ({place(iteration)})" if place(iteration) else "")
        named += ", lossy" if iteration.risk == "lossy" else ""
        measured = [] if words.predicted else [interval_ms(iteration), gain(iteration)]
        time = time_ms(iteration, report.run.measured)
        end = (iteration.correctness, iteration.shown_status, iteration.reason)
        rows.append([iteration.n, named, time, *measured, *end])
    return md.table(header, rows)


def _details(report: OptimizeEvidence) -> Iterator[str]:
    for iteration in report.tried:
        parts = [f"### {iteration.n}. {md.text(iteration.optimization)}: {iteration.shown_status}"]
        parts += [f"Chosen: {md.text(iteration.why_chosen)}"] if iteration.why_chosen else []
        header, rows = outcome_cells(iteration)
        parts.append(md.table(header[:-1], [row[:-1] for row in rows]))
        parts += [md.table(*attempts(iteration)), md.text(report.more_values(iteration))]
        parts += [md.fenced(iteration.comparison)] if iteration.comparison.strip() else []
        if iteration.status != "keep" and iteration.diff.strip():  # the patch already contains kept changes
            parts.append(md.fenced(iteration.diff, "diff"))
        yield "\n\n".join(part for part in parts if part)


def _instructions(report: OptimizeEvidence) -> str:
    rows = [
        (change.workload, *mix_row(change, kind))
        for change in report.workloads
        for kind in in_order(change.before.mix, change.after.mix)
        if change.before.mix and change.after.mix
    ]
    return md.table(["workload", "class", "before", "after"], rows)


# The page -----------------------------------------------------------------------------------------


def page(report: OptimizeEvidence) -> str:
    """Returns the page of a run of `optimize`."""
    words = Words(report)
    header, waiting = words.to_confirm()
    tampering = words.tampering()
    tiles = [
        (faster(report.speedup), f"{words.p}speed-up, geometric mean"),
        *((ms, f"{words.p}ms {when}") for ms, when in zip(words.mean_ms, ("before", "after"), strict=True)),
        (words.kept, "iterations kept"),
    ]
    return framed(
        words,
        tiles,
        two_step_sections(report),
        _latencies(report, words),
        section("Workloads", _workloads(report, words)),
        _before_and_after(report, words),
        _limits(words),
        section("Candidates to confirm on a GPU", table(header, waiting)) if waiting else None,
        section("Attempts to tamper", table(*tampering)) if tampering[1] else None,
        section("Iterations", _iterations(report, words)),
        section("The patch", diff(report.patch) if report.patch.strip() else tag("p", "Empty.")),
        section("What was ruled out", bullets(report.ruled_out)) if report.ruled_out else None,
    )


def _latencies(report: OptimizeEvidence, words: Words) -> Markup | None:
    chart = latencies(report)
    title = "Predicted latency of each iteration" if words.predicted else "Latency of each iteration"
    text = "Geometric mean over the workloads. A name is the playbook's entry of a kept change."
    if not words.predicted:
        text += " Bars are 95 % intervals."
    return section(title, tag("p", text, class_="soft"), scroll(chart)) if chart else None


def _workloads(report: OptimizeEvidence, words: Words) -> Markup:
    header, rows = words.workloads()
    shown: list[list[Child]] = []
    for n, (row, change) in enumerate(zip(rows, report.workloads, strict=True), 1):
        bound = change.before.bound
        at = Sourced(n, change.at[0])
        shown.append([at, *row[:-1], tag("span", row[-1], title=bound.why if bound else None)])
    return table(["", *header], shown, numbers=range(2, len(header)))


def _limits(words: Words) -> Markup | None:
    (header, limits), moves = words.limits(), words.moves()
    if not limits:
        return None
    return section("What limits the kernel", table(header, limits, numbers=[2]), table(*moves) if moves[1] else None)


def _before_and_after(report: OptimizeEvidence, words: Words) -> Markup | None:
    roofs, bars = roofline(report.run, report.workloads), mix(report)
    title, sides = f"Roofline{', at predicted times' if words.predicted else ''}", []
    if roofs:
        sides.append(tag("div", tag("h3", title), scroll(roofs)))
    if bars:
        key = [
            tag("li", tag("svg", tag("rect", class_=f"mix{n}", width=12, height=12), viewBox="0 0 12 12"), name)
            for n, name in enumerate(mix_classes(report))
        ]
        names = tag("ul", key, class_="key")
        sides.append(tag("div", tag("h3", "Instruction mix"), scroll(bars), names, _mix_counts(report)))
    return section("Before and after", tag("div", sides, class_="pair")) if sides else None


def _mix_counts(report: OptimizeEvidence) -> Markup:
    tables = []
    for before, after, workloads in mixes(report):
        rows = [mix_row(report.workloads[workloads[0]], kind) for kind in in_order(before, after)]
        names = ", ".join(report.workloads[n].workload for n in workloads)
        tables.append(table([names, "before", "after"], rows, numbers=(1, 2)))
    return folded("instructions by class (an instruction in a loop counts once)", tables)


# Iterations -----------------------------------------------------------------------------------------------


def _iterations(report: OptimizeEvidence, words: Words) -> Markup:
    measured = [] if words.predicted else ["gain"]
    names = ["", "optimization", f"{words.p}ms", *measured, "correctness", "status", "reason"]
    header = tag("tr", [tag("th", name) for name in names])
    rows = [row for iteration in report.iterations for row in (_row(iteration, words), _more(report, iteration))]
    return scroll(tag("table", tag("thead", header), tag("tbody", rows), class_="iterations"))


def _row(iteration: Iteration, words: Words) -> Markup:
    time, interval = time_ms(iteration, not words.predicted), interval_ms(iteration)
    within = citing(f" ({interval})", interval) if iteration.interval_ms and time != NOTHING else ""
    lossy = tag("span", "lossy", class_="badge lossy") if iteration.risk == "lossy" else None
    return tag(
        "tr",
        tag("td", ordinal(iteration), class_="number"),
        tag("td", tag("strong", iteration.optimization), " ", lossy, tag("div", place(iteration), class_="soft")),
        tag("td", time, tag("span", within, class_="soft"), data_label=f"{words.p}ms"),
        None if words.predicted else tag("td", gain(iteration), class_="nowrap", data_label="gain"),
        tag("td", iteration.correctness, data_label="correctness"),
        tag("td", tag("span", iteration.shown_status, class_=f"badge {iteration.status}")),
        tag("td", iteration.reason),
        class_="head",
        id=f"iteration-{iteration.n}",
    )


def _more(report: OptimizeEvidence, iteration: Iteration) -> Markup:
    content, tried = [part for part in _evidence(report, iteration) if part], report.tried_values(iteration)
    summary = f"{tried} value{'' if tried == 1 else 's'} tried" if tried else "evidence"
    summary += f", {iteration.seconds:.0f} s" if iteration.seconds else ""
    at = f"iteration/{iteration.n}"
    more = folded(Sourced(summary, f"{at}/attempts", f"{at}/seconds"), content) if content else None
    return tag("tr", tag("td"), tag("td", more, colspan=6), class_="more")


def _evidence(report: OptimizeEvidence, iteration: Iteration) -> Iterator[Markup | None]:
    if iteration.why_chosen:
        yield tag("p", tag("span", "Chosen: ", class_="soft"), iteration.why_chosen)
    if iteration.outcomes:
        yield table(*outcome_cells(iteration))
    if iteration.attempts:
        yield table(*attempts(iteration))
    if more := report.more_values(iteration):
        yield tag("p", more, class_="soft")
    if iteration.comparison.strip():
        yield tag("pre", iteration.comparison)
    if iteration.diff.strip():
        yield diff(iteration.diff)
    for attempt in iteration.attempts:
        if attempt.diff.strip() and attempt.diff != iteration.diff:
            yield folded(f"diff of {attempt.value}", diff(attempt.diff))
    if iteration.ruled_out:
        yield tag("div", tag("p", "Ruled out before it:", class_="soft"), bullets(iteration.ruled_out))
    at = f"iteration/{iteration.n}"
    around = [("commit", Sourced(iteration.commit, f"{at}/commit"))] if iteration.commit else []
    if around := [*around, *settings(iteration.environment, f"{at}/environment")]:
        yield settings_table(around)
