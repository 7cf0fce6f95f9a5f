"""What `tilewright inspect` prints: one table for each architecture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.cli.candidate_table import PREDICTED, REGISTERS, SPILLS, Cell, bound_line, candidate_table, of_code
from tilewright.cli.terminal_table import Column
from tilewright.inspect.inspect import Inspected

KIB = 1024

CELLS: tuple[Cell, ...] = (
    REGISTERS,
    SPILLS,
    (Column("stack\nB", right=True, spare=3), of_code(lambda code: code.stack_bytes)),
    (Column("shared\nKiB", right=True, spare=2), of_code(lambda code: f"{code.shared_bytes / KIB:.4g}")),
    (Column("tensor\npath", right=True, spare=3), of_code(lambda code: code.tensor_path)),
    (Column("threads", right=True, spare=3), of_code(lambda code: code.threads)),
    PREDICTED,
)


def inspected(rows: Sequence[Inspected], show_all: bool = False) -> RenderableType:
    """One table for each architecture of ``rows``, with its bound below it."""
    return Group(*(part for _, same in groupby(rows, lambda row: row.arch) for part in _on_one([*same], show_all)))


def _on_one(rows: Sequence[Inspected], show_all: bool) -> list[RenderableType]:
    title = f"{rows[0].arch} ({rows[0].board.name}), workload {rows[0].workload.name}"
    table = candidate_table(title, [row.candidate for row in rows], CELLS, show_all=show_all)
    return [*table, bound_line(rows[0].bound), Text()]
