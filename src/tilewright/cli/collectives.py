"""`tilewright profile --collectives`: communication, measured on this host or read from traces of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.cli import terminal
from tilewright.cli.shared import print_json, progress
from tilewright.cli.terminal_table import Column, TerminalTable
from tilewright.profile.figures import percent

if TYPE_CHECKING:
    from tilewright.profile.collectives import Communication
    from tilewright.program.distributed.measuring import HostCommunication

RANKS = ("rank", "communication", "exposed", "overlap", "waited for others")
ROWS = ("rank", "collective", "count", "bytes", "time", "exposed")
TIMES = ("collective", "bytes", "time", "quartiles", "algorithm", "bus")


def of_traces(paths: Sequence[Path], steps: tuple[int, int] | None, as_json: bool) -> None:
    """Shows the communication in traces of ranks."""
    from tilewright.profile.collectives import communication

    with progress(as_json) as shown:
        found = communication(paths, steps=steps, progress=shown)
    print_json(found) if as_json else terminal.stdout().print(communicated(found))


def of_this_host(cpu: bool, seconds: float, as_json: bool) -> None:
    """Measures communication on this host: between two GPUs, or with ``cpu`` between two processes of the CPU."""
    from tilewright.program.distributed.measuring import measure_host

    with progress(as_json) as shown:
        found = measure_host("gloo" if cpu else "nccl", seconds=seconds, progress=shown)
    print_json(found) if as_json else terminal.stdout().print(measured(found))


def communicated(found: Communication) -> RenderableType:
    """Returns the tables and lines about traces of ranks."""
    ranks, rows = _table(RANKS), _table(ROWS)
    for each in found.ranks:
        hidden = "–" if each.hidden is None else percent(each.hidden)
        waited = "–" if each.waited_us is None else f"{each.waited_us:.0f} µs"
        ranks.add((str(each.rank), f"{each.communication_us:.0f} µs", f"{each.exposed_us:.0f} µs", hidden, waited))
    for row in found.rows:
        size = "–" if row.bytes is None else f"{row.bytes:,}"
        times = f"{row.total_us:.0f} µs", f"{row.exposed_us:.0f} µs"
        rows.add((str(row.rank), row.operation, str(row.count), size, *times))
    lines = [f"{each.text}; {each.threshold}: {each.advice}" for each in found.findings]
    return Group(ranks, rows, *map(Text, lines), *([Text(found.note)] if found.note else []))


def measured(found: HostCommunication) -> RenderableType:
    """Returns the table and lines about a measured host."""
    from tilewright.program.distributed.collectives import in_bytes

    rows = _table(TIMES)
    for each in found.collectives.times:
        spread = f"{each.low_us:.1f} to {each.high_us:.1f}"
        right = "" if each.right else ", WRONG RESULT"
        speeds = f"{each.algorithm_gb_s:.3g} GB/s", f"{each.bus_gb_s:.3g} GB/s{right}"
        rows.add((each.collective, in_bytes(each.bytes), f"{each.median_us:.1f} µs", spread, *speeds))
    return Group(Text(str(found.collectives.facts)), rows, *map(Text, _lines(found)))


def _table(names: Sequence[str]) -> TerminalTable:
    words = ("rank", "collective")
    return TerminalTable(*(Column(name, right=name not in words, always=True) for name in names))


def _lines(found: HostCommunication) -> Iterator[str]:
    if (overlap := found.overlap) is not None:
        hidden = overlap.hidden
        yield (
            f"a small DDP step hides {percent(hidden.centre)} of its communication "
            f"({percent(hidden.low)} to {percent(hidden.high)}): {overlap.step_us:.0f} µs, of which "
            f"{overlap.compute_us:.0f} µs compute; its communication alone takes {overlap.communication_us:.0f} µs"
        )
    for each in found.recommended:
        yield f"faster{' (lossy)' if each.lossy else ''}: {each.collective} by {each.setting}: {each.why}"
    if found.lines:
        yield f"for the launch: {' '.join(found.lines)}"
    if found.settings is not None:
        yield from (f"not raced: {name}: {why}" for name, why in found.settings.failed.items())
    if found.collectives.missing:
        yield f"not measured: {len(found.collectives.missing)} sizes: {found.collectives.missing[0].reason}"
    yield from (f"not measured: {why}" for why in found.failed)
    for variable in found.collectives.protected:
        yield f"the environment sets {variable}; it is left as it is"
