"""Shrinks a tuned space to at most eight configurations that serve all workloads, as code to ship.

The shipped configuration stays, with every winner and every configuration within 5 % of the winner on a workload. If
these are more than eight, those go first that serve workloads which no other one serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.records import Candidate, Configuration, TuningResult, Value, WorkloadResult
from tilewright.space.space import Space

MOST = 8
WITHIN = 1.05
"""A configuration serves a workload if its time is at most this many times the winner's."""


@dataclass(frozen=True)
class ShrunkConfiguration:
    """A configuration that stays. ``wins``, ``serves``: the workloads that it wins, and is within 5 % on."""

    configuration: Configuration
    wins: tuple[str, ...]
    serves: tuple[str, ...]

    @property
    def why(self) -> str:
        others = [name for name in self.serves if name not in self.wins]
        texts = [f"wins {', '.join(self.wins)}"] if self.wins else []
        return "; ".join(texts + ([f"within 5 % on {', '.join(others)}"] if others else [])) or "ships today"


@dataclass(frozen=True)
class Shrunk:
    """The configurations that stay, the shipped one first. ``unserved``: workloads that none of them serves."""

    kept: tuple[ShrunkConfiguration, ...]
    unserved: tuple[str, ...]
    measured: bool


def shrink(result: TuningResult) -> Shrunk:
    """Chooses from the measured times of a result, or from the predicted ones if nothing was measured."""
    times = {each.workload.name: _ratios(each, result.measured) for each in result.workloads}
    shipped = result.workloads[0].shipped
    winners = {each.workload.name: each.best.configuration for each in result.workloads if each.best is not None}
    timed = (config for ratios in times.values() for config in ratios)
    rows = {
        config: ShrunkConfiguration(
            config, tuple(name for name, best in winners.items() if best == config),
            tuple(name for name, ratios in times.items() if ratios.get(config, 2.0) <= WITHIN),
        )
        for config in dict.fromkeys((shipped, *winners.values(), *timed))
    }  # fmt: skip
    chosen, served = [rows.pop(shipped)], set[str]()
    served |= set(chosen[0].serves)
    useful = [row for row in rows.values() if row.wins or row.serves]

    def value(row: ShrunkConfiguration) -> tuple[int, int, int, float]:
        worst = max((times[name][row.configuration] for name in row.serves), default=WITHIN)
        return len({*row.serves} - served), len(row.wins), len(row.serves), -worst

    while useful and len(chosen) < MOST:
        best = max(useful, key=value)
        useful.remove(best)
        chosen.append(best)
        served |= set(best.serves)
    return Shrunk(tuple(chosen), tuple(name for name in winners if name not in served), result.measured)


def _ratios(result: WorkloadResult, measured: bool) -> dict[Configuration, float]:
    """Returns the time of each candidate that was timed, as a multiple of the winner's."""
    least = None if result.best is None else _us(result.best, measured)
    us = {each.configuration: _us(each, measured) for each in result.candidates if _may_ship(each, measured)}
    return {config: time / least for config, time in us.items() if time is not None} if least else {}


def _may_ship(candidate: Candidate, measured: bool) -> bool:
    """Returns whether a candidate is correct. Without a GPU only the best is checked, so the others may be unknown."""
    checked = candidate.checked
    return not measured if checked is None else checked.right or (not measured and checked.verdict == "unverified")


def _us(candidate: Candidate, measured: bool) -> float | None:
    time = candidate.measured if measured else candidate.predicted
    return None if time is None else time.us


def code(shrunk: Shrunk, space: Space) -> str:
    """Returns the text of the shrunk space, to paste into a task. Predicates (``where=``) are not part of it."""
    configurations = [each.configuration for each in shrunk.kept]
    lines = ["tw.Space("]
    for kind, names in (("constants", space.constants), ("hints", space.hints)):
        values = {name: tuple(dict.fromkeys(config[name] for config in configurations)) for name in names}
        lines += [f"    {kind}={_dict(values)},"] if values else []
    lines += [f"    shipped={_dict(space.shipped)},", "    only=["]
    lines += [f"        {_dict(each.configuration)},  # {each.why}" for each in shrunk.kept]
    return "\n".join([*lines, "    ],", ")"])


def _dict(values: Mapping[str, Value] | Mapping[str, Sequence[Value]]) -> str:
    return "{" + ", ".join(f'"{name}": {value!r}' for name, value in values.items()) + "}"
