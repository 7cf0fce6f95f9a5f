"""The charts of a profile: the split of a GPU's time as a bar, and the time line of one step."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.profile.figures import Bar, GpuProfile, TimeLine
from tilewright.report import svg
from tilewright.report.cells import number
from tilewright.report.markup import Markup, tag
from tilewright.report.svg import LEFT, RIGHT, WIDE, Axis

COLOURS = {
    "compute": "mix0", "exposed communication": "mix1", "communication": "mix1", "exposed copy": "mix2", "copy": "mix2",
    "host late": "mix5", "dependency": "mix7", "unknown": "mix6", "launch": "mix4", "wait": "mix3",
}  # fmt: skip
"""Maps a kind of time or activity to its class in the style sheet."""
PARTS = ("compute", "exposed communication", "exposed copy", "host late", "dependency", "unknown")
"""The parts of the bar. The last three are parts of the idle time."""
LEGEND = {
    "compute": "compute", "communication": "communication", "copy": "copy", "host late": "idle, host late",
    "dependency": "idle, dependency", "unknown": "idle, cause unknown", "launch": "host launches", "wait": "host waits",
}  # fmt: skip
BAR, LANE, NARROWEST = 34, 26, 0.6
BOTTOM = 40

KEY = tag(
    "ul",
    [
        tag("li", tag("svg", tag("rect", class_=COLOURS[what], width=12, height=12), viewBox="0 0 12 12"), name)
        for what, name in LEGEND.items()
    ],
    class_="key",
)


def split_bar(gpu: GpuProfile) -> Markup:
    """Draws the time of a GPU as one bar of its parts."""
    x = Axis(0.0, 1.0, LEFT, WIDE - RIGHT)
    return svg.drawing(f"the time of {gpu.label} by parts", (WIDE, BAR + 20), list(_parts(gpu, x)))


def _parts(gpu: GpuProfile, x: Axis) -> Iterator[Markup]:
    at = 0.0
    for name in PARTS:
        share = gpu.value(name) or 0.0
        if share > 0:
            words = f"{LEGEND.get(name, name)}: {share:.1%} of {number(gpu.value('time'))} ms"
            yield _box(COLOURS[name], (x(at), 4), (x(at + share) - x(at), BAR), words)
        at += share


def _box(colour: str, corner: tuple[float, float], size: tuple[float, float], words: str) -> Markup:
    width = max(size[0], NARROWEST)
    shape = tag("rect", tag("title", words), class_=colour, x=corner[0], y=corner[1], width=width, height=size[1])
    return tag("g", shape)


def timeline(line: TimeLine) -> Markup:
    """Draws a row of bars for the host, and below it a row for each stream of the GPU."""
    x = Axis(0.0, max(line.us, 1e-3), LEFT, WIDE - RIGHT)
    height = len(line.lanes) * LANE + BOTTOM
    grid = [svg.line("grid", (x(at), x(at)), (4, height - BOTTOM + 4)) for at in x.ticks()]
    ticks = [svg.text(svg.label(at), x(at), height - 22, text_anchor="middle") for at in x.ticks()]
    name = svg.text(f"µs of {line.name}", (LEFT + WIDE - RIGHT) / 2, height - 4, "axis", text_anchor="middle")
    lanes = [_lane(n, lane, bars, x) for n, (lane, bars) in enumerate(line.lanes.items())]
    return svg.drawing(f"time line of {line.name}", (WIDE, height), grid, ticks, name, lanes)


def _lane(n: int, name: str, bars: tuple[Bar, ...], x: Axis) -> Markup:
    top = n * LANE + 4
    label = svg.text(name, LEFT - 8, top + LANE / 2 + 2, "tick", text_anchor="end")
    boxes = [
        _box(COLOURS[bar.kind], (x(bar.at_us), top + 2), (x(bar.at_us + bar.us) - x(bar.at_us), LANE - 6), _words(bar))
        for bar in bars
    ]
    return tag("g", label, boxes)


def _words(bar: Bar) -> str:
    more = f" and {bar.count - 1} more" if bar.count > 1 else ""
    return f"{bar.name}{more}: {bar.us:.1f} µs at {bar.at_us:.1f} µs"
