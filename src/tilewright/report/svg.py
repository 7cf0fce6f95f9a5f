"""The elements of a chart, as SVG inside the page: the drawing, its axes, ticks, marks and legend.

Colours come from the page's style sheet by class, so they follow its light and dark settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilewright.report.markup import Child, Markup, tag

WIDE, NARROW = 960, 540
"""Width of a chart that fills the page, and of a chart beside another chart, in SVG units."""
HEIGHT = 320
LEFT, RIGHT, TOP, BOTTOM = 78, 18, 34, 46
MARK = 5.0
"""Radius of a mark in SVG units."""


@dataclass(frozen=True)
class Axis:
    """Maps values to positions: ``low`` to ``start``, ``high`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = map(math.log10 if self.logarithmic else float, (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Returns about ``most`` round values on the axis: 1, 2 and 5 times powers of ten.

        On a long logarithmic axis, returns only powers of ten.
        """
        if not self.logarithmic:
            least = (self.high - self.low) / most
            power = 10.0 ** math.floor(math.log10(least))
            step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
            first = math.ceil(self.low / step - 1e-9)
            return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1, 2, 5), (1,)):
            values = [factor * 10.0**n for n in decades for factor in factors]
            values = [value for value in values if self.low <= value <= self.high]
            if len(values) <= most + 2:
                return values
        return values[:: math.ceil(len(values) / most)]


def around(values: Iterable[float], start: float, end: float) -> Axis:
    """Returns an axis around positive values, with some space. The axis is logarithmic if the largest value is more
    than 5 times the smallest."""
    numbers = list(values)
    low, high = min(numbers), max(numbers)
    if high > 5 * low:
        return Axis(low / 1.25, high * 1.25, start, end, logarithmic=True)
    air = max(0.12 * (high - low), 0.02 * high)
    return Axis(max(0.0, low - air), high + air, start, end)


def label(value: float) -> str:
    """Returns the label of a tick at ``value``."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def drawing(name: str, size: tuple[int, float], *parts: Child) -> Markup:
    """Returns a chart of ``size`` (width, height). ``name``: the chart's description for screen readers."""
    box = f"0 0 {size[0]:.0f} {size[1]:.0f}"
    kind = {WIDE: "wide", NARROW: "narrow"}.get(size[0], "race")
    return tag("svg", tag("title", name), parts, class_=kind, viewBox=box, role="img", aria_label=name)


def text(content: str, x: float, y: float, kind: str = "tick", **attributes: str) -> Markup:
    return tag("text", content, class_=kind, x=x, y=y, **attributes)


def line(kind: str, x: tuple[float, float], y: tuple[float, float]) -> Markup:
    return tag("line", class_=kind, x1=x[0], x2=x[1], y1=y[0], y2=y[1])


def dot(x: float, y: float, radius: float = MARK, kind: str | None = None) -> Markup:
    return tag("circle", class_=kind, cx=x, cy=y, r=radius)


def legend(y: float, *entries: tuple[Child, str, float]) -> Markup:
    """Returns a legend at height ``y``. Each of ``entries``: a mark, its name, and the x position of the name."""
    return tag("g", [(mark, text(name, x, y)) for mark, name, x in entries], class_="legend")


def y_axis(y: Axis, name: str, width: int) -> Iterator[Markup]:
    for value in y.ticks():
        at = y(value)
        yield line("grid", (LEFT, width - RIGHT), (at, at))
        yield text(label(value), LEFT - 8, at + 4, "tick y", text_anchor="end", data_value=repr(value))
    middle = (y.start + y.end) / 2
    yield tag("text", name, class_="axis", transform=f"translate(14 {middle:.0f}) rotate(-90)", text_anchor="middle")


def x_axis(x: Axis, name: str, width: int, values: Iterable[float]) -> Iterator[Markup]:
    for value in values:
        yield text(label(value), x(value), HEIGHT - BOTTOM + 18, text_anchor="middle")
    yield text(name, (LEFT + width - RIGHT) / 2, HEIGHT - 8, "axis", text_anchor="middle")
