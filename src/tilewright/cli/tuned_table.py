"""What the tuned store holds as tables for a person. Pure, as `tables`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.runtime.store import evidence
from tilewright.runtime.store.verifying import Verified
from tilewright.runtime.store.winners import Winner

NOTHING = "–"
KEY_SHOWN = 12
STYLES = {"holds": "green", "drifted": "yellow", "wrong": "bold red", "cannot": "dim"}


def listed(winners: Iterable[Winner], called: Callable[[Winner], str]) -> RenderableType:
    """One line for each winner. ``called``: what its kernel is called beside the others of the store."""
    table = _table("key", "kernel", "arrays", "board", "configuration", "µs", "× shipped", "tuned", "by")
    for one in winners:
        table.add_row(
            one.key[:KEY_SHOWN],
            called(one),
            evidence.shapes(one),
            evidence.board(one),
            one.label,
            _number(evidence.winner_us(one), 2),
            _number(evidence.speedup(one), 3),
            one.created[:10],
            one.origin,
        )
    return table


def shown(winner: Winner) -> RenderableType:
    """All that is stored of one winner: what its key was made of, and what became of every configuration."""
    parts = _table("part of the key", "value")
    for name, value in winner.parts.items():
        parts.add_row(name, _value(value))
    outcomes = _table("configuration", "status", "µs", "±", "samples", "reason")
    for place, one in enumerate(winner.outcomes):
        outcomes.add_row(
            Text(str(one.get("label", "")), style="bold" if place == winner.index else ""),
            str(one.get("status", "")),
            _number(one.get("us"), 2),
            _number(one.get("error_margin_us"), 2),
            str(one.get("samples") or NOTHING),
            str(one.get("reason", "")),
        )
    gain, module = evidence.speedup(winner), evidence.module(winner)
    heading = [
        Text.assemble(f"{module}." if module else "", (winner.kernel, "bold"), f"  {winner.key}"),
        Text(f"{winner.label}{f', {gain:.3f}× shipped' if gain else ''}; {winner.created} by {winner.origin}"),
    ]
    rest = [outcomes] if winner.outcomes else [Text("no evidence came with it")]
    return Group(*heading, Text(), parts, Text(), *rest)


def verified(found: Sequence[Verified], called: Callable[[Winner], str]) -> RenderableType:
    """One line for each verdict, with its reason."""
    table = _table("key", "kernel", "arrays", "configuration", "verdict", "µs", "reason")
    for one in found:
        note = f" (tuned with {one.tuned_with})" if one.tuned_with else ""
        table.add_row(
            one.winner.key[:KEY_SHOWN],
            called(one.winner),
            evidence.shapes(one.winner),
            one.winner.label,
            Text(one.verdict, style=STYLES[one.verdict]),
            _number(one.us, 2),
            one.reason + note,
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in ("µs", "±", "× shipped", "samples") else "left",
                         overflow="fold")  # fmt: skip
    return table


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {one}" for name, one in value.items())
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)
