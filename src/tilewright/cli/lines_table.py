"""The output of `tilewright inspect --lines`: the work of each source line, as a table and as JSON."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.cli.terminal_table import NOTHING, Column, TerminalTable
from tilewright.inspect.work import CountedWork
from tilewright.records import Json, Workload
from tilewright.tileir.read.tree import Location
from tilewright.tileir.run.counting import Counts, LineCount

MOST = 3
"""The most operations that are named for a line."""
SILENT = frozenset({"constant", "make_token", "assume", "reshape", "broadcast", "continue", "yield", "return"})
"""Operations that need no machine code. The table leaves them out; the JSON counts them."""


def counted(work: CountedWork, workload: Workload) -> RenderableType:
    """Returns a table with one row for each source line that does work, and the totals below it."""
    if work.counts is None:
        return Text(f"{workload.name}: {work.source}")
    names = ("line", "tensor\nGFLOP", "other\nMFLOP", "loaded\nMB", "stored\nMB", "passes\na block")
    numbers = (Column(name, right=True, always=True) for name in names)
    table = TerminalTable(*numbers, "operations a block", title=f"workload {workload.name}")
    for line in work.counts.lines():
        if named := _named(line, work.counts):
            table.add((*_numbers(line, work.counts), named), Text(_source(line.location), style="dim"))
    moved = work.counts.scaled(work.counts.loaded_bytes + work.counts.stored_bytes)
    totals = f"{work.flops:.4g} FLOP, {moved:.4g} bytes moved, {work.bytes:.4g} bytes touched: "
    return Group(table, Text(f"{totals}{work.flops / work.bytes:.4g} FLOP/B\n{work.source}"))


def _numbers(line: LineCount, counts: Counts) -> tuple[str, ...]:
    return (
        str(line.location.line) if line.location else NOTHING,
        _scaled(counts, line.tensor_flop, 1e9),
        _scaled(counts, line.flop, 1e6),
        _scaled(counts, line.loaded_bytes, 1e6),
        _scaled(counts, line.stored_bytes, 1e6),
        f"{line.iterations / counts.blocks:.4g}" if line.iterations else "",
    )


def _scaled(counts: Counts, number: int, unit: float) -> str:
    return f"{counts.scaled(number) / unit:.4g}" if number else ""


def _named(line: LineCount, counts: Counts) -> str:
    kinds = sorted(((times, name) for name, times in line.by_kind.items() if name not in SILENT), reverse=True)
    more = f" +{len(kinds) - MOST}" if len(kinds) > MOST else ""
    return ", ".join(f"{times / counts.blocks:.3g} {name}" for times, name in kinds[:MOST]) + more


def to_json(work: CountedWork, workload: Workload) -> dict[str, Json]:
    """Returns the value of `inspect --lines --json`; scripts rely on these names. Sums are over the blocks that ran."""
    counts = work.counts
    value: dict[str, Json] = {
        "workload": workload.name, "source": work.source, "flop": work.flops, "bytes_touched": work.bytes,
        "counts": None,
    }  # fmt: skip
    if counts is not None:
        value["counts"] = {
            "blocks": counts.blocks, "grid_blocks": counts.grid_blocks,
            "tensor_flop": counts.tensor_flop, "other_flop": counts.flop,
            "loaded_bytes": counts.loaded_bytes, "stored_bytes": counts.stored_bytes,
            "distinct_loaded_bytes": counts.distinct_loaded_bytes,
            "distinct_stored_bytes": counts.distinct_stored_bytes,
            "operations": dict(counts.by_kind),
            "lines": [_line_json(line) for line in counts.lines()],
        }  # fmt: skip
    return value


def _line_json(line: LineCount) -> dict[str, Json]:
    return {
        "file": line.location.file if line.location else None,
        "line": line.location.line if line.location else None,
        "operations": dict(line.by_kind),
        "tensor_flop": line.tensor_flop, "other_flop": line.flop,
        "loaded_bytes": line.loaded_bytes, "stored_bytes": line.stored_bytes,
        "iterations": line.iterations,
    }  # fmt: skip


def _source(location: Location | None) -> str:
    lines = _lines(location.file) if location else ()
    return lines[location.line - 1].strip() if location and location.line <= len(lines) else ""


@cache
def _lines(file: str) -> tuple[str, ...]:
    try:
        return tuple(Path(file).read_text().splitlines())
    except OSError:
        return ()
