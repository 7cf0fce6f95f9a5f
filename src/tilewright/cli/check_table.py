"""The output of `tilewright check`: first wrong cases, then correct ones, then cases that were not compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.cli.terminal_table import NOTHING, ROWS, Column, TerminalTable, first_lines, not_shown
from tilewright.records import Configuration
from tilewright.space.union import implementation_of
from tilewright.verify.examining import Result
from tilewright.verify.verdict import Verdict, command

STYLES = {"correct": "green", "correct on reduced shapes": "yellow", "incorrect": "bold red", "unverified": "yellow"}
GROUPED = {"edge": 1, "hidden": 2}
"""Maps the origin of a case (`Case.why`) to the position of its row. Correct cases of one origin share a row."""


def checked(verdict: Verdict, where: str, options: Sequence[str] = (), show_all: bool = False) -> RenderableType:
    """Returns a table of the cases, and the conclusion. ``where``, ``options``: for the command that repeats a case.

    Correct edge cases share a row, and so do correct hidden draws. Such a row shows its case with the largest error.
    """
    numbers = (
        Column(name, right=True, spare=spare) for name, spare in (("worst\nerror", 0), ("allowed", 1), ("trusted", 2))
    )
    labels = _labels(verdict)
    table = TerminalTable(*([labels[0]] if labels else []), "dimensions", "data", "memory", "verdict", *numbers)
    grouped = _grouped(verdict.results)
    shown = [rows for at, rows in enumerate(grouped) if show_all or at < ROWS or len(rows) > 1]
    for rows in shown:
        table.add(*_cells(rows, labels[1] if labels else {}))
    hidden = [(rows[0].verdict, rows[0].reason) for rows in grouped if rows not in shown]
    return Group(table, *not_shown(hidden, "case"), *_conclusion(verdict, where, options, show_all), Text())


def _grouped(results: Sequence[Result]) -> list[list[Result]]:
    """Groups the compared cases into rows. Correct edge cases share one row, and correct hidden draws share another."""

    def key(result: Result) -> tuple[bool, int]:
        return result.verdict == "correct", GROUPED.get(result.case.why, 0)

    rows: list[list[Result]] = []
    compared = sorted((result for result in results if result.verdict != "unverified"), key=key)
    for (correct, group), same in groupby(compared, key):
        alike = [*same]
        rows += [alike] if correct and group else [[result] for result in alike]
    return rows


def _labels(verdict: Verdict) -> tuple[str, dict[Configuration, str]] | None:
    """Returns the name of a column that tells the configurations apart, and their texts; None for one configuration."""
    if len(verdict.configurations) < 2:
        return None
    names = {each: implementation_of(each) for each in verdict.configurations}
    if all(names.values()) and len(set(names.values())) == len(names):
        return "implementation", names
    return "configuration", {each: str(each) for each in verdict.configurations}


def _cells(rows: Sequence[Result], labels: Mapping[Configuration, str]) -> tuple[list[Text], str]:
    """Returns the cells and the reason of one row. Both come from the result with the largest error."""
    worst = max(rows, key=lambda result: result.error.share if result.error else 0.0)
    case, error = worst.case, worst.error
    dims = ", ".join(f"{name}={value}" for name, value in case.dims)
    if len(rows) > 1:
        dims = f"{len(rows)} {'edges' if case.why == 'edge' else 'hidden draws'}, worst {dims}"
    memory = " ".join(word for word in (case.layout, case.run) if word not in ("row-major", "plain"))
    numbers = [NOTHING] * 3
    if error:
        numbers = [f"{number:.2g}" for number in (error.error.worst, error.allowed.worst, error.trusted)]
    verdict = Text(worst.verdict, style=STYLES[worst.verdict])
    label = [labels[worst.configuration]] if labels else []
    texts = [Text(each) for each in (*label, dims, case.data, memory or "row-major")]
    return [*texts, verdict, *map(Text, numbers)], worst.reason


def _conclusion(verdict: Verdict, where: str, options: Sequence[str], show_all: bool) -> list[Text]:
    configurations = "; ".join(filter(None, map(str, verdict.configurations)))
    ran = f"engine {verdict.engine}, {configurations and f'configuration {configurations}, '}seed {verdict.seed}"
    lines = [
        Text.assemble(f"{verdict.task}: ", (verdict.verdict, STYLES[verdict.verdict]), f", {verdict.reason}"),
        Text(f"{ran}, {verdict.seconds:.1f} s"),
        Text(f"allowed error set by {verdict.yardstick}"),
        *(Text(line) for line in verdict.tools),
    ]
    lines += [Text(f"finding: {finding}", style="red") for finding in verdict.findings]
    if verdict.unverified:
        lines.append(Text(f"not compared ({len(verdict.unverified)}):"))
        lines += [Text(f"  {line}", style="dim") for line in first_lines(verdict.unverified, show_all)]
    if again := command(verdict, where, options):
        assert verdict.smallest is not None
        lines.append(Text(f"smallest: {verdict.smallest.case.described}: {verdict.smallest.reason}"))
        # not wrapped: the user can then copy the command
        lines.append(Text.assemble("reproduce: ", (again, "bold"), no_wrap=True, overflow="ignore"))
    return lines
