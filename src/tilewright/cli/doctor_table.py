"""`tilewright doctor`: the command, and what `doctor` examined as a table."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.table import Table
from rich.text import Text

from tilewright.cli import doctor as examination
from tilewright.cli import terminal
from tilewright.cli.doctor import Check
from tilewright.cli.shared import AsJson, print_json


def doctor(as_json: AsJson = False) -> None:
    """What works on this machine, and how to fix what does not.

    Exit code 0 where everything works that inspecting and predicting need; a GPU is not among it.

    Example: `tilewright doctor`
    """
    checks = examination.examine()
    if as_json:
        print_json(examination.to_json(checks))
    else:
        console = terminal.stdout()
        console.print(table(checks))
        console.print(f"\n{examination.verdict(checks)}")
    if not examination.healthy(checks):
        raise typer.Exit(3)


def table(checks: Sequence[Check]) -> Table:
    """What works, what does not, and how to fix it."""
    rows = Table(box=None, show_header=False, pad_edge=False)
    rows.add_column(width=1)
    rows.add_column(no_wrap=True)
    rows.add_column(ratio=1)
    for check in checks:
        rows.add_row(_mark(check), Text(check.name, style="bold"), _detail(check))
    return rows


def _mark(check: Check) -> Text:
    if check.ok is None:
        return Text("–", style="dim")
    if check.ok:
        return Text("✓", style="green")
    return Text("✗", style="red") if check.required else Text("!", style="yellow")


def _detail(check: Check) -> Text:
    return Text(check.detail + (f"\nfix: {check.fix}" if check.fix else ""))
