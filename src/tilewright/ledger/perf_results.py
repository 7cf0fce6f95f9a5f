"""``perf_results.md``: a run of `optimize` as a table of five columns.

    | iteration | optimization | latency_ms | correctness | status |
    | --- | --- | --- | --- | --- |
    | 0 | baseline | 0.021504 | PASS | keep |

The text is made from the iterations. Text is only appended to the file, so the old content must be the beginning of the
new text. If a killed process left an incomplete line, it is completed. Text of another program is never overwritten.

The table differs from the ledger in two ways:

* If the code of an iteration crashed or is wrong, its row has the latency of the incumbent, which stays.
* Correctness is PASS or FAIL. Code that could not be verified is FAIL.

A run on predicted times writes ``perf_predicted.md`` instead, whose column is ``predicted_ms``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tilewright.ledger.file import Unusable, make_private, storage
from tilewright.ledger.records import Iteration, IterationStatus

MEASURED_FILE, PREDICTED_FILE = "perf_results.md", "perf_predicted.md"
BASELINE = "baseline"
ALIGNMENT = re.compile(rb"\|(?:[ \t]*:?-+:?[ \t]*\|){5}[ \t]*\r?")
"""Any alignment row of a Markdown table with five columns, such as ``|:---|---:|:-:|---|---|``."""
ShownCorrectness: TypeAlias = Literal["PASS", "FAIL"]


@dataclass(frozen=True)
class PerfRow:
    """One line of the table. ``latency_ms`` has six decimals."""

    iteration: int
    optimization: str
    latency_ms: str
    correctness: ShownCorrectness
    status: IterationStatus


def rows(iterations: Iterable[Iteration], *, measured: bool) -> tuple[PerfRow, ...]:
    """Returns the table of a run. Raises ValueError if the baseline has no time, or a time is not finite."""
    table: list[PerfRow] = []
    incumbent: float | None = None
    for each in iterations:
        correctness: ShownCorrectness = "PASS" if each.correctness == "PASS" else "FAIL"
        own = each.latency_ms if measured else each.predicted_ms
        correct = own is not None and correctness == "PASS" and each.status != "crash"
        shown = own if correct or incumbent is None else incumbent
        if shown is None or not (math.isfinite(shown) and shown >= 0):
            raise ValueError(f"iteration {each.n} has no latency, and no iteration before it has one: {own}")
        incumbent = shown if each.status == "keep" else incumbent
        text = BASELINE if each.n == 0 else plain(each.optimization)
        table.append(PerfRow(each.n, text, f"{shown:.6f}", correctness, each.status))
    return tuple(table)


def plain(text: str) -> str:
    """Returns the text as one line, for a cell."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode().split())


def render(table: Iterable[PerfRow], *, measured: bool) -> str:
    """Returns the text of the whole file."""
    names = ("iteration", "optimization", "latency_ms" if measured else "predicted_ms", "correctness", "status")
    head = (f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}")
    return "".join(line + "\n" for line in (*head, *map(_line, table)))


def update(folder: Path, iterations: Iterable[Iteration], *, measured: bool) -> Path:
    """Appends the missing rows to the file in ``folder``, and returns its path.

    Raises `StorageError` if the file cannot be used, or if its content is not the beginning of the table.
    """
    path = folder / (MEASURED_FILE if measured else PREDICTED_FILE)
    whole = render(rows(iterations, measured=measured), measured=measured).encode()
    with storage(path):
        make_private(folder)
        with path.open("a+b") as file:
            file.seek(0)
            content = file.read()
            whole = _with_alignment_of(content, whole)
            if not whole.startswith(content):
                raise Unusable("was changed by somebody else; fix: move it away, then it is written again")
            file.write(whole[len(content) :])
    return path


def _with_alignment_of(content: bytes, whole: bytes) -> bytes:
    """Returns the table with the alignment row of ``content``, which an editor may have written in another form."""
    lines, own = whole.split(b"\n"), content.split(b"\n")
    if len(own) > 2 and ALIGNMENT.fullmatch(own[1]):
        lines[1] = own[1]
    return b"\n".join(lines)


def _line(row: PerfRow) -> str:
    text = row.optimization.replace("\\", "\\\\").replace("|", "\\|")
    return f"| {row.iteration} | {text} | {row.latency_ms} | {row.correctness} | {row.status} |"
