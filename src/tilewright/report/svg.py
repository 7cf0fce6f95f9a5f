"""Elements of HTML and SVG as text, and the scales of a chart.

`tag` escapes every child and attribute that is not already a `Markup`, so nothing out of a record can become
an element: a diff with ``<script>`` in it stays a diff.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

VOID = frozenset({"meta", "br", "hr", "col"})
"""Elements of HTML without an end tag."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """An element. ``class_`` is ``class``, ``_`` within a name is ``-``; None and False leave out an attribute."""
    given = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    said = "".join(
        f" {key}" if value is True else f' {key}="{html.escape(_short(value))}"'
        for key, value in given
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{said}>")
    return Markup(f"<{name}{said}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    """The children one after the other."""
    return Markup("".join(map(_one, children)))


def _one(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (str, int, float)):
        return html.escape(_short(child), quote=False)
    return joined(*child)


def _short(value: str | int | float) -> str:
    """Positions to a hundredth of a pixel; text without what XML cannot hold."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return "".join(c for c in str(value) if c >= " " or c in "\n\t").encode("utf-8", "replace").decode()


@dataclass(frozen=True)
class Scale:
    """From a value to a position: ``low`` is drawn at ``start``, ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (self._bent(one) for one in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def _bent(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value

    def ticks(self, most: int = 6) -> list[float]:
        """Round values within the scale: 1, 2 and 5 times powers of ten; of a long logarithmic one, the powers."""
        if not self.logarithmic:
            step = _round_step((self.high - self.low) / most)
            first = math.ceil(self.low / step - 1e-9)
            return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1, 2, 5), (1,)):
            found = [factor * 10.0**n for n in decades for factor in factors]
            found = [value for value in found if self.low <= value <= self.high]
            if len(found) <= most + 2:
                return found
        return found[:: math.ceil(len(found) / most)]


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def around(values: Iterable[float], start: float, end: float) -> Scale:
    """A scale that holds positive values with some air: logarithmic where they span more than a factor of 5."""
    found = list(values)
    low, high = min(found), max(found)
    if high > 5 * low:
        return Scale(low / 1.25, high * 1.25, start, end, logarithmic=True)
    air = max(0.12 * (high - low), 0.02 * high)
    return Scale(max(0.0, low - air), high + air, start, end)


def label(value: float) -> str:
    """The text of a tick."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
