"""The output of `tilewright tune`: for each workload the candidates, the best with its reason, and the A/A noise.

Predicted and measured times are in separate columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.cli.candidate_table import PREDICTED, REGISTERS, SPILLS, Cell, bound_line, candidate_table, microseconds
from tilewright.cli.terminal_table import NOTHING, Column, first_lines
from tilewright.records import Bound, Candidate, TuningResult, WorkloadResult

MEASURED: tuple[Cell, Cell] = (
    (Column("measured\nµs", right=True), lambda row: microseconds(row.measured.us) if row.measured else NOTHING),
    (Column("±\nµs", right=True), lambda row: _half_width(row.measured.interval_us) if row.measured else NOTHING),
)


def tuned(result: TuningResult, show_all: bool = False) -> RenderableType:
    """Returns the results of every workload."""
    return Group(*(workload_result(workload, result.measured, show_all) for workload in result.workloads))


def workload_result(result: WorkloadResult, measured: bool, show_all: bool = False) -> RenderableType:
    """Returns the table of candidates, and below it the bound, the best configuration and the noise."""
    cells = [PREDICTED, *(MEASURED if measured else ()), _speed_of_light(result.bound, measured), REGISTERS, SPILLS]
    title = f"workload {result.workload.name}"
    table = candidate_table(title, result.candidates, cells, show_all=show_all, shipped=result.shipped)
    return Group(
        *table, *_searched(result), bound_line(result.bound), *_best(result, show_all), *_noise(result), Text()
    )


def _searched(result: WorkloadResult) -> list[Text]:
    """Says how many configurations were never compiled, and why; nothing if all were compiled."""
    searched = result.searched
    return [] if searched is None or searched.complete else [Text(str(searched))]


def _speed_of_light(bound: Bound, measured: bool) -> Cell:
    def share(candidate: Candidate) -> str:
        timed = candidate.measured if measured else candidate.predicted
        return _share(bound, timed.us) if timed else NOTHING

    return Column("speed\nof light" if measured else "speed\nof light\n(predicted)", right=True), share


def _best(result: WorkloadResult, show_all: bool) -> list[Text]:
    """Describes the best configuration: its values, its time, why it was chosen, its gain, and which others tie.

    The values have the form that ``--config`` accepts.
    """
    if result.best is None:
        return [Text.assemble("best: ", ("none", "red"), f"; {result.reason}")]
    best = result.best
    heading = Text.assemble("best: ", (str(best.configuration), "bold"), f"  {_times(best, result.bound)}")
    lines = [heading, Text(f"why: {result.reason}"), *_gain(result, best)]
    if others := [str(config) for config in result.tied if config != best.configuration]:
        lines.append(Text("\n  ".join([f"tied with it ({len(others)}):", *first_lines(others, show_all)])))
    return lines


def _times(candidate: Candidate, bound: Bound) -> str:
    if candidate.measured:
        share = _share(bound, candidate.measured.us)
        width = _half_width(candidate.measured.interval_us)
        return f"measured {microseconds(candidate.measured.us)} ± {width} µs, {share} of the speed of light"
    return f"predicted {microseconds(candidate.predicted.us)} µs" if candidate.predicted else ""


def _gain(result: WorkloadResult, best: Candidate) -> list[Text]:
    """Compares the best configuration with the shipped one, if both were measured."""
    if best.configuration == result.shipped:
        return [Text("it is the configuration shipped today")]
    shipped = next((candidate for candidate in result.candidates if candidate.configuration == result.shipped), None)
    if shipped is None or shipped.measured is None or best.measured is None:
        return []
    ratio = shipped.measured.us / best.measured.us
    return [Text(f"shipped today: {microseconds(shipped.measured.us)} µs measured, {ratio:.3g}× the best")]


def _noise(result: WorkloadResult) -> list[Text]:
    """Describes the result of the A/A check, which measures the noise of the clock."""
    noise = (result.race or {}).get("noise")
    if not isinstance(noise, Mapping) or not noise.get("why"):
        return []
    return [Text(f"A/A noise: {noise['why']}", style="yellow" if noise.get("biased") else "")]


def _half_width(interval_us: tuple[float, float]) -> str:
    """Formats half the width of the interval; `NOTHING` if the width is infinite, because of too few samples."""
    half = (interval_us[1] - interval_us[0]) / 2
    return f"{half:.2g}" if math.isfinite(half) else NOTHING


def _share(bound: Bound, us: float) -> str:
    share = bound.share(us)
    return NOTHING if share is None else f"{share:.1%}"
