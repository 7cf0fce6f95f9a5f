"""The output of `tilewright optimize`: the iterations, the workloads before and after, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.cli.terminal_table import NOTHING, Column, TerminalTable, first, not_shown
from tilewright.hardware import prediction_error
from tilewright.ledger.records import Iteration, Metrics
from tilewright.optimize.optimized import Optimized
from tilewright.printable import plural

MOST_LIMITS = 3
"""The most workloads whose limit is printed; `tilewright report` has all."""
STYLES = {"keep": "green", "revert": "dim", "crash": "red"}


def optimized(result: Optimized, where: str, show_all: bool = False) -> Iterator[RenderableType]:
    """Yields the tables of iterations and workloads, and the lines below them. ``where``: ``FILE[:TASK]``."""
    yield iterations(result, show_all)
    yield workloads(result)
    yield from ending(result, where)


def iterations(result: Optimized, show_all: bool = False) -> RenderableType:
    """Returns a table with every kept iteration and the first ten others. A line below the table counts the rest."""
    measured = result.record.measured
    table = TerminalTable(
        Column("", right=True), "optimization", Column("value", spare=1),
        Column("measured ms" if measured else "predicted ms", right=True), Column("correct", spare=2), "status",
    )  # fmt: skip
    others = [iteration for iteration in result.iterations if iteration.status != "keep"]
    hidden = {iteration.n for iteration in others} - {iteration.n for iteration in first(others, show_all)}
    for iteration in result.iterations:
        if iteration.n not in hidden:
            status = Text(iteration.shown_status, STYLES[iteration.status])
            name = f"{iteration.optimization}{' (lossy)' if iteration.risk == 'lossy' else ''}"
            cells = (str(iteration.n), name, iteration.value, _ms(iteration, measured), iteration.correctness, status)
            table.add(cells, iteration.reason)
    rest = [(iteration.shown_status, iteration.reason) for iteration in others if iteration.n in hidden]
    return Group(table, *not_shown(rest, "iteration"), Text())


def workloads(result: Optimized) -> TerminalTable:
    """Returns a table with the time of each workload before and after, and its speed-up."""
    record = result.record
    how = "measured" if record.measured else "predicted"
    times = (f"baseline\n{how} µs", f"final\n{how} µs", "speedup", "speed\nof light")
    table = TerminalTable("workload", *(Column(name, right=True, always=True) for name in times))
    for before, after in zip(record.baseline, record.final, strict=True):
        a, b = before.us, after.us
        light = after.bound.share(b) if after.bound and b else None
        speedup = f"{a / b:.2f}×" if a and b else NOTHING
        share = f"{light:.1%}" if light and record.measured else NOTHING
        table.add((before.workload, _time(before), _time(after), speedup, share))
    return table


def ending(result: Optimized, where: str) -> Iterator[str]:
    """Yields lines that say what was kept, where it is stored, and which commands to run next."""
    record = result.record
    how = "" if record.measured else " (predicted, not measured)"
    if result.kept:
        speedup = f"{result.speedup:.2f}×" if record.measured else prediction_error.speedup(result.speedup or 1.0)
        over, changes = plural(len(record.final), "workload"), plural(len(result.kept), "change")
        yield f"{speedup} over {over}{how}, {changes} kept"
    else:
        yield f"no change was kept{how}"
    if lossy := [iteration.optimization for iteration in result.kept if iteration.risk == "lossy"]:
        yield f"lossy, as allowed: {'; '.join(lossy)}"
    if tampering := [iteration for iteration in result.iterations if iteration.tampering]:
        yield f"refused as tampering: {plural(len(tampering), 'proposal')}, the first: {tampering[0].tampering}"
    for each in record.final[:MOST_LIMITS]:
        if each.bound is not None:
            yield f"speed of light of {each.workload}: {each.bound.limit}"
        yield from limit(each)
    yield f"stopped: {record.stop_reason}"
    if record.branch is not None:
        yield f"branch {record.branch}; patch {result.folder / 'changes.patch'}"
        searched = any(each.entry == "tune_space" for each in result.iterations)
        if searched and record.measured and len(record.final) > 1:
            yield f"this is one configuration for all workloads; for one each, merge it, then: tilewright tune {where}"
    yield f"the evidence: tilewright report {record.run}"
    if result.to_confirm:
        yield "candidates to confirm on a GPU: correct, but not kept on a prediction alone"
    for n, name, change in result.to_confirm:
        yield f"  {n}  {name}: predicted {prediction_error.speedup(change.speedup, change.kind)}"
        yield f"     {change.command}"
    if not record.measured:
        yield prediction_error.times()
        yield f"predicted, not measured. On a machine with a GPU: tilewright optimize {where}"


def limit(metrics: Metrics) -> Iterator[str]:
    """Yields the diagnosis of one workload, then a line for each of its moves."""
    if (diagnosis := metrics.diagnosis) is not None:
        yield f"limit of {metrics.workload}: {diagnosis} ({diagnosis.rung})"
        for other in diagnosis.others[:1]:
            yield f"  next: {other.resource}: {other.evidence}"
        for move in diagnosis.moves:
            yield f"  {move.entry}: {move.outcome}"


def _ms(iteration: Iteration, measured: bool) -> str:
    time = iteration.latency_ms if measured else iteration.predicted_ms
    if time is None:
        return NOTHING
    interval = f" ±{(iteration.interval_ms[1] - iteration.interval_ms[0]) / 2:.2g}" if iteration.interval_ms else ""
    return f"{time:.4g}{interval}"


def _time(metrics: Metrics) -> str:
    if metrics.measured is not None:
        low, high = metrics.measured.interval_us
        return f"{metrics.measured.us:,.1f} ±{(high - low) / 2:.2g}"
    return f"{metrics.predicted.us:,.1f}" if metrics.predicted else NOTHING
