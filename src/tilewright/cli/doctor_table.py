"""`tilewright doctor`: the command, and what `doctor` examined as a table."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.table import Table
from rich.text import Text

from tilewright.cli import doctor as examination
from tilewright.cli import terminal
from tilewright.cli.doctor import Probe
from tilewright.cli.shared import AsJson, print_json


def doctor(as_json: AsJson = False) -> None:
    """What works on this machine, and how to fix what does not.

    Exit code 0 where everything works that inspecting and predicting need; a GPU is not among it.

    Example: `tilewright doctor`
    """
    probes = examination.examine()
    if as_json:
        print_json(examination.to_json(probes))
    else:
        console = terminal.stdout()
        console.print(table(probes))
        console.print(f"\n{examination.verdict(probes)}")
    if not examination.healthy(probes):
        raise typer.Exit(3)


def table(probes: Sequence[Probe]) -> Table:
    """What works, what does not, and how to fix it."""
    rows = Table(box=None, show_header=False, pad_edge=False)
    rows.add_column(width=1)
    rows.add_column(no_wrap=True)
    rows.add_column(ratio=1)
    for probe in probes:
        rows.add_row(_mark(probe), Text(probe.name, style="bold"), _detail(probe))
    return rows


def _mark(probe: Probe) -> Text:
    if probe.ok is None:
        return Text("–", style="dim")
    if probe.ok:
        return Text("✓", style="green")
    return Text("✗", style="red") if probe.required else Text("!", style="yellow")


def _detail(probe: Probe) -> Text:
    return Text(probe.detail + (f"\nfix: {probe.fix}" if probe.fix else ""))
