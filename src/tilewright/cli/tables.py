"""Records as tables for a person. Pure: a record goes in, something that rich can print comes out.

Predicted and measured times stand in columns of their own. Text of a record is never read as markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.records import Bound, Candidate, Configuration, MachineCode, TuningResult, WorkloadResult

if TYPE_CHECKING:
    from tilewright.inspect.inspect import Inspected

NOTHING = "–"
KIB = 1024
WIDEST_KNOB = 9
"""Letters of a knob that stand in one line."""

STATUS_STYLES: Mapping[str, str] = {
    "raced": "green",
    "duplicate": "dim",
    "screened": "yellow",
    "failed": "red",
    "wrong": "bold red",
}


# inspect ------------------------------------------------------------------------------------------


def inspected(rows: Sequence[Inspected]) -> RenderableType:
    """One table for each architecture of ``rows``, each with its bound below it."""
    archs = dict.fromkeys(row.arch for row in rows)
    return Group(*(_inspected_on([row for row in rows if row.arch == arch]) for arch in archs))


def _inspected_on(rows: Sequence[Inspected]) -> RenderableType:
    first = rows[0]
    varying, same = _knobs([row.candidate.configuration for row in rows])
    numbers = ("registers", "spills\nst/ld", "stack\nB", "shared\nKiB", "tensor\npath", "threads", "predicted\nµs")
    table = _table(f"{first.arch} ({first.board.name}), workload {first.workload.name}", varying, numbers)
    for candidate in by_time(row.candidate for row in rows):
        table.add_row(
            *_values(candidate.configuration, varying),
            _status(candidate),
            *_code_cells(candidate.code),
            Text(microseconds(candidate.predicted.us) if candidate.predicted else NOTHING),
            Text(candidate.reason),
        )
    return Group(table, *_same(same), bound_line(first.bound), Text())


def _code_cells(code: MachineCode | None) -> list[Text]:
    if code is None:
        return [Text(NOTHING)] * 6
    shared = f"{code.shared_bytes / KIB:.4g}"
    cells = (code.registers, _spills(code), code.stack_bytes, shared, code.tensor_path, code.threads)
    return [Text(str(cell)) for cell in cells]


def bound_line(bound: Bound) -> Text:
    light = f"speed of light {microseconds(bound.speed_of_light_us)} µs"
    return Text.assemble("bound: ", (bound.kind, "bold"), f", {light}; {bound.why}")


# tune ---------------------------------------------------------------------------------------------


def tuned(result: TuningResult) -> RenderableType:
    """One table for each workload, with the best, its reason and the noise below it."""
    return Group(*(workload_result(one, result.measured) for one in result.workloads))


def workload_result(result: WorkloadResult, measured: bool) -> RenderableType:
    varying, same = _knobs([one.configuration for one in result.candidates])
    light = "speed\nof light" if measured else "speed of light\n(predicted)"
    times = ("predicted\nµs", *(("measured\nµs", "±\nµs") if measured else ()), light)
    table = _table(f"workload {result.workload.name}", varying, (*times, "registers", "spills\nst/ld"))
    for candidate in by_time(result.candidates):
        table.add_row(*_tuned_cells(candidate, result.bound, varying, measured))
    lines = [bound_line(result.bound), *best_lines(result), *noise_lines(result.race)]
    return Group(table, *_same(same), *lines, Text())


def _tuned_cells(one: Candidate, bound: Bound, varying: Sequence[str], measured: bool) -> list[Text]:
    cells = [*_values(one.configuration, varying), _status(one)]
    cells.append(Text(microseconds(one.predicted.us) if one.predicted else NOTHING))
    if measured:
        cells.append(Text(microseconds(one.measured.us) if one.measured else NOTHING))
        cells.append(Text(_half_width(one.measured.interval_us) if one.measured else NOTHING))
    timed = one.measured if measured else one.predicted
    cells.append(Text(_share(bound.speed_of_light_us, timed.us) if timed else NOTHING))
    cells.append(Text(str(one.code.registers) if one.code else NOTHING))
    cells.append(Text(_spills(one.code) if one.code else NOTHING))
    cells.append(Text(one.reason))
    return cells


def best_lines(result: WorkloadResult) -> list[Text]:
    """The best as ``--config`` takes it, why it is the best, what it gains, and what ties with it."""
    if result.best is None:
        return [Text.assemble("best: ", ("none", "red"), f"; {result.reason}")]
    best = result.best
    lines = [Text.assemble("best: ", (str(best.configuration), "bold"), f"  {_times(best, result.bound)}")]
    lines.append(Text(f"why: {result.reason}"))
    lines += _gain(result, best)
    others = [str(config) for config in result.tied if config != best.configuration]
    if others:
        lines.append(Text(f"tied with it ({len(others)}):\n  " + "\n  ".join(others)))
    return lines


def _times(one: Candidate, bound: Bound) -> str:
    if one.measured:
        share = _share(bound.speed_of_light_us, one.measured.us)
        width = _half_width(one.measured.interval_us)
        return f"measured {microseconds(one.measured.us)} ± {width} µs, {share} of the speed of light"
    return f"predicted {microseconds(one.predicted.us)} µs" if one.predicted else ""


def _gain(result: WorkloadResult, best: Candidate) -> list[Text]:
    """What the shipped configuration took in the same race."""
    if best.configuration == result.shipped:
        return [Text("it is the configuration shipped today")]
    shipped = next((one for one in result.candidates if one.configuration == result.shipped), None)
    if shipped is None or shipped.measured is None or best.measured is None:
        return []
    ratio = shipped.measured.us / best.measured.us
    return [Text(f"shipped today: {microseconds(shipped.measured.us)} µs measured, {ratio:.3g}× the best")]


def noise_lines(race: Mapping[str, Any] | None) -> list[Text]:
    """What the A/A check said: the clock's own noise."""
    noise = (race or {}).get("noise")
    if not isinstance(noise, Mapping) or not noise.get("why"):
        return []
    return [Text(f"A/A noise: {noise['why']}", style="yellow" if noise.get("biased") else "")]


