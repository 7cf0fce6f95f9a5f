"""The report of a run as one HTML page that needs nothing else: no script, no font, no picture from elsewhere.

Its policy (``Content-Security-Policy``) lets a browser load nothing, and every text of a record is escaped
(`svg.tag`). What is long is folded; without folding the page still reads from top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tilewright.ledger.records import Iteration
from tilewright.report.charts import latencies, roofline
from tilewright.report.collected import Report, settings, speedup_of, time_us
from tilewright.report.mix import in_order, mix, mix_classes, mixes
from tilewright.report.style import STYLE
from tilewright.report.svg import Child, Markup, tag
from tilewright.report.words import NOTHING, Words, between, environment, faster, interval_us, light, number, place

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_KINDS = {"+": "added", "-": "removed", "@": "hunk"}


def page(report: Report) -> str:
    """The whole page, from its doctype."""
    words = Words(report)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", f"{words.title}: {words.outcome}"),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "body",
        _header(report, words),
        _latencies(report, words),
        _section("Workloads", _scroll(_workloads(report, words))),
        _before_and_after(report, words),
        _section("Iterations", _iterations(report, words)),
        _section("The patch", diff(report.patch) if report.patch.strip() else tag("p", "Empty.")),
        _section("What was ruled out", _list(report.ruled_out)) if report.ruled_out else None,
        _section("Environment", _scroll(_settings(settings(environment(report))))),
        _section(words.command_name, tag("pre", words.command)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def diff(text: str) -> Markup:
    """A unified diff, each line in its colour; the signs stay for those who see none."""
    lines = text.rstrip("\n").split("\n")
    shown = (tag("span", line, class_=None if line[:3] in ("+++", "---") else _KINDS.get(line[:1])) for line in lines)
    return tag("pre", tag("code", shown), class_="diff")


def _section(title: str, *content: Child) -> Markup:
    return tag("section", tag("h2", title), content)


def _scroll(content: Child) -> Markup:
    return tag("div", content, class_="scroll")


def _list(texts: Iterable[str]) -> Markup:
    return tag("ul", [tag("li", text) for text in texts])


def _table(header: Sequence[str], rows: Iterable[Sequence[Child]], numbers: Iterable[int] = ()) -> Markup:
    """``numbers``: the columns that hold numbers."""
    right = dict.fromkeys(numbers, "number")
    return tag(
        "table",
        tag("thead", tag("tr", [tag("th", name, class_=right.get(n)) for n, name in enumerate(header)])),
        tag("tbody", [tag("tr", [tag("td", cell, class_=right.get(n)) for n, cell in enumerate(row)]) for row in rows]),
    )


def _settings(values: Iterable[tuple[str, str]]) -> Markup:
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in values]
    return tag("table", tag("tbody", rows), class_="plain")


# The parts in their order ---------------------------------------------------------------------------------


def _header(report: Report, words: Words) -> Markup:
    badge = tag("span", "predicted, not measured", class_="badge predicted") if words.predicted else None
    kept = f"{len(report.kept)} of {len(report.tried)}"
    tiles = (
        (faster(report.speedup), f"{words.p}speed-up, geometric mean"),
        (number(report.before_ms), f"{words.p}ms before"),
        (number(report.after_ms), f"{words.p}ms after"),
        (kept, "iterations kept"),
    )
    shown = [tag("div", tag("b", value), tag("span", name), class_="tile") for value, name in tiles]
    return tag(
        "header",
        tag("h1", words.title, " ", badge),
        tag("p", words.subtitle, class_="soft"),
        tag("div", shown, class_="tiles"),
        tag("p", tag("strong", words.outcome), class_="outcome"),
        [tag("p", note) for note in words.notes()],
    )


def _latencies(report: Report, words: Words) -> Markup | None:
    chart = latencies(report)
    title = "Predicted latency of each iteration" if words.predicted else "Latency of each iteration"
    said = "Geometric mean over the workloads. A name is the playbook's entry of a kept change."
    if not words.predicted:
        said += " Bars are 95 % intervals."
    return _section(title, tag("p", said, class_="soft"), _scroll(chart)) if chart else None


def _workloads(report: Report, words: Words) -> Markup:
    header = ["", "workload", f"{words.p}before, µs", "95 %", f"{words.p}after, µs", "95 %"]
    header += [f"{words.p}speed-up", f"{words.p}speed of light", "bound"]
    drop = {3, 5} if words.predicted else set()
    rows: list[list[Child]] = [
        [
            n, tag("span", one.workload, class_="nowrap"),
            number(time_us(one.before)), interval_us(one.before), number(time_us(one.after)), interval_us(one.after),
            faster(one.speedup), f"{light(one.before)} → {light(one.after)}",
            tag("span", one.before.bound.kind, title=one.before.bound.why) if one.before.bound else NOTHING,
        ]
        for n, one in enumerate(report.workloads, 1)
    ]  # fmt: skip
    shown = [[cell for n, cell in enumerate(row) if n not in drop] for row in rows]
    names = [name for n, name in enumerate(header) if n not in drop]
    return _table(names, shown, numbers=range(2, len(names) - 1))


def _before_and_after(report: Report, words: Words) -> Markup | None:
    roofs, bars = roofline(report), mix(report)
    sides = []
    if roofs:
        sides.append(
            tag("div", tag("h3", f"Roofline{', at predicted times' if words.predicted else ''}"), _scroll(roofs))
        )
    if bars:
        sides.append(tag("div", tag("h3", "Instruction mix"), _scroll(bars), _mix_key(report), _mix_counts(report)))
    return _section("Before and after", tag("div", sides, class_="pair")) if sides else None


def _mix_key(report: Report) -> Markup:
    names = enumerate(mix_classes(report))
    return tag(
        "ul",
        [
            tag("li", tag("svg", tag("rect", class_=f"mix{n}", width=12, height=12), viewBox="0 0 12 12"), name)
            for n, name in names
        ],
        class_="key",
    )


def _mix_counts(report: Report) -> Markup:
    tables = []
    for (before, after), workloads in mixes(report).items():
        rows = [(kind, before.get(kind, 0), after.get(kind, 0)) for kind in in_order(before, after)]
        names = ", ".join(report.workloads[n].workload for n in workloads)
        tables.append(_table([names, "before", "after"], rows, numbers=(1, 2)))
    return _folded("instructions by class (each once, whatever loop it stands in)", tables)


def _folded(title: str, *content: Child) -> Markup:
    return tag("details", tag("summary", title), tag("div", content))


# Iterations -----------------------------------------------------------------------------------------------


def _iterations(report: Report, words: Words) -> Markup:
    gain = [] if words.predicted else ["gain"]
    names = ["", "optimization", f"{words.p}ms", *gain, "correctness", "status", "reason"]
    header = tag("tr", [tag("th", name) for name in names])
    rows = [row for one in report.iterations for row in (_row(one, words), _more(one))]
    return tag("table", tag("thead", header), tag("tbody", rows), class_="iterations")


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
    folded = _folded(_summary(one), content) if content else None
    return tag("tr", tag("td"), tag("td", folded, colspan=6), class_="more")


def _summary(one: Iteration) -> str:
    seconds = f", {one.seconds:.0f} s" if one.seconds else ""
    values = f"{len(one.attempts)} value{'' if len(one.attempts) == 1 else 's'} tried" if one.attempts else "evidence"
    return values + seconds


def _evidence(one: Iteration) -> Iterator[Markup | None]:
    if one.why_chosen:
        yield tag("p", tag("span", "Chosen: ", class_="soft"), one.why_chosen)
    if one.outcomes:
        yield _scroll(_outcomes(one))
    if one.attempts:
        yield _scroll(_table(["tried", "status", "reason"], [(a.value, a.status, a.reason) for a in one.attempts]))
    if one.comparison.strip():
        yield tag("pre", one.comparison)
    if one.diff.strip():
        yield diff(one.diff)
    for attempt in one.attempts:
        if attempt.diff.strip() and attempt.diff != one.diff:
            yield _folded(f"diff of {attempt.value}", diff(attempt.diff))
    if one.ruled_out:
        yield tag("div", tag("p", "Ruled out before it:", class_="soft"), _list(one.ruled_out))
    if one.environment or one.commit:
        yield _scroll(_settings(settings({"commit": one.commit, **one.environment} if one.commit else one.environment)))


def _outcomes(one: Iteration) -> Markup:
    rows = [
        (
            tag("span", outcome.workload, class_="nowrap"), outcome.verdict,
            faster(speedup_of(outcome.ratio)), faster(speedup_of(outcome.against_baseline)),
            outcome.checked.reason if outcome.checked else NOTHING,
        )
        for outcome in one.outcomes
    ]  # fmt: skip
    names = ["workload", "verdict", "over the incumbent", "over the baseline", "checked"]
    if not any(outcome.ratio or outcome.against_baseline for outcome in one.outcomes):
        return _table([*names[:2], names[4]], [(*row[:2], row[4]) for row in rows])
    return _table(names, rows)
