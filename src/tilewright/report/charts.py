"""The charts of a report, as SVG inside the page.

    latencies   time of each iteration with its 95 % interval, and lines for the incumbent and the baseline
    roofline    arithmetic rate over intensity: each workload as two dots (before and after), under the GPU's roofs
    race        median and 95 % interval of every raced candidate of one workload
    mix         instructions by class, before and after

Marks differ in shape as well as in colour. The tooltip of a mark shows its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tilewright.ledger.records import BaseRun, Metrics
from tilewright.machine_code.cubin import CLASSES
from tilewright.records import Candidate, MeasuredTime
from tilewright.report import svg
from tilewright.report.cells import interval_ms, interval_us, number, ordinal, time_ms, time_us
from tilewright.report.evidence import OptimizeEvidence, Point, WorkloadChange
from tilewright.report.markup import Child, Markup, joined, tag
from tilewright.report.sourced import Sourced, citing
from tilewright.report.svg import BOTTOM, HEIGHT, LEFT, MARK, NARROW, RIGHT, TOP, WIDE, Axis, around
from tilewright.report.tune_evidence import TunedWorkload, knobs

STRIP = 22
"""Height of the strip below the plot of latencies, where iterations without a time are drawn."""
MOST_X_LABELS = 14
TOGETHER = 14
"""Marks closer than this (in SVG units) share a label."""
RACE_WIDTH, RACE_TOP, RACE_ROW, RACE_MARGIN = 420, 36, 34, 14
MOST_LETTERS = 52
"""The most characters in a candidate's name in the chart of the race."""
MIX_COLOURS = 8
"""The number of colours in the style sheet for instruction classes. The last colour may represent all other classes."""
OTHERS = "everything else"
BAR, GAP = 20, 5
MOST_NAMES = 60
"""The most characters in a list of workload names above the bars. A longer list is replaced by workload numbers."""
ORDER = (*(name for name, _ in CLASSES), "other")


# Latency per iteration ---------------------------------------------------------------------------------


