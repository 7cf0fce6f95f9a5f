"""Builds HTML and SVG elements as text, and the parts that every page has.

`tag` escapes every child and attribute that is not `Markup`. So text from the ledger cannot become an element: a diff
that contains ``<script>`` stays text. A page loads no other files; its ``Content-Security-Policy`` enforces this.
Content that may be wider than the page is in a box that scrolls.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

from tilewright.printable import printable
from tilewright.report.sourced import ids_of

_DIFF_LINES = {"+": "added", "-": "removed", "@": "hunk"}

VOID = frozenset({"meta", "br", "hr", "col", "wbr"})
"""HTML elements without an end tag."""

REMEMBERED = 80
"""The length of the longest text whose escaped form is remembered."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """Returns an element. In attribute names, ``class_`` becomes ``class``, and other underscores become ``-``.

    An attribute that is None or False is left out. An attribute that is True is written without a value. The attribute
    ``data-ledger`` has the ledger ids of the text.
    """
    if ids := ids_of(children):
        attributes["data_ledger"] = "\n".join(ids)
    given = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    shown = "".join(
        f" {key}" if value is True else f' {key}="{_text(value, quote=True)}"'
        for key, value in given
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    """Joins the children. Children that are not `Markup` are escaped."""
    return Markup("".join(map(_escaped, children)))


def _escaped(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (str, int, float)):
        return _text(child, quote=False)
    return joined(*child)


def _text(value: str | int | float, quote: bool) -> str:
    if isinstance(value, str) and len(value) <= REMEMBERED:
        return _remembered(value, quote)
    return html.escape(_short(value), quote)


@lru_cache(maxsize=4096)
def _remembered(value: str, quote: bool) -> str:
    """Returns the escaped text. The cells of long tables have few different texts."""
    return html.escape(_short(value), quote)


def _short(value: str | int | float) -> str:
    """Formats a number with at most two decimals. Shows the control characters of text as escapes."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return printable(str(value)).encode("utf-8", "replace").decode()


def breakable(text: str) -> Markup:
    """Returns text that can wrap only after its commas, so that no value of a long configuration is broken."""
    shown = Markup(joined(text).replace(",", f",{tag('wbr')}"))
    return tag("span", shown, data_ledger="\n".join(ids)) if (ids := ids_of([text])) else shown


# Parts of a page


def section(title: str, *content: Child) -> Markup:
    return tag("section", tag("h2", title), content)


def scroll(*content: Child) -> Markup:
    """Returns a box that scrolls if its content is wider than the page, also by keyboard."""
    return tag("div", content, class_="scroll", tabindex=0)


def bullets(texts: Iterable[Child]) -> Markup:
    return tag("ul", [tag("li", text) for text in texts])


def folded(title: str, *content: Child) -> Markup:
    return tag("details", tag("summary", title), tag("div", content))


def table(header: Sequence[str], rows: Iterable[Sequence[Child]], numbers: Iterable[int] = ()) -> Markup:
    """Returns a table that scrolls if it is wider than the page. ``numbers``: the indices of columns that hold numbers.

    On a narrow page each row becomes a block, and each cell shows the name of its column.
    """
    kinds = dict.fromkeys(numbers, "number")
    head = tag("tr", [tag("th", name, class_=kinds.get(n)) for n, name in enumerate(header)])
    body = [
        tag("tr", [tag("td", cell, class_=kinds.get(n), data_label=header[n] or None) for n, cell in enumerate(row)])
        for row in rows
    ]
    return scroll(tag("table", tag("thead", head), tag("tbody", body), class_="stacked"))


def settings_table(values: Iterable[tuple[str, str]]) -> Markup:
    """Returns a table of names and values, in which long values wrap."""
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in values]
    return tag("table", tag("tbody", rows), class_="plain")


def diff(text: str) -> Markup:
    """Returns a unified diff with coloured lines. The signs stay, for readers who cannot tell the colours apart."""
    lines = text.rstrip("\n").split("\n")
    kinds = (None if line[:3] in ("+++", "---") else _DIFF_LINES.get(line[:1]) for line in lines)
    shown = (tag("span", line, class_=kind) for line, kind in zip(lines, kinds, strict=True))
    return tag("pre", tag("code", shown), class_="diff", tabindex=0)
