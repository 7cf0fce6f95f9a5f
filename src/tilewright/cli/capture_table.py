"""The output of `tilewright capture`: a row for each kind of launch, with its share of the time."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.cli.terminal_table import NOTHING, Column, TerminalTable
from tilewright.records import Value
from tilewright.runtime.capture.described import Argument, DescribedLaunch
from tilewright.runtime.capture.pairs import Pair
from tilewright.runtime.capture.record import Capture, Recorded, programs

ARRAYS = 4
"""The most array shapes in a row."""

COLUMNS = (
    Column("N", right=True, always=True), Column("launches", right=True), Column("kernel", always=True),
    Column("grid", spare=1), Column("arrays", spare=2), Column("constants", spare=2), Column("hints", spare=2),
    Column("mean µs", right=True, always=True), Column("n", right=True, spare=3),
    Column("total ms", right=True, always=True), Column("share", right=True), Column("host µs", right=True, spare=3),
)  # fmt: skip


PAIR_COLUMNS = (
    Column("kernel", always=True), Column("next", always=True), Column("array"), Column("times", right=True),
    Column("MB written + read", right=True, always=True), Column("one kernel for both", always=True),
)  # fmt: skip
UNSEEN = (
    "known: the launches before the first gap. Not known: whether a torch operation reads the array, or a function "
    "returns it."
)


def pairs(capture: Capture, found: Sequence[Pair]) -> RenderableType:
    """Returns a table with one row for each pair of kernels."""
    kinds = capture.launches()
    table = TerminalTable(*PAIR_COLUMNS)
    for pair in found:
        table.add((
            f"{pair.producer} {kinds[pair.producer - 1].launch.kernel}",
            f"{pair.consumer} {kinds[pair.consumer - 1].launch.kernel}",
            f"{pair.written} → {pair.read}", str(pair.times), f"{pair.saved_bytes / 1e6:.3f}",
            f"no: {pair.problem}" if pair.problem else "possible",
        ))  # fmt: skip
    return Group(table, Text(UNSEEN))


def captured(capture: Capture, top: int | None = None) -> RenderableType:
    """Returns a table with one row for each kind of launch, the longest total time first. Lines below explain the
    table."""
    kinds = capture.launches()
    table = TerminalTable(*COLUMNS)
    total = sum(kind.total_us or 0.0 for kind in kinds)
    for number, kind in enumerate(kinds[:top], 1):
        table.add(_row(number, kind, total))
    return Group(table, *(Text(line) for line in _below(capture, kinds, top)))


def _row(number: int, kind: Recorded, total: float) -> tuple[str, ...]:
    mean, time = kind.gpu.mean_us, kind.total_us
    return (
        str(number),
        f"{launches(kind)}{' in a graph' if kind.in_graph and kind.in_graph == kind.count else ''}",
        kind.launch.kernel,
        " × ".join(map(str, kind.launch.grid)),
        arrays(kind.launch),
        " ".join(f"{name}={value}" for name, value in kind.launch.constants.items()),
        " ".join(f"{name}={value}" for name, value in hints(kind.launch).items()),
        NOTHING if mean is None else f"{'≤ ' if kind.at_most else ''}{mean:.2f}",
        str(kind.gpu.samples),
        NOTHING if time is None else f"{time / 1e3:.3f}",
        NOTHING if time is None or not total else f"{time / total:.1%}",
        NOTHING if kind.host.mean_us is None else f"{kind.host.mean_us:.1f}",
    )


def _many(count: int, what: str = "launch", ending: str = "es") -> str:
    return f"{count} {what}{ending if count != 1 else ''}"


def launches(kind: Recorded) -> str:
    """Formats the number of launches; ``≈`` marks an estimate."""
    return f"{'≈ ' if kind.estimated else ''}{kind.count}"


def arrays(launch: DescribedLaunch) -> str:
    """Formats dtype and shape of the first arrays, such as ``bf16[4096,4096]``."""
    listed = launch.arrays()
    more = f" +{len(listed) - ARRAYS}" if len(listed) > ARRAYS else ""
    return " ".join(_shape(argument) for argument in listed[:ARRAYS]) + more


def _shape(argument: Argument) -> str:
    assert argument.array is not None
    letters = argument.array.dtype.replace("bfloat", "bf").replace("float", "f").replace("int", "i")
    return f"{letters}[{','.join(map(str, argument.array.shape))}]"


def hints(launch: DescribedLaunch) -> dict[str, Value]:
    """Returns the hints with a value. Hints that the compiler chooses, or that have their default, are left out."""
    return {
        name: value for name, value in launch.hints.items() if value is not None and (name, value) != ("opt_level", 3)
    }


def _below(capture: Capture, kinds: Sequence[Recorded], top: int | None) -> list[str]:
    seconds = max((part.seconds for part in capture.parts), default=0.0)
    total = sum(kind.total_us or 0.0 for kind in kinds) / 1e6
    made = sum(kind.count for kind in kinds)
    gpus = ", ".join(dict.fromkeys(part.gpu for part in capture.parts if part.gpu)) or "no GPU"
    lines = [
        f"{_many(made)} of {_many(len(kinds), 'kind', 's')}, {total:.3f} s on {gpus} in {seconds:.1f} s "
        f"({programs(capture.parts)})"
    ]
    if top is not None and len(kinds) > top:
        lines.append(f"{len(kinds) - top} more kinds; --all shows them")
    if unseen := sum(kind.estimated for kind in kinds):
        lines.append(
            f"≈: every launch of a kernel is counted, but only {made - unseen} of the {made} were classified: "
            "the rows are estimates; --exact classifies each launch"
        )
    if any(kind.at_most and kind.idle.samples for kind in kinds):
        lines.append("≤: the GPU was idle when these were launched, so the time includes the launch itself")
    if graphs := sum(kind.in_graph for kind in kinds):
        lines.append(f"{_many(graphs)} were recorded into a CUDA graph; replays of the graph are not counted")
    if failed := [kind for kind in kinds if kind.failed]:
        lines.append(f"{_many(sum(kind.failed for kind in failed))} failed, the first: {failed[0].error}")
    if others := sum(kind.others for kind in kinds):
        lines.append(f"{others} launches of further kinds are counted together, as one more kind of their kernel")
    if lost := [part for part in capture.parts if not part.finished]:
        lines.append(f"{len(lost)} of {len(capture.parts)} processes did not end: their last seconds may be missing")
    for kind in kinds:
        if kind.launch.problem:
            lines.append(f"{kind.launch.kernel} cannot become a task: {kind.launch.problem}")
    return lines
