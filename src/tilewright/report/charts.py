"""The charts of a report, as SVG that stands inside the page.

    latencies   time of each iteration with its 95 % interval, the incumbent's line, and the baseline's
    roofline    arithmetic rate over intensity, each workload before and after, under the board's roofs

Colours come from the page's style sheet by class, so they follow light and dark. A mark differs from another
in shape as well as in colour, and says its numbers when pointed at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tilewright.ledger.records import Metrics, RunRecord
from tilewright.report.collected import Compared, Point, Report, time_us
from tilewright.report.svg import Child, Markup, Scale, around, joined, label, tag
from tilewright.report.words import between, number

WIDE, NARROW = 960, 540
"""Widths: of a chart that stands alone, and of one that has another beside it."""
HEIGHT = 320
LEFT, RIGHT, TOP, BOTTOM = 78, 18, 34, 46
STRIP = 22
"""Below the plot of latencies: where those stand that have none."""
MOST_X_LABELS = 14
MARK = 5.0
"""Radius of a mark."""
TOGETHER = 14
"""Marks as close as that share a label."""


# Latency per iteration ---------------------------------------------------------------------------------


def latencies(report: Report) -> Markup | None:
    """None where not even the baseline has a time."""
    points = report.points
    timed = [point for point in points if point.ms is not None]
    if not timed:
        return None
    bounds = [edge for point in timed for edge in point.interval_ms or ()]
    y = around([*(point.ms or 0.0 for point in timed), *(edge for edge in bounds if edge > 0)], HEIGHT - BOTTOM, TOP)
    x = Scale(-0.5, max(points[-1].n, 1) + 0.5, LEFT, WIDE - RIGHT)
    name = "latency, ms" if report.run.measured else "predicted latency, ms"
    axis = HEIGHT - BOTTOM - STRIP
    return drawing(
        f"{name} of each iteration",
        (WIDE, HEIGHT),
        _y_axis(y, name, WIDE),
        tag("line", class_="grid", x1=LEFT, x2=WIDE - RIGHT, y1=axis, y2=axis),
        _iteration_labels(points, x),
        _baseline(points, y),
        tag("path", class_="incumbent", d=_incumbent_path(points, x, y)),
        [_point(point, x, y, name) for point in points],
        _legend(),
    )


def _iteration_labels(points: Sequence[Point], x: Scale) -> Iterator[Markup]:
    step = -(-len(points) // MOST_X_LABELS)
    for point in points[::step]:
        yield tag("text", point.n, class_="tick", x=x(point.n), y=HEIGHT - BOTTOM + 18, text_anchor="middle")
    yield tag("text", "iteration", class_="axis", x=(LEFT + WIDE - RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle")


def _baseline(points: Sequence[Point], y: Scale) -> Markup | None:
    if points[0].ms is None:
        return None
    at = y(points[0].ms)
    return tag("line", class_="baseline", x1=LEFT, x2=WIDE - RIGHT, y1=at, y2=at)


def _incumbent_path(points: Sequence[Point], x: Scale, y: Scale) -> str:
    """Steps from each kept iteration to the next."""
    path, at = "", None
    for point in points:
        if point.incumbent_ms is None:
            continue
        here = f"{x(point.n):.2f}"
        path += f"M{here} {y(point.incumbent_ms):.2f}" if at is None else f"H{here}V{y(point.incumbent_ms):.2f}"
        at = point.incumbent_ms
    return f"{path}H{x(points[-1].n + 0.5):.2f}" if path else "M0 0"


def _point(point: Point, x: Scale, y: Scale, name: str) -> Markup:
    """A mark, its interval and what it says when pointed at. What has no time stands on the axis as a cross."""
    at = x(point.n)
    said = f"{point.n}. {point.optimization}: {point.status}"
    if point.ms is None:
        drawn = tag("path", d=_cross(at, HEIGHT - BOTTOM - STRIP / 2 + 2))
        return tag("g", tag("title", f"{said}, no time"), drawn, class_="point crash", data_n=point.n)
    said += f", {name} {number(point.ms)}"
    interval = None
    if point.interval_ms is not None and 0 < point.interval_ms[0] <= point.interval_ms[1] < float("inf"):
        low, high = point.interval_ms
        said += f" (95 %: {between(point.interval_ms)})"
        interval = joined(
            tag("line", class_="interval", x1=at, x2=at, y1=y(low), y2=y(high)),
            [tag("line", class_="cap", x1=at - 4, x2=at + 4, y1=y(edge), y2=y(edge)) for edge in (low, high)],
        )
    entry = None
    if point.status == "keep" and point.entry:
        entry = tag("text", point.entry, class_="entry", x=at + MARK + 3, y=y(point.ms) - MARK - 1)
    mark = tag("circle", cx=at, cy=y(point.ms), r=MARK)
    return tag("g", tag("title", said), interval, mark, entry, class_=f"point {point.status}", data_n=point.n)


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


def roofline(report: Report) -> Markup | None:
    """None where no workload has both arithmetic and a time: then there is nothing to place."""
    run = report.run
    placed = [one for one in report.workloads if _place(one.before) and _place(one.after)]
    ridges = [one.before.bound.ridge for one in placed if one.before.bound]
    if not placed or not ridges or run.bandwidth_gbs <= 0:
        return None
    ridge = max(ridges)
    peak = ridge * run.bandwidth_gbs / 1e3
    places = [place for one in placed for place in (_place(one.before), _place(one.after)) if place]
    intensities, rates = [place[0] for place in places], [place[1] for place in places]
    x = Scale(min(*intensities, ridge) / 3, max(*intensities, ridge) * 4, LEFT, NARROW - RIGHT, logarithmic=True)
    y = Scale(min(*rates, peak) / 3, max(*rates, peak) * 3, HEIGHT - BOTTOM, TOP, logarithmic=True)
    what = "" if run.measured else "predicted "
    return drawing(
        f"roofline of {run.board}, {run.dtype}: {what}rate before and after",
        (NARROW, HEIGHT),
        _y_axis(y, f"{what}TFLOP/s", NARROW),
        _x_axis(x, "FLOP per byte"),
        _roofs(run, x, y, ridge, peak),
        [_moved(n, one, x, y, what) for n, one in enumerate(report.workloads, 1) if one in placed],
        _numbers(report, x, y),
        _roofline_legend(),
    )


def _place(standing: Metrics) -> tuple[float, float] | None:
    """FLOP per byte, and TFLOP/s; None without arithmetic or a time."""
    us = time_us(standing)
    if not us or not standing.flops or not standing.bytes:
        return None
    return standing.flops / standing.bytes, standing.flops / us / 1e6


def _roofs(run: RunRecord, x: Scale, y: Scale, ridge: float, peak: float) -> Iterator[Markup]:
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


def _moved(n: int, one: Compared, x: Scale, y: Scale, what: str) -> Markup | None:
    before, after = _place(one.before), _place(one.after)
    if before is None or after is None:
        return None
    (x1, y1), (x2, y2) = ((x(place[0]), y(place[1])) for place in (before, after))
    said = f"{n}. {one.workload}: {what}{number(before[1])} → {number(after[1])} TFLOP/s"
    return tag(
        "g",
        tag("title", said),
        tag("line", class_="moved", x1=x1, y1=y1, x2=x2, y2=y2),
        tag("circle", class_="before", cx=x1, cy=y1, r=MARK - 1),
        tag("circle", class_="after", cx=x2, cy=y2, r=MARK - 1),
    )


def _numbers(report: Report, x: Scale, y: Scale) -> Iterator[Markup]:
    """Beside each dot its workload's number; dots that lie together share a label, such as ``1-3, 7``."""
    groups: list[tuple[float, float, list[int]]] = []
    for n, one in enumerate(report.workloads, 1):
        place = _place(one.after)
        if place is None or _place(one.before) is None:
            continue
        at = x(place[0]), y(place[1])
        near = (group for group in groups if math.hypot(group[0] - at[0], group[1] - at[1]) < TOGETHER)
        group = next(near, None)
        if group is None:
            groups.append((*at, [n]))
        else:
            group[2].append(n)
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