def latencies(report: OptimizeEvidence) -> Markup | None:
    """Draws the time of each iteration. Returns None if no iteration has a time."""
    points = report.points
    timed = [point for point in points if point.ms is not None]
    if not timed:
        return None
    bounds = [edge for point in timed for edge in point.interval_ms or ()]
    y = around([*(point.ms or 0.0 for point in timed), *(edge for edge in bounds if edge > 0)], HEIGHT - BOTTOM, TOP)
    x = Axis(-0.5, max(points[-1].n, 1) + 0.5, LEFT, WIDE - RIGHT)
    name = "latency, ms" if report.run.measured else "predicted latency, ms"
    axis = HEIGHT - BOTTOM - STRIP
    return svg.drawing(
        f"{name} of each iteration",
        (WIDE, HEIGHT),
        svg.y_axis(y, name, WIDE),
        svg.line("grid", (LEFT, WIDE - RIGHT), (axis, axis)),
        svg.x_axis(x, "iteration", WIDE, [point.n for point in points[:: -(-len(points) // MOST_X_LABELS)]]),
        [svg.line("baseline", (LEFT, WIDE - RIGHT), (y(ms), y(ms))) for ms in (points[0].ms,) if ms is not None],
        tag("path", class_="incumbent", d=_incumbent_path(points, x, y)),
        [_point(point, x, y, f"{name} ", time_ms(point.iteration, report.run.measured)) for point in points],
        _legend(),
    )


def _incumbent_path(points: Sequence[Point], x: Axis, y: Axis) -> str:
    """Returns the path of the incumbent's time, with a step at each kept iteration."""
    path, at = "", None
    for point in points:
        if point.incumbent_ms is None:
            continue
        here = f"{x(point.n):.2f}"
        path += f"M{here} {y(point.incumbent_ms):.2f}" if at is None else f"H{here}V{y(point.incumbent_ms):.2f}"
        at = point.incumbent_ms
    return f"{path}H{x(points[-1].n + 0.5):.2f}" if path else "M0 0"


def _point(point: Point, x: Axis, y: Axis, name: str, time: Sourced) -> Markup:
    """Draws an iteration with its interval and its tooltip. An iteration without a time is a cross in the bottom
    strip."""
    at, n, within = x(point.n), ordinal(point.iteration), interval_ms(point.iteration)
    tooltip = f"{n}. {point.iteration.optimization}: {point.iteration.shown_status}"
    if point.ms is None:
        drawn = tag("path", d=_cross(at, HEIGHT - BOTTOM - STRIP / 2 + 2))
        return tag("g", tag("title", citing(f"{tooltip}, no time", n)), drawn, class_="point crash", data_n=point.n)
    tooltip += f", {name}{time}"
    interval = None
    if point.interval_ms is not None and 0 < point.interval_ms[0] <= point.interval_ms[1] < float("inf"):
        low, high = point.interval_ms
        tooltip += f" (95 %: {within})"
        interval = joined(
            svg.line("interval", (at, at), (y(low), y(high))),
            [svg.line("cap", (at - 4, at + 4), (y(edge), y(edge))) for edge in (low, high)],
        )
    status, name = point.iteration.status, point.iteration.entry
    entry = svg.text(name, at + MARK + 3, y(point.ms) - MARK - 1, "entry") if status == "keep" and name else None
    mark = svg.dot(at, y(point.ms))
    title = tag("title", citing(tooltip, n, time, within))
    return tag("g", title, interval, mark, entry, class_=f"point {status}", data_n=point.n)


def _cross(x: float, y: float) -> str:
    return f"M{x - 4:.2f} {y - 4:.2f}l8 8m0 -8l-8 8"


def _legend() -> Markup:
    """Draws the legend above the chart."""
    at, y = LEFT + 6.0, 14.0
    return svg.legend(
        y + 4,
        (tag("g", svg.dot(at, y), class_="point keep"), "kept", at + 11),
        (tag("g", svg.dot(at + 62, y), class_="point revert"), "not kept", at + 73),
        (tag("g", tag("path", d=_cross(at + 148, y)), class_="point crash"), "no time: crashed or wrong", at + 159),
        (tag("path", class_="incumbent", d=f"M{at + 332:.1f} {y:.1f}h20"), "incumbent", at + 358),
        (tag("path", class_="baseline", d=f"M{at + 436:.1f} {y:.1f}h20"), "baseline", at + 462),
    )


# Roofline -----------------------------------------------------------------------------------------------


def roofline(
    run: BaseRun, changes: Sequence[WorkloadChange], names: tuple[str, str] = ("before", "after")
) -> Markup | None:
    """Draws two dots for each workload. ``names``: names of the two dots in the legend.

    Returns None if no workload has both FLOP and a time.
    """
    moves = [
        (n, change, before, after)
        for n, change in enumerate(changes, 1)
        if (before := _position(change.before)) and (after := _position(change.after))
    ]
    ridges = [change.before.bound.ridge for _, change, *_ in moves if change.before.bound]
    if not ridges or run.bandwidth_gbs <= 0:
        return None
    ridge = max(ridges)
    peak = ridge * run.bandwidth_gbs / 1e3
    intensities, rates = zip(*(position for *_, before, after in moves for position in (before, after)), strict=True)
    x = Axis(min(*intensities, ridge) / 3, max(*intensities, ridge) * 4, LEFT, NARROW - RIGHT, logarithmic=True)
    y = Axis(min(*rates, peak) / 3, max(*rates, peak) * 3, HEIGHT - BOTTOM, TOP, logarithmic=True)
    what = "" if run.measured else "predicted "
    return svg.drawing(
        f"roofline of {run.board}, {run.dtype}: {what}rate {names[0]} and {names[1]}",
        (NARROW, HEIGHT),
        svg.y_axis(y, f"{what}TFLOP/s", NARROW),
        svg.x_axis(x, "FLOP per byte", NARROW, x.ticks(8)),
        _roofs(run, x, y, ridge, peak),
        [_moved(f"{n}. {change.workload}: {what}", change, before, after, x, y) for n, change, before, after in moves],
        _numbers([(Sourced(n, change.at[0], value=n), x(after[0]), y(after[1])) for n, change, _, after in moves]),
        svg.legend(
            18.0,
            (svg.dot(LEFT + 6, 14.0, MARK - 1, "before"), names[0], LEFT + 16),
            (svg.dot(LEFT + 86, 14.0, MARK - 1, "after"), names[1], LEFT + 96),
            (None, "numbers: the workloads, as in the table", LEFT + 160),
        ),
    )


def _position(metrics: Metrics) -> tuple[float, float] | None:
    """Returns FLOP per byte, and TFLOP/s; None if FLOP, bytes or the time is missing."""
    us = metrics.us
    if not us or not metrics.flops or not metrics.bytes:
        return None
    return metrics.flops / metrics.bytes, metrics.flops / us / 1e6


def _roofs(run: BaseRun, x: Axis, y: Axis, ridge: float, peak: float) -> Iterator[Markup]:
    """Draws the roof: the bandwidth up to the ridge, then the arithmetic rate."""
    slope = run.bandwidth_gbs / 1e3
    first = max(x.low, y.low / slope)  # the intensity at which the sloped roof enters the chart
    path = f"M{x(first):.2f} {y(first * slope):.2f}L{x(ridge):.2f} {y(peak):.2f}H{x(x.high):.2f}"
    yield tag("path", class_="roof", d=path)
    yield svg.text(f"{svg.label(peak)} TFLOP/s {run.dtype}", x(x.high), y(peak) - 7, text_anchor="end")
    middle = (first * ridge) ** 0.5
    yield svg.text(f"{slope:.3g} TB/s", x(middle) - 8, y(middle * slope) - 6, text_anchor="end")


def _moved(
    prefix: str, change: WorkloadChange, before: tuple[float, float], after: tuple[float, float], x: Axis, y: Axis
) -> Markup:
    (x1, y1), (x2, y2) = ((x(intensity), y(rate)) for intensity, rate in (before, after))
    rates = f"{prefix}{number(before[1])} → {number(after[1])} TFLOP/s"
    title = tag("title", Sourced(rates, *change.time_ids, *change.flops_at))
    dots = (svg.dot(x1, y1, MARK - 1, "before"), svg.dot(x2, y2, MARK - 1, "after"))
    return tag("g", title, svg.line("moved", (x1, x2), (y1, y2)), dots)


def _numbers(dots: Sequence[tuple[Sourced, float, float]]) -> Iterator[Markup]:
    """Yields the label with the workload's number beside each dot. Dots that are close share a label, such as ``1-3,
    7``.
    """
    groups: list[tuple[float, float, list[Sourced]]] = []
    for n, left, top in dots:
        near = (members for x, y, members in groups if math.hypot(x - left, y - top) < TOGETHER)
        if members := next(near, None):
            members.append(n)
        else:
            groups.append((left, top, [n]))
    for left, top, members in groups:
        yield svg.text(citing(ranges(list(map(int, members))), *members), left + MARK + 3, top + 4, "entry")


def ranges(numbers: Sequence[int]) -> str:
    """Formats ascending numbers in short, such as ``1-3, 7``."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


# The race -----------------------------------------------------------------------------------------------


def race(workload: TunedWorkload) -> Markup | None:
    """Draws the raced candidates on one time axis, the fastest first. Returns None if nothing was raced."""
    raced = [(candidate, time) for candidate in workload.candidates if (time := candidate.measured) is not None]
    if not raced:
        return None
    edges = [us for _, time in raced for us in _edges(time)]
    left, bottom = RACE_MARGIN, RACE_TOP + RACE_ROW * len(raced)
    x = around(edges, left, RACE_WIDTH - left)
    return svg.drawing(
        f"race of workload {workload.name}: median and 95 % interval of each candidate, µs",
        (RACE_WIDTH, bottom + 44),
        [svg.line("grid", (x(value), x(value)), (RACE_TOP - 8, bottom)) for value in x.ticks(7)],
        [svg.text(svg.label(value), x(value), bottom + 18, text_anchor="middle") for value in x.ticks(7)],
        _tie_band(workload, raced[0][1].us, x, bottom),
        [_racer(candidate, time, workload, x, RACE_TOP + RACE_ROW * n) for n, (candidate, time) in enumerate(raced)],
        svg.text("time of one launch, µs", RACE_WIDTH / 2, bottom + 38, "axis", text_anchor="middle"),
        svg.legend(
            16,
            (tag("g", svg.dot(left + 4, 12, MARK - 1, "median"), class_="racer winner"), "winner", left + 13),
            (tag("g", _rect("median", left + 66, 8, 8, 8), class_="racer"), "shipped today", left + 80),
            (_rect("band", left + 170, 5, 14, 14), "tied with the fastest", left + 190),
        ),
    )


def _edges(measured: MeasuredTime) -> tuple[float, float]:
    """Returns the ends of the interval. If there is no interval, both ends are the median."""
    low, high = measured.interval_us
    return (low, high) if 0 < low <= high < math.inf else (measured.us, measured.us)


def _tie_band(workload: TunedWorkload, fastest_us: float, x: Axis, bottom: float) -> Markup | None:
    """Draws the tie band, which begins at the fastest median. Its width is a fraction of that median."""
    share = workload.tie_band
    if share is None:
        return None
    left, top = x(fastest_us), RACE_TOP - 8
    width = min(x(fastest_us * (1 + share)), x.end) - left
    said = f"within {share:.1%} of the fastest median: counts as tied with it"
    title = tag("title", Sourced(said, f"{workload.at}/race/policy/tie_band"))
    return _rect("band", left, top, width, bottom - top, title)


def _rect(kind: str, x: float, y: float, width: float, height: float, *children: Child) -> Markup:
    return tag("rect", children, class_=kind, x=x, y=y, width=width, height=height)


def _racer(candidate: Candidate, measured: MeasuredTime, workload: TunedWorkload, x: Axis, top: float) -> Markup:
    """Draws a candidate: its name, and below the name its interval with a mark at the median.

    The mark is filled for the winner, and a square for the shipped configuration.
    """
    side = workload.metrics(candidate), workload.at_of(candidate)
    (low, high), median, time = _edges(measured), measured.us, time_us(*side)
    winner, shipped = workload.is_best(candidate), workload.is_shipped(candidate)
    name = knobs(candidate.configuration, workload.varying) or "the only configuration"
    end = ", winner" * winner + ", shipped today" * shipped
    most = MOST_LETTERS - len(end)
    name = (name if len(name) <= most else name[: most - 1] + "…") + end
    y = top + 19
    mark = svg.dot(x(median), y, MARK, "median")
    if shipped:
        mark = _rect("median", x(median) - MARK, y - MARK, 2 * MARK, 2 * MARK)
    interval, within = None, Sourced("too few samples for an interval")
    if low < high:
        within = interval_us(*side)
        caps = [svg.line("cap", (x(edge), x(edge)), (y - 4, y + 4)) for edge in (low, high)]
        interval = joined(svg.line("interval", (x(low), x(high)), (y, y)), caps)
    said = f"{candidate.configuration}: {time} µs (95 %: {within}); {candidate.reason}"
    return tag(
        "g",
        tag("title", citing(said, time, within)),
        svg.text(Sourced(name, f"{side[1]}/configuration"), RACE_MARGIN, top + 6, "entry" if end else "tick"),
        interval,
        mark,
        class_=f"racer{' winner' if winner else ''}",
        data_us=repr(median),
    )


# Instructions by class ---------------------------------------------------------------------------------


def mix(report: OptimizeEvidence) -> Markup | None:
    """Draws two bars for each workload: instructions by class, before and after. Workloads with equal bars share them.

    Returns None if no workload has both mixes.
    """
    groups, classes = mixes(report), mix_classes(report)
    if not groups:
        return None
    longest = max(sum(counts.values()) for before, after, _ in groups for counts in (before, after))
    x = Axis(0, longest, LEFT, NARROW - RIGHT - 44)
    bars: list[Markup] = []
    top = 6.0
    for before, after, workloads in groups:
        names = ", ".join(report.workloads[n].workload for n in workloads)
        if len(names) > MOST_NAMES:
            names = f"workload {', '.join(str(n + 1) for n in workloads)}"
        bars.append(svg.text(names, LEFT, top + 12, "axis"))
        sides = zip(("before", "after"), (before, after), report.workloads[workloads[0]].at, strict=True)
        for name, counts, at in sides:
            top += BAR + GAP if name == "after" else BAR
            bars.append(_bar(name, counts, classes, x, top, f"{at}/mix"))
        top += BAR + 3 * GAP
    return svg.drawing("instructions by class, before and after", (NARROW, top), bars)


def mixes(report: OptimizeEvidence) -> list[tuple[Mapping[str, int], Mapping[str, int], list[int]]]:
    """Groups the workloads that have equal mixes. Returns for each group: the mix before, the mix after, and the
    indices of the workloads."""
    groups: list[tuple[Mapping[str, int], Mapping[str, int], list[int]]] = []
    for n, change in enumerate(report.workloads):
        before, after = change.before.mix, change.after.mix
        same = next((members for b, a, members in groups if (b, a) == (before, after)), None)
        if same is not None:
            same.append(n)
        elif before and after:
            groups.append((before, after, [n]))
    return groups


def in_order(*mixes: Mapping[str, int]) -> list[str]:
    """Returns the classes of the mixes, in the order of `CLASSES`."""
    names = dict.fromkeys(name for mix in mixes for name in mix)
    return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def mix_classes(report: OptimizeEvidence) -> list[str]:
    """Returns the classes to draw, in the order of `CLASSES`. If there are too many, the last is `OTHERS`."""
    most: dict[str, int] = {}
    for before, after, _ in mixes(report):
        for counts in (before, after):
            for name, count in counts.items():
                most[name] = max(most.get(name, 0), count)
    if len(known := in_order(most)) <= MIX_COLOURS:
        return known
    largest = set(sorted(known, key=lambda name: -most[name])[: MIX_COLOURS - 1])
    return [name for name in known if name in largest] + [OTHERS]


def _bar(name: str, counts: Mapping[str, int], classes: Sequence[str], x: Axis, top: float, at: str) -> Markup:
    """Draws one version's instructions. ``at``: the ledger id of their counts."""
    total = sum(counts.values())
    shown = {kind: counts.get(kind, 0) for kind in classes if kind != OTHERS}
    if OTHERS in classes:
        shown[OTHERS] = total - sum(shown.values())
    pieces, done = [], 0
    for colour, (kind, count) in enumerate(shown.items()):
        if count:
            title = tag("title", Sourced(f"{name}: {count} {kind} of {total} instructions", at))
            width = x(done + count) - x(done)
            pieces.append(_rect(f"mix{colour}", x(done), top, width, BAR, title))
            done += count
    middle = top + BAR / 2 + 4
    sum_ = svg.text(Sourced(f"{total:,}", at), x(total) + 6, middle)
    return joined(svg.text(name, LEFT - 8, middle, text_anchor="end"), pieces, sum_)
