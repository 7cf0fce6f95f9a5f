"""Reads a measurement of a program: latency and throughput before and after, their change, and the speed of light.

A measurement of two versions has times named ``… before, µs`` and ``… after, µs``. It also has shares from 0 to 1 named
``… speed of light before`` and ``… speed of light after``. A measurement of one version has ``…, µs`` and
``… speed of light``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ledger.agent_records import AgentMeasurement
from tilewright.report.cells import number
from tilewright.report.sourced import NOT_MEASURED, Sourced, citing, ids_of, key

UNITS = {"optimizer step": "steps/s", "forward call": "calls/s", "process": "runs/s"}
"""Maps a kind of timed work, such as a step, to the unit of its throughput."""
Value = tuple[float, str] | None
"""A number and its ledger id."""


@dataclass(frozen=True)
class PercentChange:
    """A change in percent, and the bounds of its interval. ``bounds`` is "" if there is no interval."""

    centre: str
    bounds: str = ""

    @property
    def cell(self) -> str:
        """The change and its bounds as one string."""
        if not (isinstance(self.centre, Sourced) and self.bounds):
            return self.centre
        return Sourced(f"{self.centre} ({self.bounds})", *ids_of((self.centre, self.bounds)), value=self.centre.value)


@dataclass(frozen=True)
class Impact:
    """Two versions in one measurement, as formatted strings. A value that was not measured is `NOT_MEASURED`."""

    latency: tuple[str, str]
    throughput: tuple[str, str]
    latency_change: PercentChange
    throughput_change: PercentChange
    light: tuple[str, str, str]
    """The shares of the speed of light before and after, and their difference in percentage points."""

    @property
    def line(self) -> str:
        """The latency before and after, and its change."""
        (before, after), change = self.latency, self.latency_change
        if NOT_MEASURED in (before, after):
            return NOT_MEASURED
        bounds = f", interval {change.bounds}" if change.bounds else ""
        return citing(f"{before} → {after} ({change.centre}){bounds}", before, after, change.centre, change.bounds)


def impact_of(measurement: AgentMeasurement | None) -> Impact:
    """Returns the numbers of a measurement of two versions."""
    if measurement is None:
        nothing = (NOT_MEASURED, NOT_MEASURED)
        return Impact(
            nothing, nothing, PercentChange(NOT_MEASURED), PercentChange(NOT_MEASURED), (*nothing, NOT_MEASURED)
        )
    times = value_at(measurement, "before, µs"), value_at(measurement, "after, µs")
    lights = value_at(measurement, "speed of light before"), value_at(measurement, "speed of light after")
    before, after = lights
    points = _points(before, after)
    return Impact(
        (latency(times[0]), latency(times[1])),
        (throughput(times[0], measurement), throughput(times[1], measurement)),
        change_of(measurement, 1), change_of(measurement, -1), (share(before), share(after), points),
    )  # fmt: skip


def value_at(measurement: AgentMeasurement, *ends: str) -> Value:
    """Returns a value of a measurement: the first value with a name that ends with one of ``ends``."""
    for name, value in measurement.values.items():
        if name.endswith(ends):
            return value, f"{measurement.id}/values/{key(name)}"
    return None


def latency(us: Value) -> str:
    """Formats a time given in µs as ms."""
    return NOT_MEASURED if us is None else Sourced(f"{number(us[0] / 1e3)} ms", us[1], value=us[0] / 1e3)


def whole(seconds: tuple[float, str]) -> str:
    """Formats the time of a whole program, which is not divided into steps."""
    return Sourced(f"{number(seconds[0])} s from start to end", seconds[1], value=seconds[0])


def throughput(us: Value, measurement: AgentMeasurement) -> str:
    """Formats the steps, calls or runs per second. ``us``: the time of one step, call or run in µs."""
    if us is None or us[0] <= 0:
        return NOT_MEASURED
    unit = UNITS.get(str(measurement.facts.get("unit")), "steps/s")
    return Sourced(f"{number(1e6 / us[0])} {unit}", us[1], value=1e6 / us[0])


def share(value: Value) -> str:
    """Formats a share of the speed of light in percent."""
    return NOT_MEASURED if value is None else Sourced(f"{value[0]:.1%}", value[1], value=100 * value[0])


def _points(before: Value, after: Value) -> str:
    if before is None or after is None:
        return NOT_MEASURED
    points = 100 * (after[0] - before[0])
    return Sourced(f"{points:+.1f} points".replace("-", "−"), before[1], after[1], value=points)


def change_of(measurement: AgentMeasurement, sense: int) -> PercentChange:
    """Returns the change in percent, from the ratio of the paired rounds.

    sense: 1 for the change of the time, -1 for the change of the throughput.
    """
    ratio = measurement.ratio
    if ratio is None or ratio.centre <= 0:
        return PercentChange(NOT_MEASURED)
    at, value = f"{measurement.id}/ratio", 100 * (ratio.centre**sense - 1)
    centre = Sourced(percent(value), f"{at}/centre", value=value)
    if not ratio.decided or ratio.low <= 0:
        return PercentChange(centre)
    low, high = sorted(100 * (bound**sense - 1) for bound in (ratio.low, ratio.high))
    return PercentChange(centre, Sourced(f"{percent(low)} to {percent(high)}", f"{at}/low", f"{at}/high"))


def gain_of(measurement: AgentMeasurement) -> str:
    """Formats the saved share of the time, such as ``25.0%``."""
    ratio = measurement.ratio
    if ratio is None:
        return NOT_MEASURED
    return Sourced(f"{100 * (1 - ratio.centre):.1f}%", f"{measurement.id}/ratio/centre", value=100 * (1 - ratio.centre))


def percent(value: float) -> str:
    """Formats a change in percent, such as ``−12.5%``."""
    return f"{value:+.1f}%".replace("-", "−")
