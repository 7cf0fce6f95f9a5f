"""`tilewright casebook`: finds earlier cases that are similar to a question, with their verified remedies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import terminal
from tilewright.cli.shared import AsJson, print_json
from tilewright.errors import RequestError

if TYPE_CHECKING:
    from tilewright.coordinate.casebook.book import Casebook, Coverage
    from tilewright.coordinate.casebook.case import Precedent
    from tilewright.coordinate.casebook.recall import Match
    from tilewright.records import Json

Question = Annotated[str | None, typer.Argument(metavar="QUESTION", help="What is slow, in your own words.")]
Books = Annotated[
    list[Path] | None, typer.Option("--book", metavar="DIR", help="Also read this casebook. May be repeated.")
]
Most = Annotated[int, typer.Option("--top", min=1, help="How many cases are shown.")]
Listed = Annotated[bool, typer.Option("--list", help="List all cases.")]


def casebook(
    question: Question = None, book: Books = None, top: Most = 3, listed: Listed = False, as_json: AsJson = False
) -> None:
    """Finds documented cases for a performance question: the problem, how to apply and verify its remedy, and the
    measured effect.

    The first line begins with CASEBOOK: and says which cases match, or that no case matches. Cases come from
    Tilewright, from the runs in your ledger, and from other casebooks (--book, or the variable TILEWRIGHT_CASEBOOKS).

    Example: `tilewright casebook "my softmax reaches a third of the bandwidth"`
    """
    from tilewright.coordinate.casebook import book as books

    found = books.casebook(book or ())
    for problem in found.problems:
        terminal.note(problem)
    if listed:
        _list(found, as_json)
        return
    if question is None or not question.strip():
        raise RequestError('no question; ask one: tilewright casebook "my softmax is slow", or --list')
    answer = found.ask(question, top)
    books.remember(answer)
    coverage = books.coverage()
    if as_json:
        matches = [{**_json(match.case), "confidence": match.confidence} for match in answer.matches]
        rate = {"questions": coverage.questions, "no_match_rate": coverage.no_match_rate}
        print_json({"trace": answer.trace, "matches": matches, **rate, "problems": list(found.problems)})
        return
    print(answer.trace)
    for match in answer.matches:
        print("\n".join(("", *_shown(match))))
    print(f"\n{_rate(coverage)}")


def _list(found: Casebook, as_json: bool) -> None:
    if as_json:
        print_json([_json(case) for case in found.cases])
        return
    for case in found.cases:
        print(f"{case.name}  {case.title} ({case.maturity})")


def _json(case: Precedent) -> dict[str, Json]:
    from tilewright.ledger.codec import to_json

    return {"name": case.name, "title": case.title, **to_json(case)}


def _shown(match: Match) -> Iterator[str]:
    case = match.case
    yield f"{case.name}: {case.title}"
    yield f"  confidence {match.confidence}, {case.maturity}, {case.accuracy_risk}; {case.where}"
    for name, text in case.shown.items():
        yield f"  {name}: {text}"
    for one in case.measured:
        yield f"  Measured: {one}"


def _rate(coverage: Coverage) -> str:
    rate = coverage.no_match_rate
    if rate is None:
        return "the questions are not counted: the folder of the ledger cannot be written"
    return f"{coverage.questions} questions so far, {coverage.without_match} without a match ({rate:.0%})"
