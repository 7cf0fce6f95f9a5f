"""Finds the numbers of a report, and where each comes from: the element of the page that holds it names ledger ids."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import accumulate, product
from typing import Any

from tilewright.hardware import prediction_error
from tilewright.race.stats import geometric_mean
from tilewright.report.sourced import stored_at

NUMBER = re.compile(r"(?<![\w.,/:-])[+−-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w:]|\.\d)")
SCALES = {"tick", "axis", "legend", "roof"}
"""Classes of a chart's scale: the ticks, the names of the axes, and what the marks mean."""
SAID = (
    prediction_error.times(), prediction_error.times().replace("p", "P", 1),
    *(prediction_error.typical(kind) for kind in prediction_error.KINDS),
    "the median of 95 %", "95 %",
)  # fmt: skip
"""Constants of the product, which name their own source, and the confidence of intervals."""


@dataclass(frozen=True)
class Piece:
    """Some text of a page, and the ids of the elements around it."""

    text: str
    ids: tuple[str, ...]
    quoted: bool
    """In a block of code, or in a chart's scale."""


class Pieces(HTMLParser):
    """The texts of a page."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[Piece] = []
        self.feed(page.replace("<wbr>", ""))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        names = {name for name, _ in self.open}
        classes = {each for _, attributes in self.open for each in (attributes.get("class") or "").split()}
        if "style" in names or not data.strip():
            return
        ids = [
            each for _, attributes in self.open for each in (attributes.get("data-ledger") or "").split("\n") if each
        ]
        self.pieces.append(Piece(data, tuple(ids), "pre" in names or bool(classes & SCALES)))


def texts_in(value: Any) -> Iterator[str]:
    """All texts of records with a letter in them, and the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (key for key in value)
        for inner in value.values():
            yield from texts_in(inner)
        if all(isinstance(inner, (str, int, float, bool, type(None))) for inner in value.values()):
            yield ",".join(f"{name}={'auto' if inner is None else inner}" for name, inner in value.items())
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner)


class Quotes:
    """Removes from a text what stands so in the records."""

    def __init__(self, records: Any, also: Iterable[str] = ()):
        found = {" ".join(text.split()) for text in (*texts_in(records), *also)}
        found = {text for text in found if re.search(r"[^\W\d]", text) or ":" in text}
        self.texts = sorted(found | {*SAID}, key=len)[::-1]

    def without(self, text: str) -> str:
        text = " ".join(text.split())
        for quoted in self.texts:
            if re.search(r"\d", quoted):
                text = text.replace(quoted, " ")
        return text


def numbers_in(text: str) -> list[str]:
    return NUMBER.findall(text)


def leaves(value: Any) -> Iterator[float]:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, (int, float)):
        yield float(value)
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)


def scaled(values: Iterable[float]) -> set[float]:
    """Numbers as they are, in thousands, and in percent."""
    return {each for value in values for each in (value, value / 1e3, 100 * value)}


def derived(ids: Iterable[str], values: Iterable[Any]) -> set[float]:
    """The numbers that follow from the values at some ids: themselves, in another unit, their ratios, means, counts."""
    ids, values = list(ids), list(values)
    plain = [each for value in values for each in leaves(value)][:400]
    words = [text for value in values for text in (value if isinstance(value, list) else [value])]
    plain += [float(token) for text in words if isinstance(text, str) for token in re.findall(r"\d+(?:\.\d+)?", text)]
    found = scaled(plain)
    for value in filter(None, plain):
        found |= {1 / value, 1e6 / value, 100 * (value - 1), 100 * (1 - value), 100 * (1 / value - 1)}
    few = plain[:12]
    for a, b in product(few, few):
        if b:
            found |= {a / b, 100 * a / b, a / b / 1e6, 100 * (a - b)}
    for group in alike(ids, values):
        pairs = [a / b for a, b in zip(group[::2], group[1::2], strict=False) if b]
        for some in (group, pairs):
            mean = geometric_mean([each for each in some if each > 0])
            found |= {mean, 1 / mean, mean / 1e3} if mean else set()
        found |= {float(len(group)), *accumulate(sorted(group)), *accumulate(sorted(group, reverse=True))}
    containers = [len(value) for value in values if isinstance(value, (list, dict))]
    found |= {float(each) for each in (len(values), sum(containers), *containers)}
    found |= {float(a - b) for a, b in product(containers, containers)}
    found |= {float(sum(1 for value in values if value == one)) for one in ("keep", "revert", "crash")}
    steps = [value for value in values if isinstance(value, dict) and "finish" in value]
    found |= {float(len(steps)), float(sum(all(each["state"] == "done" for each in some.values()) for some in steps))}
    found |= {float(part) + more for each in ids for part in each.split("/") if part.isdecimal() for more in (0, 1)}
    return found


def alike(ids: list[str], values: list[Any]) -> Iterator[list[float]]:
    """The numbers at ids that differ in a position alone, such as those of all workloads."""
    groups: dict[str, list[float]] = {}
    for each, value in zip(ids, values, strict=True):
        groups.setdefault(re.sub(r"\d+", "*", each), []).extend(leaves(value))
    yield from groups.values()


def close(token: str, value: float) -> bool:
    """Whether a number of a text is a value, rounded to its digits."""
    text = token.replace(",", "").replace("−", "-")
    decimals = len(text.partition("e")[0].partition(".")[2])
    scale = 10 ** int(text.partition("e")[2] or 0)
    return math.isfinite(value) and abs(float(text) - value) <= 0.5001 * 10**-decimals * scale + 1e-9 * abs(value)


def unexplained(page: str, records: dict[str, Any], also: Iterable[str] = ()) -> list[str]:
    """The numbers of a page that do not follow from the ids of their element, with the text around."""
    quotes, wrong = Quotes(records, also), []
    for piece in Pieces(page).pieces:
        if piece.quoted:
            continue
        tokens = numbers_in(quotes.without(piece.text))
        if not tokens:
            continue
        values = [stored_at(records, each) for each in piece.ids]
        known = derived(piece.ids, values)
        wrong += [f"{token} in: {piece.text}" for token in tokens if not any(close(token, each) for each in known)]
    return wrong


def assert_explained(evidence: Any, least: int) -> None:
    """Every number of a run's Markdown and page has its source, and there are at least so many."""
    page, records = evidence.html(), evidence.details.records
    wrong = unexplained(page, records) + unexplained_in_markdown(evidence.markdown(), page, records)
    assert wrong == [], wrong
    assert len(sourced_numbers(page)) >= least


def sourced_numbers(page: str) -> set[str]:
    """The numbers of a page in elements that name ids."""
    return {token for piece in Pieces(page).pieces if piece.ids for token in numbers_in(piece.text)}


def unexplained_in_markdown(text: str, page: str, records: dict[str, Any], also: Iterable[str] = ()) -> list[str]:
    """The numbers of a Markdown report that neither the page has with its ids, nor a record as text."""
    outside = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    plain = re.sub(r"\\([\\`*\[\]<|~_])", r"\1", re.sub(r"^ *\d+\. ", "", outside, flags=re.MULTILINE))
    quotes, known = Quotes(records, also), sourced_numbers(page)
    return [f"{token} in: {line}" for line in plain.splitlines()
            for token in numbers_in(quotes.without(line.replace(" | ", "  "))) if token not in known]  # fmt: skip
