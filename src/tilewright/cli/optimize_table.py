"""What `tilewright optimize` prints: the iterations, the workloads before and after, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from tilewright.ledger.records import Iteration, Standing
from tilewright.optimize.optimized import Optimized

STYLES = {"keep": "green", "revert": "dim", "crash": "red"}


def iterations(result: Optimized) -> Table:
    """One row for each iteration."""
    measured = result.record.measured
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "optimization", "value", "measured ms" if measured else "predicted ms", "correct", "status"):
        table.add_column(name, justify="right" if name.endswith("ms") or not name else "left")
    table.add_column("reason", overflow="fold")
    for one in result.iterations:
        table.add_row(
            str(one.n), _optimization(one), one.value, _ms(one, measured), one.correctness,
            Text(one.status, STYLES[one.status]), one.reason,
        )  # fmt: skip
    return table


def workloads(result: Optimized) -> Table:
    """Each workload before and after."""
    record = result.record
    how = "measured" if record.measured else "predicted"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("workload", f"baseline, {how} µs", f"final, {how} µs", "speedup", "speed of light"):
        table.add_column(name, justify="left" if name == "workload" else "right")
    for before, after in zip(record.baseline, record.final, strict=True):
        a, b = _us(before), _us(after)
        light = after.bound.speed_of_light_us / b if after.bound and b else None
        table.add_row(
            before.workload, _time(before), _time(after), f"{a / b:.2f}×" if a and b else "–",
            f"{light:.0%}" if light and record.measured else "–",
        )  # fmt: skip
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
        return "–"
    interval = f" ±{(one.interval_ms[1] - one.interval_ms[0]) / 2:.2g}" if one.interval_ms else ""
    return f"{time:.4g}{interval}"


def _us(one: Standing) -> float | None:
    time = one.measured or one.predicted
    return time.us if time else None


def _time(one: Standing) -> str:
    if one.measured is not None:
        low, high = one.measured.interval_us
        return f"{one.measured.us:,.1f} ±{(high - low) / 2:.2g}"
    return f"{one.predicted.us:,.1f}" if one.predicted else "–"
