"""Tables of candidates, the best first. Also the output of `tilewright inspect`: one such table for each
architecture."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.cli.terminal_table import NOTHING, ROWS, Column, TerminalTable, knob_column, not_shown
from tilewright.hardware import prediction_error
from tilewright.records import Bound, Candidate, Configuration, MachineCode

if TYPE_CHECKING:
    from tilewright.inspect.inspect import Inspected

STATUS_STYLES = {"raced": "green", "duplicate": "dim", "screened": "yellow", "failed": "red", "wrong": "bold red"}

Cell = tuple[Column, Callable[[Candidate], str]]


def candidate_table(
    title: str, candidates: Sequence[Candidate], cells: Sequence[Cell], *, show_all: bool,
    shipped: Configuration | None = None,
) -> list[RenderableType]:  # fmt: skip
    """Returns a table of the best ten candidates and the shipped one, and below it a count of the others.

    The reason of a candidate is printed under its row. A duplicate has the same machine code as another candidate.
    Without ``show_all``, duplicates have no row; the row of the other candidate shows their number. ``cells``: the
    columns after the status.
    """
    ordered, original = by_time(candidates), _originals(candidates)
    distinct = [candidate for candidate in ordered if candidate.configuration not in original]
    best = ordered if show_all else distinct[:ROWS]
    shown = [candidate for candidate in ordered if candidate in best or candidate.configuration == shipped]
    copies = Counter(() if show_all else original.values())
    knobs = list(dict.fromkeys(knob for each in ordered for knob in each.configuration))
    table = TerminalTable(*map(knob_column, knobs), "status", *(column for column, _ in cells), title=title)
    for candidate in shown:
        values = (_value(candidate.configuration, knob) for knob in knobs)
        status = Text(candidate.status, style=STATUS_STYLES.get(candidate.status, ""))
        same = copies[candidate.configuration]
        reason = f"{candidate.reason}; {same} more with the same machine code" if same else candidate.reason
        table.add([*values, status, *(cell(candidate) for _, cell in cells)], reason)
    in_rows = {candidate.configuration for candidate in shown}
    hidden = [
        (candidate.status, candidate.reason)
        for candidate in ordered
        if not in_rows & {candidate.configuration, original.get(candidate.configuration)}
    ]
    note = [Text(prediction_error.times())] if PREDICTED in cells and shown else []
    if unread := next((each.code.unread for each in candidates if each.code and each.code.unread), ""):
        note.append(Text(f"predicted without instructions, so times are lower estimates: {unread}", "yellow"))
    return [table, *not_shown(hidden, "configuration"), *note]


def _originals(candidates: Sequence[Candidate]) -> dict[Configuration, Configuration]:
    """Maps each duplicate to the candidate with the same machine code. The reason of a duplicate names this
    candidate."""
    from tilewright.compile.screen import same_code_as  # late import, because it loads the compilers

    by_reason = {same_code_as(each.configuration): each.configuration for each in candidates}
    duplicates = (each for each in candidates if each.status == "duplicate" and each.reason in by_reason)
    return {duplicate.configuration: by_reason[duplicate.reason] for duplicate in duplicates}


def of_code(cell: Callable[[MachineCode], object]) -> Callable[[Candidate], str]:
    """Returns a function that formats a candidate's machine code by ``cell``. Without machine code, the function
    returns `NOTHING`."""
    return lambda candidate: str(cell(candidate.code)) if candidate.code else NOTHING


def spills(code: MachineCode) -> str:
    return NOTHING if code.unread else f"{code.local_stores}/{code.local_loads}"


REGISTERS: Cell = (Column("registers", right=True, spare=2), of_code(lambda code: code.registers))
SPILLS: Cell = (Column("spills\nst/ld", right=True, spare=2), of_code(spills))
PREDICTED: Cell = (
    Column("predicted\nµs", right=True),
    lambda candidate: microseconds(candidate.predicted.us) if candidate.predicted else NOTHING,
)


INSPECTED: tuple[Cell, ...] = (
    REGISTERS,
    SPILLS,
    (Column("stack\nB", right=True, spare=3), of_code(lambda code: code.stack_bytes)),
    (Column("shared\nKiB", right=True, spare=2), of_code(lambda code: f"{code.shared_bytes / 1024:.4g}")),
    (Column("tensor\npath", right=True, spare=3), of_code(lambda code: code.tensor_path)),
    (Column("threads", right=True, spare=3), of_code(lambda code: code.threads)),
    PREDICTED,
)


def bound_line(bound: Bound) -> Text:
    light = f"speed of light {microseconds(bound.speed_of_light_us)} µs"
    return Text.assemble("bound: ", (bound.kind, "bold"), f", {light}; {bound.why}")


def by_time(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Sorts the fastest first: measured candidates, then predicted candidates, then candidates without a time."""

    def key(candidate: Candidate) -> tuple[int, float]:
        if candidate.measured:
            return (0, candidate.measured.us)
        if candidate.predicted:
            return (2 if candidate.status in ("failed", "wrong") else 1, candidate.predicted.us)
        return (3, 0.0)

    return sorted(candidates, key=key)


def microseconds(us: float) -> str:
    """Formats a time with four significant digits. Times from 1000 µs on are rounded to whole microseconds."""
    if not math.isfinite(us):
        return NOTHING
    if us >= 1000:
        return f"{us:,.0f}"
    digits = max(0, 3 - (math.floor(math.log10(us)) if us > 0 else 0))
    return f"{us:.{min(digits, 4)}f}"


def _value(configuration: Configuration, knob: str) -> Text:
    """Returns the value of a knob; ``auto`` if the compiler chooses it, `NOTHING` if the configuration lacks it."""
    if knob not in configuration:
        return Text(NOTHING)
    value = configuration[knob]
    return Text("auto", style="dim") if value is None else Text(str(value))


def inspected(rows: Sequence[Inspected], show_all: bool = False) -> RenderableType:
    """Returns one table for each architecture of ``rows``, and below it the resource that limits the workload."""
    parts: list[RenderableType] = []
    for arch, same in groupby(rows, lambda row: row.arch):
        first, *others = same
        title = f"{arch} ({first.board.name}), workload {first.workload.name}"
        candidates = [row.candidate for row in (first, *others)]
        parts += [*candidate_table(title, candidates, INSPECTED, show_all=show_all), bound_line(first.bound), Text()]
    return Group(*parts)
