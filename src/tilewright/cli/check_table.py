"""A verdict for a person: what was wrong first, then what was compared, then what was not.

Pure: a verdict goes in, something that rich can print comes out. Text of a task is never read as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.verify.checking import Verdict
from tilewright.verify.examining import Result
from tilewright.verify.report import command

STYLES = {"correct": "green", "incorrect": "bold red", "unverified": "yellow"}
NOTHING = "–"
AT_MOST = 12
"""Lines of a list of what was not compared."""


def checked(verdict: Verdict, where: str, options: Sequence[str] = ()) -> RenderableType:
    """Cases of one origin that are correct share a row, which shows the worst of them."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("dimensions", max_width=48)
    for name in ("data", "memory", "verdict"):
        table.add_column(name, no_wrap=True)
    for name in ("worst\nerror", "allowed", "trusted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", min_width=16)
    for rows in _grouped(verdict.results):
        table.add_row(*_cells(rows))
    return Group(table, *_conclusion(verdict, where, options), Text())


def _grouped(results: Sequence[Result]) -> list[list[Result]]:
    """Edges and hidden draws that are correct as one row, the others alone; what was not compared has a list."""

    def key(result: Result) -> object:
        apart = result.verdict != "correct" or result.case.why not in ("edge", "hidden")
        return id(result) if apart else result.case.why

    shown = [one for one in results if one.verdict != "unverified"]
    return [list(rows) for _, rows in groupby(sorted(shown, key=_order), key)]


def _order(result: Result) -> tuple[int, int]:
    return (
        ("incorrect", "correct").index(result.verdict),
        ("edge", "hidden").index(result.case.why) + 1 if result.case.why in ("edge", "hidden") else 0,
    )


def _cells(rows: Sequence[Result]) -> list[Text]:
    shown = max(rows, key=lambda one: one.error.share if one.error else 0.0)
    case, error = shown.case, shown.error
    dims = ", ".join(f"{name}={value}" for name, value in case.dims)
    if len(rows) > 1:
        dims = f"{len(rows)} {'edges' if case.why == 'edge' else 'hidden draws'}, worst {dims}"
    memory = " ".join(word for word in (case.layout, case.run) if word not in ("row-major", "plain"))
    numbers = [NOTHING] * 3
    if error:
        numbers = [f"{one:.2g}" for one in (error.error.worst, error.allowed.worst, error.trusted)]
    return [
        Text(dims), Text(case.data), Text(memory or "row-major"), Text(shown.verdict, style=STYLES[shown.verdict]),
        *map(Text, numbers), Text(shown.reason),
    ]  # fmt: skip


def _conclusion(verdict: Verdict, where: str, options: Sequence[str]) -> list[Text]:
    configurations = "; ".join(map(str, verdict.configurations))
    lines = [
        Text.assemble(f"{verdict.task}: ", (verdict.verdict, STYLES[verdict.verdict]), f", {verdict.reason}"),
        Text(f"engine {verdict.engine}, configuration {configurations}, seed {verdict.seed}, {verdict.seconds:.1f} s"),
        Text(f"allowed error set by {verdict.yardstick}"),
        *(Text(line) for line in verdict.tools),
    ]
    lines += [Text(f"finding: {one}", style="red") for one in verdict.findings]
    if verdict.unverified:
        lines.append(Text(f"not compared ({len(verdict.unverified)}):"))
        lines += [Text(f"  {one}", style="dim") for one in verdict.unverified[:AT_MOST]]
        if len(verdict.unverified) > AT_MOST:
            lines.append(Text(f"  and {len(verdict.unverified) - AT_MOST} more; --json lists all", style="dim"))
    if again := command(verdict, where, options):
        assert verdict.smallest is not None
        lines.append(Text(f"smallest: {verdict.smallest.case.described}: {verdict.smallest.reason}"))
        lines.append(Text.assemble("reproduce: ", (again, "bold")))
    return lines