def _roofline_legend() -> Markup:
    parts = [
        joined(
            tag("circle", class_=name, cx=LEFT + 6 + at, cy=14.0, r=MARK - 1),
            tag("text", name, class_="tick", x=LEFT + 16 + at, y=18.0),
        )
        for name, at in (("before", 0), ("after", 80))
    ]
    note = "numbers: the workloads, as in the table"
    return tag("g", parts, tag("text", note, class_="tick", x=LEFT + 160.0, y=18.0), class_="legend")


# Parts of every chart ------------------------------------------------------------------------------------


def drawing(name: str, size: tuple[float, float], *parts: Child) -> Markup:
    """The element around a chart of ``size`` (width, height); ``name`` is what a screen reader says."""
    box = f"0 0 {size[0]:.0f} {size[1]:.0f}"
    kind = "wide" if size[0] == WIDE else "narrow"
    return tag("svg", tag("title", name), parts, class_=kind, viewBox=box, role="img", aria_label=name)


def _y_axis(y: Scale, name: str, width: int) -> Iterator[Markup]:
    for value in y.ticks():
        at = y(value)
        yield tag("line", class_="grid", x1=LEFT, x2=width - RIGHT, y1=at, y2=at)
        yield tag(
            "text", label(value), class_="tick y", x=LEFT - 8, y=at + 4, text_anchor="end", data_value=repr(value)
        )
    middle = (y.start + y.end) / 2
    yield tag("text", name, class_="axis", transform=f"translate(14 {middle:.0f}) rotate(-90)", text_anchor="middle")


def _x_axis(x: Scale, name: str) -> Iterator[Markup]:
    for value in x.ticks(8):
        yield tag("text", label(value), class_="tick", x=x(value), y=HEIGHT - BOTTOM + 18, text_anchor="middle")
    yield tag("text", name, class_="axis", x=(LEFT + NARROW - RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle")
