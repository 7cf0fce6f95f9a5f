"""What `tilewright optimize` prints: the iterations, the workloads before and after, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.cli.terminal_table import NOTHING, Column, TerminalTable, first, not_shown
from tilewright.ledger.records import Iteration, Metrics
from tilewright.optimize.optimized import Optimized

STYLES = {"keep": "green", "revert": "dim", "crash": "red"}


def iterations(result: Optimized, show_all: bool = False) -> RenderableType:
    """One row for each iteration: what was kept, and of the others the first ones and a count."""
    measured = result.record.measured
    table = TerminalTable(
        Column("", right=True), "optimization", Column("value", spare=1),
        Column("measured ms" if measured else "predicted ms", right=True), Column("correct", spare=2), "status",
    )  # fmt: skip
    others = [one for one in result.iterations if one.status != "keep"]
    hidden = {one.n for one in others} - {one.n for one in first(others, show_all)}
    for one in result.iterations:
        if one.n not in hidden:
            status = Text(one.status, STYLES[one.status])
            cells = (str(one.n), _optimization(one), one.value, _ms(one, measured), one.correctness, status)
            table.add(cells, one.reason)
    return Group(
        table, *not_shown([(one.status, one.reason) for one in others if one.n in hidden], "iterations"), Text()
    )


def workloads(result: Optimized) -> TerminalTable:
    """Each workload before and after."""
    record = result.record
    how = "measured" if record.measured else "predicted"
    times = (f"baseline\n{how} µs", f"final\n{how} µs", "speedup", "speed\nof light")
    table = TerminalTable("workload", *(Column(name, right=True, always=True) for name in times))
    for before, after in zip(record.baseline, record.final, strict=True):
        a, b = _us(before), _us(after)
        light = after.bound.speed_of_light_us / b if after.bound and b else None
        speedup = f"{a / b:.2f}×" if a and b else NOTHING
        share = f"{light:.0%}" if light and record.measured else NOTHING
        table.add((before.workload, _time(before), _time(after), speedup, share))
    return table


def ending(result: Optimized, where: str) -> Iterator[str]:
    """What was kept, where it lies, and the command that goes on from here."""
    record = result.record
    how = "" if record.measured else " (predicted, not measured)"
    if result.kept:
        yield f"{result.speedup:.2f}× over {len(record.final)} workloads{how}, {len(result.kept)} changes kept"
    else:
        yield f"no change was kept{how}"
    if lossy := [one.optimization for one in result.kept if one.risk == "lossy"]:
        yield f"lossy, as allowed: {'; '.join(lossy)}"
    yield f"stopped: {record.stop_reason}"
    yield f"branch {record.branch}; patch {result.folder / 'changes.patch'}"
    yield f"the evidence: tilewright report {record.run}"
    if not record.measured:
        yield f"predicted, not measured. On a machine with a GPU: tilewright optimize {where}"


def _optimization(one: Iteration) -> str:
    return f"{one.optimization} (lossy)" if one.risk == "lossy" else one.optimization


def _ms(one: Iteration, measured: bool) -> str:
    time = one.latency_ms if measured else one.predicted_ms
    if time is None:
        return NOTHING
    interval = f" ±{(one.interval_ms[1] - one.interval_ms[0]) / 2:.2g}" if one.interval_ms else ""
    return f"{time:.4g}{interval}"


def _us(one: Metrics) -> float | None:
    time = one.measured or one.predicted
    return time.us if time else None


def _time(one: Metrics) -> str:
    if one.measured is not None:
        low, high = one.measured.interval_us
        return f"{one.measured.us:,.1f} ±{(high - low) / 2:.2g}"
    return f"{one.predicted.us:,.1f}" if one.predicted else NOTHING
