"""The frame of every HTML page. A page needs no scripts, fonts or other files.

Long parts are folded. A browser that cannot fold them shows everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tilewright.report.evidence import OptimizeEvidence
from tilewright.report.markup import Child, Markup, section, settings_table, table, tag
from tilewright.report.sourced import citing
from tilewright.report.style import STYLE
from tilewright.report.tune_evidence import TuneEvidence
from tilewright.report.two_steps import two_steps


class PageWords(Protocol):
    """The texts that every page has.

    predicted: whether the times on the page are predicted.
    command: repeats the run that the page shows.
    """

    @property
    def title(self) -> str: ...
    @property
    def subtitle(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def predicted(self) -> bool: ...
    @property
    def command_name(self) -> str: ...
    @property
    def command(self) -> str: ...
    def notes(self) -> Iterable[str]: ...
    def environment(self) -> Iterable[tuple[str, str]]: ...


def framed(words: PageWords, tiles: Iterable[tuple[str, str]], *sections: Child) -> str:
    """Returns a complete page. ``tiles``: pairs of name and number, shown at the top."""
    shown = [tag("div", tag("b", value), tag("span", name), class_="tile") for value, name in tiles]
    badge = tag("span", "predicted, not measured", class_="badge predicted") if words.predicted else None
    top = tag(
        "header",
        tag("h1", words.title, " ", badge),
        tag("p", words.subtitle, class_="soft"),
        tag("div", shown, class_="tiles"),
        tag("p", tag("strong", words.outcome), class_="outcome"),
        [tag("p", note) for note in words.notes()],
    )
    environment = section("Environment", settings_table(words.environment()))
    again = section(words.command_name, tag("pre", words.command, tabindex=0))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        tag("title", citing(f"{words.title}: {words.outcome}", words.outcome)),
        tag("style", Markup(STYLE)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', top, sections, environment, again), lang='en')}\n"


def two_step_sections(report: OptimizeEvidence | TuneEvidence) -> list[Markup]:
    """Returns the sections about a Triton kernel's translation to Tile IR."""
    return [section(part.heading, table(*part.table())) for part in two_steps(report)]
