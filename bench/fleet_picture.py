"""The picture and the tables of docs/fleet.md, made of the result of bench/fleet.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tilewright.report.markup import Markup, tag
from tilewright.report.svg import Axis, label

HELPS = 1.05
"""More GPUs or cores help if the whole takes at least so many times as long without them."""
RUNS = {"one client": "one front end", "many clients": "a front end for each 16 cores"}
DRAWN = (1, 4, 16, 64, 1000)
"""The numbers of GPUs that have a line in the picture."""
SHOWN = ((1, 1), (1, 16), (4, 64), (16, 256), (64, 1024), (256, 4096), (1000, 4096))
"""GPUs and cores of the fleets whose time is shown by stage."""
STAGES = ("start", "wait", "verify", "race", "repeated", "idle")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 1000, 420, 70, 40, 60
CHART, BARS = 470, 620
"""Where the chart ends, and where the bars begin."""
STYLE = """text { font: 13px sans-serif; fill: #24292f } .grid { stroke: #d0d7de } .title { font-weight: bold }
.line { fill: none; stroke-width: 2 } .one { stroke-dasharray: 4 4 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .grid { stroke: #30363d } }"""
COLOURS = ("#0969da", "#1a7f37", "#bf8700", "#cf222e", "#8250df", "#afb8c1")
Row = Mapping[str, Any]


def minutes(seconds: float) -> str:
    """Returns a time for people: ``12 s``, ``3.4 min`` or ``2.1 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines)


def rows_of(result: Mapping[str, Any]) -> str:
    """Returns the tables of times, and of where the time goes, as Markdown."""
    parts = []
    for name, title in (*RUNS.items(), ("with failures", "a front end for each 16 cores, with failures")):
        by = {(row["gpus"], row["cores"]): row for row in result[name]}
        cores = sorted({each for _, each in by})
        rows = ([f"{gpus:,}", *(minutes(by[gpus, each]["seconds"]) for each in cores)] for gpus, _ in _firsts(by))
        parts.append(
            f"{title[0].upper()}{title[1:]}:\n\n{table(['GPUs', *(f'{each:,} cores' for each in cores)], rows)}"
        )
    parts.append(table(["GPUs, cores", *STAGES, "cores compile"], _shares(result["many clients"])))
    return "\n\n".join(parts)


def _firsts(by: Mapping[tuple[int, int], Row]) -> Iterator[tuple[int, int]]:
    seen: set[int] = set()
    for gpus, cores in by:
        if gpus not in seen:
            seen.add(gpus)
            yield gpus, cores


def _shares(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if (row["gpus"], row["cores"]) in SHOWN:
            gpu, core = row["gpu_seconds"], row["core_seconds"]
            whole = sum(gpu.values())
            yield [f"{row['gpus']:,}, {row['cores']:,}", *(f"{gpu.get(stage, 0.0) / whole:.0%}" for stage in STAGES),
                   f"{core.get('compile', 0.0) / sum(core.values()):.0%}"]  # fmt: skip


def knees(result: Mapping[str, Any]) -> str:
    """Returns a table: for each number of GPUs, the number of cores from which more cores help less than 5 %; and the
    reverse."""
    rows, names = [], {"gpus": "GPUs", "cores": "cores"}
    for one, other in (("gpus", "cores"), ("cores", "gpus")):
        for value in sorted({row[one] for row in result["many clients"]}):
            enough = (f"{knee(result[name], one, value, other):,} {names[other]}" for name in RUNS)
            rows.append([f"{value:,} {names[one]}", *enough])
    return table(["with", *(f"enough with {title}" for title in RUNS.values())], rows)


def knee(rows: Sequence[Row], one: str, value: int, other: str) -> int:
    """Returns the least number of ``other`` that is nearly as fast as the most, for a number of ``one``."""
    seconds = {row[other]: row["seconds"] for row in rows if row[one] == value}
    best = min(seconds.values())
    return min(count for count, each in seconds.items() if each <= HELPS * best)


def picture(result: Mapping[str, Any]) -> Markup:
    """Returns the picture as SVG: the time by cores for some numbers of GPUs, and what the GPUs of some fleets do."""
    name = "Simulated time to tune by GPUs and compile cores, and what the GPUs do meanwhile"
    parts = (tag("title", name), tag("style", Markup(STYLE)), _times(result), _bars(result["many clients"]))
    box = f"0 0 {WIDTH} {HEIGHT}"
    return tag("svg", parts, xmlns="http://www.w3.org/2000/svg", viewBox=box, role="img", aria_label=name)


def _times(result: Mapping[str, Any]) -> list[Markup]:
    rows = result["many clients"]
    seconds = [row["seconds"] for run in RUNS for row in result[run]]
    x = Axis(1, max(row["cores"] for row in rows), LEFT, CHART, logarithmic=True)
    y = Axis(min(seconds) / 1.2, max(seconds) * 1.2, HEIGHT - BOTTOM, TOP, logarithmic=True)
    parts = [tag("text", "seconds until all workloads are tuned", class_="title", x=LEFT, y=20)]
    for value in y.ticks():
        parts += [tag("line", class_="grid", x1=LEFT, x2=CHART, y1=y(value), y2=y(value)),
                  tag("text", label(value), x=LEFT - 6, y=y(value) + 4, text_anchor="end")]  # fmt: skip
    for cores in sorted({row["cores"] for row in rows}):
        parts.append(tag("text", f"{cores:,}", x=x(cores), y=HEIGHT - BOTTOM + 18, text_anchor="middle"))
    parts.append(tag("text", "compile cores", x=(LEFT + CHART) / 2, y=HEIGHT - 22, text_anchor="middle"))
    for colour, gpus in zip(COLOURS, DRAWN, strict=False):
        for run in reversed(RUNS):
            own = [(row["cores"], row["seconds"]) for row in result[run] if row["gpus"] == gpus]
            points = " ".join(f"{x(cores):.1f},{y(each):.1f}" for cores, each in own)
            kind = "line one" if run == "one client" else "line"
            parts.append(tag("polyline", class_=kind, points=points, stroke=colour))
        at = y(next(row["seconds"] for row in rows[::-1] if row["gpus"] == gpus))
        parts.append(tag("text", f"{gpus:,} GPU{'s' * (gpus > 1)}", x=CHART + 8, y=at + 4, style=f"fill: {colour}"))
    dashed = tag("text", "dashed: all configurations pass one front end", x=LEFT, y=HEIGHT - 4)
    return [*parts, dashed]


def _bars(rows: Sequence[Row]) -> list[Markup]:
    wide, high = WIDTH - BARS - 20, 28
    parts = [tag("text", "what the GPUs do (GPUs, cores)", class_="title", x=BARS, y=20)]
    shown = [row for row in rows if (row["gpus"], row["cores"]) in SHOWN]
    for place, row in enumerate(shown):
        top, left, whole = TOP + place * (high + 18), float(BARS), sum(row["gpu_seconds"].values())
        parts.append(tag("text", f"{row['gpus']:,}, {row['cores']:,}", x=BARS, y=top + 10))
        for colour, stage in zip(COLOURS, STAGES, strict=True):
            share = row["gpu_seconds"].get(stage, 0.0) / whole * wide
            parts.append(
                tag("rect", tag("title", stage), x=left, y=top + 14, width=share, height=high - 12, fill=colour)
            )
            left += share
    for place, (colour, stage) in enumerate(zip(COLOURS, STAGES, strict=True)):
        at, below = BARS + place % 4 * 95, HEIGHT - BOTTOM + 8 + place // 4 * 22
        parts += [tag("rect", x=at, y=below, width=12, height=12, fill=colour),
                  tag("text", stage, x=at + 18, y=below + 11)]  # fmt: skip
    return parts
