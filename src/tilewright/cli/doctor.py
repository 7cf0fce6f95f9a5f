"""`tilewright doctor`: shows what works on this machine, and how to fix the rest."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.table import Column, Table
from rich.text import Text

from tilewright.cli import terminal
from tilewright.cli.shared import HERE, AsJson, On, elsewhere, print_json
from tilewright.doctor.probes import Probe, examine, healthy, to_json, verdict


def doctor(on: On = HERE, as_json: AsJson = False) -> None:
    """Shows what works on this machine, or on another one, and how to fix what does not.

    Exit code 0 if inspecting and predicting work; both need no GPU.

    Example: `tilewright doctor`
    """
    executor = elsewhere(on)
    if executor is None:
        probes = examine()
    else:
        from tilewright.doctor.elsewhere import examine_at

        with executor:
            probes = examine_at(executor)
    if as_json:
        print_json(to_json(probes))
    else:
        console = terminal.stdout()
        console.print(table(probes))
        console.print(f"\n{verdict(probes)}")
    if not healthy(probes):
        raise typer.Exit(3)


def table(probes: Sequence[Probe]) -> Table:
    columns = Column(width=1), Column(no_wrap=True), Column(ratio=1, overflow="fold")
    rows = Table(*columns, box=None, show_header=False, pad_edge=False)
    for probe in probes:
        mark, style = ("✗", "red") if probe.required else ("!", "yellow")
        if probe.ok is not False:
            mark, style = ("✓", "green") if probe.ok else ("–", "dim")
        detail = Text(probe.detail + (f"\nfix: {probe.fix}" if probe.fix else ""))
        rows.add_row(Text(mark, style=style), Text(probe.name, style="bold"), detail)
    return rows
