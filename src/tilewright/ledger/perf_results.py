"""``perf_results.md``: a run of `optimize` as a table of five columns.

    | iteration | optimization | latency_ms | correctness | status |
    | --- | --- | --- | --- | --- |
    | 0 | baseline | 0.021504 | PASS | keep |

The text follows from the iterations alone, and the file is only appended to. What it holds must be the beginning of
the text, and the rest is written after it. So a line that a kill cut short is completed, and what another program
wrote is never overwritten.

The table is poorer than the ledger in two ways:

* Every row has a latency, but code that crashed or is wrong has none. Such a row holds the latency of the incumbent,
  which is the code that stays.
* Correctness is PASS or FAIL. What could not be verified is FAIL here.

A run on predicted times writes ``perf_predicted.md`` instead, whose column is ``predicted_ms``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

from tilewright.ledger.file import Unusable, make_private, storage
from tilewright.ledger.records import Iteration, IterationStatus

MEASURED_FILE, PREDICTED_FILE = "perf_results.md", "perf_predicted.md"
BASELINE = "baseline"
ShownCorrectness: TypeAlias = Literal["PASS", "FAIL"]

_LATENCY = re.compile(r"\d+\.\d{6}", re.ASCII)
_COLUMNS = 5
_ESCAPED = re.compile(r"\\([\\|])")
_CELLS = re.compile(r"(?:\\.|[^\\|])*")


@dataclass(frozen=True)
class PerfRow:
    """One line of the table. ``optimization`` is one line of text without blanks around it."""

    iteration: int
    optimization: str
    latency_ms: str
    """Six decimals, as written."""
    correctness: ShownCorrectness
    status: IterationStatus


def rows(iterations: Iterable[Iteration], *, measured: bool) -> tuple[PerfRow, ...]:
    """The table of a run. ValueError where the baseline has no time, or a time is not a number."""
    table: list[PerfRow] = []
    incumbent: float | None = None
    for it in iterations:
        correctness: ShownCorrectness = "PASS" if it.correctness == "PASS" else "FAIL"
        own = it.latency_ms if measured else it.predicted_ms
        sound = own is not None and correctness == "PASS" and it.status != "crash"
        shown = own if sound or incumbent is None else incumbent
        if shown is None or not (math.isfinite(shown) and shown >= 0):
            raise ValueError(f"iteration {it.n} has no latency, and no iteration before it has one: {own}")
        incumbent = shown if it.status == "keep" else incumbent
        text = BASELINE if it.n == 0 else plain(it.optimization)
        table.append(PerfRow(it.n, text, f"{shown:.6f}", correctness, it.status))
    return tuple(table)


def plain(text: str) -> str:
    """The text as one line, for a cell."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode().split())


def render(table: Iterable[PerfRow], *, measured: bool) -> str:
    """The whole file."""
    return "".join(line + "\n" for line in (*_head(measured), *map(_line, table)))


def parse(text: str, *, measured: bool = True) -> tuple[PerfRow, ...]:
    """The rows of the file. A ValueError of one line says where the text is not such a table."""
    if not text.endswith("\n"):
        raise ValueError("the last line has no end")
    lines = text.split("\n")[:-1]
    if tuple(lines[:2]) != _head(measured):
        raise ValueError(f"line 1: the header is not '{_head(measured)[0]}' with its line of dashes")
    return tuple(_row(line, n) for n, line in enumerate(lines[2:]))


def update(folder: Path, iterations: Iterable[Iteration], *, measured: bool) -> Path:
    """Append what the file in ``folder`` lacks, and return its path.

    Raises `StorageError`, also where the file does not hold the beginning of the table.
    """
    path = folder / (MEASURED_FILE if measured else PREDICTED_FILE)
    whole = render(rows(iterations, measured=measured), measured=measured).encode()
    with storage(path):
        make_private(folder)
        with path.open("a+b") as file:
            file.seek(0)
            there = file.read()
            if not whole.startswith(there):
                raise Unusable("was changed by somebody else; fix: move it away, and it is written anew")
            file.write(whole[len(there) :])
    return path


def _head(measured: bool) -> tuple[str, str]:
    names = ("iteration", "optimization", "latency_ms" if measured else "predicted_ms", "correctness", "status")
    return f"| {' | '.join(names)} |", f"|{' --- |' * _COLUMNS}"


def _line(row: PerfRow) -> str:
    text = row.optimization.replace("\\", "\\\\").replace("|", "\\|")
    return f"| {row.iteration} | {text} | {row.latency_ms} | {row.correctness} | {row.status} |"


def _row(line: str, n: int) -> PerfRow:
    where = f"line {n + 3}"
    cells = [cell.strip(" ") for cell in _CELLS.findall(line) if cell]
    if not (line.startswith("| ") and line.endswith(" |")) or len(cells) != _COLUMNS:
        raise ValueError(f"{where}: not a row of {_COLUMNS} columns")
    iteration, escaped, latency, correctness, status = cells
    optimization = _ESCAPED.sub(r"\1", escaped)
    for holds, wanted in (
        (iteration == str(n), f"iteration {n}"),
        (n > 0 or (optimization, status) == (BASELINE, "keep"), "the baseline, kept"),
        (optimization == plain(optimization), "an optimization in one line"),
        (_LATENCY.fullmatch(latency) is not None, "a latency with six decimals"),
        (correctness in get_args(ShownCorrectness), " or ".join(get_args(ShownCorrectness))),
        (status in get_args(IterationStatus), " or ".join(get_args(IterationStatus))),
    ):
        if not holds:
            raise ValueError(f"{where}: expected {wanted}")
    return PerfRow(n, optimization, latency, cast(ShownCorrectness, correctness), cast(IterationStatus, status))
