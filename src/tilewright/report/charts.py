"""The charts of a report, as SVG inside the page.

    latencies   time of each iteration with its 95 % interval, the incumbent's line, and the baseline's
    roofline    arithmetic rate over intensity, each workload as two dots, under the board's roofs
    race        median and 95 % interval of every raced candidate of one workload

Marks differ in shape as well as in colour, and show their numbers when pointed at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tilewright.ledger.records import BaseRun, Metrics
from tilewright.records import Candidate, MeasuredTime
from tilewright.report.evidence import OptimizeEvidence, Point, TunedWorkload, WorkloadChange, knobs, time_us
from tilewright.report.markup import Markup, joined, tag
from tilewright.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MARK,
    NARROW,
    RIGHT,
    TOP,
    WIDE,
    Axis,
    around,
    drawing,
    label,
    x_axis,
    y_axis,
)
from tilewright.report.words import between, number

STRIP = 22
"""Below the plot of latencies: the strip for iterations without a time."""
MOST_X_LABELS = 14
TOGETHER = 14
"""Marks as close as that share a label."""
RACE_WIDTH, RACE_TOP, RACE_ROW, RACE_MARGIN = 420, 36, 34, 14
MOST_LETTERS = 52
"""Of a candidate's name in the picture of the race."""


# Latency per iteration ---------------------------------------------------------------------------------


def latencies(report: OptimizeEvidence) -> Markup | None:
    """None where not even the baseline has a time."""
    points = report.points
    timed = [point for point in points if point.ms is not None]
    if not timed:
        return None
    bounds = [edge for point in timed for edge in point.interval_ms or ()]
    y = around([*(point.ms or 0.0 for point in timed), *(edge for edge in bounds if edge > 0)], HEIGHT - BOTTOM, TOP)
    x = Axis(-0.5, max(points[-1].n, 1) + 0.5, LEFT, WIDE - RIGHT)
    name = "latency, ms" if report.run.measured else "predicted latency, ms"
    axis = HEIGHT - BOTTOM - STRIP
    return drawing(
        f"{name} of each iteration",
        (WIDE, HEIGHT),
        y_axis(y, name, WIDE),
        tag("line", class_="grid", x1=LEFT, x2=WIDE - RIGHT, y1=axis, y2=axis),
        _iteration_labels(points, x),
        _baseline(points, y),
        tag("path", class_="incumbent", d=_incumbent_path(points, x, y)),
        [_point(point, x, y, name) for point in points],
        _legend(),
    )


