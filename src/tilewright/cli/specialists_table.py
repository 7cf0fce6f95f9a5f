"""The output of `tilewright specialists`, as text for a terminal and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from tilewright.coordinate.routing import CATEGORIES, PARTS, RULES
from tilewright.hardware.architectures import ARCHITECTURES
from tilewright.records import Json
from tilewright.specialists.base import Specialist
from tilewright.specialists.compiled_for import COMPILED_FOR, SOURCE

WIDTH = 110
"""Longer lines are hard to read."""


def lines(listed: Sequence[Specialist], width: int) -> Iterator[str]:
    """Yields the specialists, then the rules and the categories."""
    width = min(width, WIDTH)
    for each in listed:
        yield each.name
        for title, text in _rows(each):
            yield from _paragraph(f"  {title:<10}", text, width)
        yield ""
    yield "Which specialist gets a question: the first rule that applies"
    for number, rule in enumerate(RULES, 1):
        yield from _paragraph(f"  {number}. ", rule.text, width)
    yield from _paragraph("  ", PARTS, width)
    yield ""
    yield "Categories of recommendations"
    for category, names in CATEGORIES.items():
        yield f"  {category:<12}{', then '.join(names)}"


def _rows(each: Specialist) -> Iterator[tuple[str, str]]:
    yield "domain", each.domain
    if words := _words(each.names):
        yield "named by", ", ".join(words)
    if each.near:
        beside = "kernels" if each.writes_kernels else "GPUs and models"
        yield "", f"beside words about {beside}: {', '.join(_words(each.near))}"
    yield "examples", " · ".join(each.examples)
    yield ("returns", each.returns if each.works else f"nothing yet, only a route. Planned: {each.returns}")
    for place, need in enumerate(each.needs()):
        yield "needs" * (not place), f"{'✓' if need.met else '✗'} {need.what}: {need.detail}"
    if each.name in COMPILED_FOR:
        yield "hardware", f"{_ranges(COMPILED_FOR[each.name])} ({SOURCE})"
    elif each.writes_kernels:
        yield "hardware", "not compiled by Tilewright"
    if each.stated:
        yield "", f"its maker states: {each.stated}"
    yield "aliases", ", ".join(each.aliases) or "none"


def _words(names: Sequence[str]) -> list[str]:
    return [name.removeprefix("=").replace("*", "…").replace("#", "several") for name in names]


def _ranges(archs: Sequence[str]) -> str:
    without = [name for name in ARCHITECTURES if name not in archs]
    return f"{archs[0]} to {archs[-1]}" + (f", without {', '.join(without)}" if without else "")


def _paragraph(indent: str, text: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=" " * len(indent),
                            break_on_hyphens=False)  # fmt: skip
    return wrapped


def to_json(listed: Sequence[Specialist]) -> dict[str, Json]:
    """Returns the value of `specialists --json`; scripts rely on these names."""
    return {
        "specialists": [
            {
                "name": each.name, "aliases": [*each.aliases], "domain": each.domain,
                "named_by": [*_words(each.names)],
                "near": [*_words(each.near)],
                "examples": [*each.examples], "returns": each.returns, "works": each.works,
                "needs": [{"what": need.what, "met": need.met, "detail": need.detail} for need in each.needs()],
                "compiled_for": [*COMPILED_FOR.get(each.name, ())], "stated": each.stated or None,
            }
            for each in listed
        ],
        "rules": [rule.text for rule in RULES],
        "parts": PARTS,
        "categories": {category: [*names] for category, names in CATEGORIES.items()},
    }  # fmt: skip
