"""The output of `tilewright tuned`: the stored winners, the evidence of one winner, and the verdicts of a new race."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.cli.terminal_table import NOTHING, ROWS, Column, TerminalTable, first, not_shown
from tilewright.records import Json
from tilewright.runtime.store import evidence
from tilewright.runtime.store.verifying import Verified
from tilewright.runtime.store.winners import Winner

KEY_SHOWN = 12
STYLES = {"wrong": "bold red", "drifted": "yellow", "cannot": "dim", "holds": "green"}
"""Styles of the verdicts, the most urgent first."""


def listed(winners: Iterator[Winner], called: Callable[[Winner], str], show_all: bool) -> RenderableType:
    """Returns a table with one row for each winner. ``called``: returns the kernel's name for a winner."""
    table = _table("key", "kernel", "arrays", "board", "µs", "× shipped", "tuned", "by")
    for winner in winners if show_all else islice(winners, ROWS):
        times = _number(evidence.winner_us(winner), 2), _number(evidence.speedup(winner), 3)
        place = called(winner), evidence.shapes(winner), evidence.board(winner)
        table.add((winner.key[:KEY_SHOWN], *place, *times, winner.created[:10], _by(winner)), winner.label)
    return Group(table, *not_shown([(called(winner), "") for winner in winners], "tuned call"))


def shown(winner: Winner, others: Sequence[Winner]) -> RenderableType:
    """Returns everything that is stored about one winner: the parts of its key, and the outcome of every configuration.

    others: the results of other machines for this key, which are not launched."""
    parts = _table("part of the key", "value")
    for name, value in winner.parts.items():
        parts.add((name, _value(value)))
    outcomes = _table("configuration", "status", "µs", "±", "samples")
    for place, outcome in enumerate(winner.outcomes):
        label = Text(str(outcome.get("label", "")), style="bold" if place == winner.index else "")
        times = _number(outcome.get("us"), 2), _number(outcome.get("error_margin_us"), 2)
        status, samples = str(outcome.get("status", "")), str(outcome.get("samples") or NOTHING)
        outcomes.add((label, status, *times, samples), str(outcome.get("reason", "")))
    gain, module = evidence.speedup(winner), evidence.module(winner)
    heading = [
        Text.assemble(f"{module}." if module else "", (winner.kernel, "bold"), f"  {winner.key}"),
        Text(f"{winner.label}{f', {gain:.3f}× shipped' if gain else ''}; {winner.created} by {_by(winner)}"),
        *(Text(f"not launched: {other.label}; {other.created} by {_by(other)}") for other in others),
    ]
    rest = [outcomes] if winner.outcomes else [Text("no evidence is stored with this winner")]
    return Group(*heading, Text(), parts, Text(), *rest)


def _by(winner: Winner) -> str:
    return f"{winner.origin} on {winner.came_from}" if winner.came_from else winner.origin


def verified(results: Sequence[Verified], called: Callable[[Verified], str], show_all: bool) -> RenderableType:
    """Returns a table with one row for each verdict and its reason, the bad verdicts first."""
    table = _table("key", "kernel", "arrays", "configuration", "verdict", "µs")
    ordered = sorted(results, key=lambda result: list(STYLES).index(result.verdict))
    shown = first(ordered, show_all)
    for result in shown:
        note = f" (tuned with {result.tuned_with})" if result.tuned_with else ""
        place = called(result), result.shapes, result.label
        verdict = Text(result.verdict, style=STYLES[result.verdict])
        table.add((result.key[:KEY_SHOWN], *place, verdict, _number(result.us, 2)), result.reason + note)
    hidden = [(result.verdict, result.reason) for result in ordered[len(shown) :]]
    return Group(table, *not_shown(hidden, "tuned call"))


RIGHT = ("µs", "±", "× shipped", "samples")
SPARE = {"arrays": 1, "configuration": 1, "board": 2, "tuned": 3, "by": 3, "samples": 3}


def _table(*names: str) -> TerminalTable:
    return TerminalTable(*(Column(name, right=name in RIGHT, spare=SPARE.get(name, 0)) for name in names))


def _number(value: Json, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) else NOTHING


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {part}" for name, part in value.items())
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)