def _iteration_labels(points: Sequence[Point], x: Axis) -> Iterator[Markup]:
    step = -(-len(points) // MOST_X_LABELS)
    for point in points[::step]:
        yield tag("text", point.n, class_="tick", x=x(point.n), y=HEIGHT - BOTTOM + 18, text_anchor="middle")
    yield tag("text", "iteration", class_="axis", x=(LEFT + WIDE - RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle")


def _baseline(points: Sequence[Point], y: Axis) -> Markup | None:
    if points[0].ms is None:
        return None
    at = y(points[0].ms)
    return tag("line", class_="baseline", x1=LEFT, x2=WIDE - RIGHT, y1=at, y2=at)


def _incumbent_path(points: Sequence[Point], x: Axis, y: Axis) -> str:
    """Steps from each kept iteration to the next."""
    path, at = "", None
    for point in points:
        if point.incumbent_ms is None:
            continue
        here = f"{x(point.n):.2f}"
        path += f"M{here} {y(point.incumbent_ms):.2f}" if at is None else f"H{here}V{y(point.incumbent_ms):.2f}"
        at = point.incumbent_ms
    return f"{path}H{x(points[-1].n + 0.5):.2f}" if path else "M0 0"


def _point(point: Point, x: Axis, y: Axis, name: str) -> Markup:
    """A mark with its interval and its tooltip. An iteration without a time is a cross on the axis."""
    at = x(point.n)
    text = f"{point.n}. {point.optimization}: {point.status}"
    if point.ms is None:
        drawn = tag("path", d=_cross(at, HEIGHT - BOTTOM - STRIP / 2 + 2))
        return tag("g", tag("title", f"{text}, no time"), drawn, class_="point crash", data_n=point.n)
    text += f", {name} {number(point.ms)}"
    interval = None
    if point.interval_ms is not None and 0 < point.interval_ms[0] <= point.interval_ms[1] < float("inf"):
        low, high = point.interval_ms
        text += f" (95 %: {between(point.interval_ms)})"
        interval = joined(
            tag("line", class_="interval", x1=at, x2=at, y1=y(low), y2=y(high)),
            [tag("line", class_="cap", x1=at - 4, x2=at + 4, y1=y(edge), y2=y(edge)) for edge in (low, high)],
        )
    entry = None
    if point.status == "keep" and point.entry:
        entry = tag("text", point.entry, class_="entry", x=at + MARK + 3, y=y(point.ms) - MARK - 1)
    mark = tag("circle", cx=at, cy=y(point.ms), r=MARK)
    return tag("g", tag("title", text), interval, mark, entry, class_=f"point {point.status}", data_n=point.n)


def _cross(x: float, y: float) -> str:
    return f"M{x - 4:.2f} {y - 4:.2f}l8 8m0 -8l-8 8"


def _legend() -> Markup:
    """Above the chart: the shapes, then their names."""
    parts, at, y = [], LEFT + 6.0, 14.0
    for kind, name, room in (("keep", "kept", 62), ("revert", "reverted", 86)):
        parts.append(tag("g", tag("circle", cx=at, cy=y, r=MARK), class_=f"point {kind}"))
        parts.append(tag("text", name, class_="tick", x=at + 11, y=y + 4))
        at += room
    parts.append(tag("g", tag("path", d=_cross(at, y)), class_="point crash"))
    parts.append(tag("text", "no time: crashed or wrong", class_="tick", x=at + 11, y=y + 4))
    at += 190
    for kind, name, room in (("incumbent", "incumbent", 104), ("baseline", "baseline", 0)):
        parts.append(tag("path", class_=kind, d=f"M{at - 6:.1f} {y:.1f}h20"))
        parts.append(tag("text", name, class_="tick", x=at + 20, y=y + 4))
        at += room
    return tag("g", parts, class_="legend")


# Roofline -----------------------------------------------------------------------------------------------


def roofline(
    run: BaseRun, changes: Sequence[WorkloadChange], names: tuple[str, str] = ("before", "after")
) -> Markup | None:
    """Each workload as two dots, called ``names``. None where no workload has both arithmetic and a time."""
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
    return drawing(
        f"roofline of {run.board}, {run.dtype}: {what}rate {names[0]} and {names[1]}",
        (NARROW, HEIGHT),
        y_axis(y, f"{what}TFLOP/s", NARROW),
        x_axis(x, "FLOP per byte"),
        _roofs(run, x, y, ridge, peak),
        [_moved(f"{n}. {change.workload}: {what}", before, after, x, y) for n, change, before, after in moves],
        _numbers([(n, x(after[0]), y(after[1])) for n, *_, after in moves]),
        _roofline_legend(names),
    )


def _position(metrics: Metrics) -> tuple[float, float] | None:
    """FLOP per byte, and TFLOP/s; None without arithmetic or a time."""
    us = time_us(metrics)
    if not us or not metrics.flops or not metrics.bytes:
        return None
    return metrics.flops / metrics.bytes, metrics.flops / us / 1e6


def _roofs(run: BaseRun, x: Axis, y: Axis, ridge: float, peak: float) -> Iterator[Markup]:
    """Bandwidth up to the ridge, then arithmetic; the slope begins where it enters the chart."""
    slope = run.bandwidth_gbs / 1e3
    first = max(x.low, y.low / slope)
    path = f"M{x(first):.2f} {y(first * slope):.2f}L{x(ridge):.2f} {y(peak):.2f}H{x(x.high):.2f}"
    yield tag("path", class_="roof", d=path)
    yield tag(
        "text", f"{label(peak)} TFLOP/s {run.dtype}", class_="tick", x=x(x.high), y=y(peak) - 7, text_anchor="end"
    )
    middle = (first * ridge) ** 0.5
    yield tag(
        "text", f"{run.bandwidth_gbs / 1e3:.3g} TB/s", class_="tick", x=x(middle) - 8, y=y(middle * slope) - 6,
        text_anchor="end",
    )  # fmt: skip


def _moved(text: str, before: tuple[float, float], after: tuple[float, float], x: Axis, y: Axis) -> Markup:
    (x1, y1), (x2, y2) = ((x(intensity), y(rate)) for intensity, rate in (before, after))
    return tag(
        "g",
        tag("title", f"{text}{number(before[1])} → {number(after[1])} TFLOP/s"),
        tag("line", class_="moved", x1=x1, y1=y1, x2=x2, y2=y2),
        tag("circle", class_="before", cx=x1, cy=y1, r=MARK - 1),
        tag("circle", class_="after", cx=x2, cy=y2, r=MARK - 1),
    )


def _numbers(dots: Sequence[tuple[int, float, float]]) -> Iterator[Markup]:
    """Beside each dot its workload's number; dots that lie together share a label, such as ``1-3, 7``."""
    groups: list[tuple[float, float, list[int]]] = []
    for n, left, top in dots:
        near = (members for x, y, members in groups if math.hypot(x - left, y - top) < TOGETHER)
        members = next(near, None)
        if members is None:
            groups.append((left, top, [n]))
        else:
            members.append(n)
    for left, top, members in groups:
        yield tag("text", ranges(members), class_="entry", x=left + MARK + 3, y=top + 4)


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers in short: ``1-3, 7``."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _roofline_legend(names: tuple[str, str]) -> Markup:
    parts = [
        joined(
            tag("circle", class_=kind, cx=LEFT + 6 + at, cy=14.0, r=MARK - 1),
            tag("text", name, class_="tick", x=LEFT + 16 + at, y=18.0),
        )
        for kind, name, at in zip(("before", "after"), names, (0, 80), strict=True)
    ]
    note = "numbers: the workloads, as in the table"
    return tag("g", parts, tag("text", note, class_="tick", x=LEFT + 160.0, y=18.0), class_="legend")


# The race -----------------------------------------------------------------------------------------------


def race(workload: TunedWorkload) -> Markup | None:
    """The raced candidates on one scale of time, the fastest first; None where nothing was raced."""
    raced = [(candidate, time) for candidate in workload.candidates if (time := candidate.measured) is not None]
    if not raced:
        return None
    edges = [us for _, time in raced for us in _edges(time)]
    x = around(edges, RACE_MARGIN, RACE_WIDTH - RACE_MARGIN)
    bottom = RACE_TOP + RACE_ROW * len(raced)
    name = f"race of workload {workload.name}: median and 95 % interval of each candidate, µs"
    return drawing(
        name,
        (RACE_WIDTH, bottom + 44),
        [_race_tick(value, x, bottom) for value in x.ticks(7)],
        _tie_band(workload.tie_band, raced[0][1].us, x, bottom),
        [_racer(candidate, time, workload, x, RACE_TOP + RACE_ROW * n) for n, (candidate, time) in enumerate(raced)],
        tag("text", "time of one launch, µs", class_="axis", x=RACE_WIDTH / 2, y=bottom + 38, text_anchor="middle"),
        _race_legend(),
    )


def _edges(measured: MeasuredTime) -> tuple[float, float]:
    """Of the interval; both are the median where the samples were too few for an interval."""
    low, high = measured.interval_us
    return (low, high) if 0 < low <= high < math.inf else (measured.us, measured.us)


def _race_tick(value: float, x: Axis, bottom: float) -> Markup:
    return joined(
        tag("line", class_="grid", x1=x(value), x2=x(value), y1=RACE_TOP - 8, y2=bottom),
        tag("text", label(value), class_="tick", x=x(value), y=bottom + 18, text_anchor="middle"),
    )


def _tie_band(share: float | None, fastest_us: float, x: Axis, bottom: float) -> Markup | None:
    """From the fastest median to the end of the tie band."""
    if share is None:
        return None
    left, top = x(fastest_us), RACE_TOP - 8
    width = min(x(fastest_us * (1 + share)), x.end) - left
    title = tag("title", f"within {share:.1%} of the fastest median: too little for a change of winner")
    return tag("rect", title, class_="band", x=left, y=top, width=width, height=bottom - top)


def _racer(candidate: Candidate, time: MeasuredTime, workload: TunedWorkload, x: Axis, top: float) -> Markup:
    """Its name, and below it the interval with the median as a mark: filled for the winner, a square if shipped."""
    (low, high), median = _edges(time), time.us
    winner, shipped = workload.is_best(candidate), workload.is_shipped(candidate)
    roles = [role for role, holds in (("winner", winner), ("shipped today", shipped)) if holds]
    name = knobs(candidate.configuration, workload.varying) or "the only configuration"
    y = top + 19
    if shipped:
        mark = tag("rect", class_="median", x=x(median) - MARK, y=y - MARK, width=2 * MARK, height=2 * MARK)
    else:
        mark = tag("circle", class_="median", cx=x(median), cy=y, r=MARK)
    interval = (tag("line", class_="interval", x1=x(low), x2=x(high), y1=y, y2=y) if low < high else None,)
    caps = [tag("line", class_="cap", x1=x(edge), x2=x(edge), y1=y - 4, y2=y + 4) for edge in (low, high) if low < high]
    within = between((low, high)) if low < high else "too few samples for an interval"
    return tag(
        "g",
        tag("title", f"{candidate.configuration}: {number(median)} µs (95 %: {within}); {candidate.reason}"),
        tag("text", _named(name, roles), class_="entry" if roles else "tick", x=RACE_MARGIN, y=top + 6),
        interval,
        caps,
        mark,
        class_=f"racer{' winner' if winner else ''}",
        data_us=repr(median),
    )


def _named(name: str, roles: Sequence[str]) -> str:
    """The name with its roles, cut where it is longer than the picture."""
    end = "".join(f", {role}" for role in roles)
    most = MOST_LETTERS - len(end)
    return (name if len(name) <= most else name[: most - 1] + "…") + end


def _race_legend() -> Markup:
    x = RACE_MARGIN
    return tag(
        "g",
        tag("g", tag("circle", class_="median", cx=x + 4, cy=12, r=MARK - 1), class_="racer winner"),
        tag("text", "winner", class_="tick", x=x + 13, y=16),
        tag("g", tag("rect", class_="median", x=x + 66, y=8, width=8, height=8), class_="racer"),
        tag("text", "shipped today", class_="tick", x=x + 80, y=16),
        tag("rect", class_="band", x=x + 170, y=5, width=14, height=14),
        tag("text", "tied with the fastest", class_="tick", x=x + 190, y=16),
        class_="legend",
    )