# What they share ----------------------------------------------------------------------------------


def by_time(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Measured ones first, then predicted ones, each the fastest first; what has no time comes last."""

    def key(one: Candidate) -> tuple[int, float]:
        if one.measured:
            return (0, one.measured.us)
        if one.predicted:
            return (2 if one.status in ("failed", "wrong") else 1, one.predicted.us)
        return (3, 0.0)

    return sorted(candidates, key=key)


def microseconds(us: float) -> str:
    """Four significant digits, or whole microseconds above that."""
    if not math.isfinite(us):
        return NOTHING
    if us >= 1000:
        return f"{us:,.0f}"
    digits = max(0, 3 - (math.floor(math.log10(us)) if us > 0 else 0))
    return f"{us:.{min(digits, 4)}f}"


def _half_width(interval_us: tuple[float, float]) -> str:
    """Half of the interval; too few samples have none."""
    half = (interval_us[1] - interval_us[0]) / 2
    return f"{half:.2g}" if math.isfinite(half) else NOTHING


def _share(speed_of_light_us: float, us: float) -> str:
    return f"{speed_of_light_us / us:.1%}" if us > 0 and math.isfinite(us) else NOTHING


def _spills(code: MachineCode) -> str:
    return f"{code.local_stores}/{code.local_loads}"


def _status(candidate: Candidate) -> Text:
    return Text(candidate.status, style=STATUS_STYLES.get(candidate.status, ""))


def _knobs(configurations: Sequence[Configuration]) -> tuple[list[str], dict[str, Any]]:
    """The knobs that differ between the rows, and the values of those that do not."""
    if not configurations:
        return [], {}
    first = configurations[0]
    varying = [knob for knob in first if any(other.get(knob) != first[knob] for other in configurations)]
    if not varying:
        return list(first), {}
    return varying, {knob: first[knob] for knob in first if knob not in varying}


def _values(configuration: Configuration, knobs: Sequence[str]) -> list[Text]:
    """One cell a knob; ``auto`` where the compiler chooses."""
    shown = ((knob, configuration.get(knob)) for knob in knobs)
    return [Text("auto", style="dim") if value is None else Text(str(value)) for _, value in shown]


def _same(values: Mapping[str, Any]) -> list[Text]:
    return [Text(f"the same in all: {Configuration.of(values)}", style="dim")] if values else []


def _table(title: str, knobs: Sequence[str], numbers: Sequence[str]) -> Table:
    """Knobs, status, numbers, reason. Only the reason wraps: half a number is a wrong number."""
    heading = Text(title, style="bold")
    table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for knob in knobs:
        table.add_column(_broken(knob), justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("reason", min_width=16)
    return table


def _broken(knob: str) -> str:
    """A long name over several lines, so that its column is no wider than its values need."""
    return knob if len(knob) <= WIDEST_KNOB else knob.replace("_", "_\n")
