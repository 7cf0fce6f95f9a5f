"""The evidence of a run of `optimize` as one value, from which the Markdown and the page are written.

The evidence comes only from the ledger's records, so a run has the same report on every machine. An unfinished run is
reported as if it had ended with its last kept change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tilewright.ledger.codec import Dataclass, Encodable, to_json
from tilewright.ledger.records import Iteration, Metrics, RunRecord, still_kept
from tilewright.race.stats import Interval, geometric_mean
from tilewright.records import Json
from tilewright.report.sourced import Sourced, key


@dataclass(frozen=True)
class Speedup:
    """Old time / new time: above 1 is faster. ``low`` and ``high``: the bounds, None if no interval is known."""

    centre: float
    low: float | None = None
    high: float | None = None
    ids: tuple[str, ...] = ()
    """The ledger ids of the numbers from which the speed-up was computed (see `sourced`)."""


@dataclass(frozen=True)
class Point:
    """One iteration in the chart of latencies. The times are measured in a measured run, else predicted.

    ms: the latency; None if the iteration crashed or was wrong.
    incumbent_ms: the time of the kept code after this iteration.
    """

    iteration: Iteration
    ms: float | None
    interval_ms: tuple[float, float] | None
    incumbent_ms: float | None

    @property
    def n(self) -> int:
        return self.iteration.n


@dataclass(frozen=True)
class WorkloadChange:
    """One workload before and after a run. For `tune`, these are the shipped and the best configuration.

    at: the ledger ids of the records that have the times.
    bound_at, flops_at: the ledger ids of both bounds and of the FLOP.
    """

    before: Metrics
    after: Metrics
    at: tuple[str, str]
    bound_at: tuple[str, str]
    flops_at: tuple[str, str]

    @property
    def workload(self) -> str:
        return self.before.workload

    @property
    def speedup(self) -> Speedup | None:
        """The speed-up, from paired rounds if both versions were raced, else from both times. None if a time is
        missing."""
        if paired := speedup_of(self.after.against_baseline, f"{self.at[1]}/against_baseline"):
            return paired
        old, new = self.before.us, self.after.us
        return Speedup(old / new, ids=self.time_ids) if old and new else None

    @property
    def time_ids(self) -> tuple[str, str]:
        """The ledger ids of both times."""
        return time_id(self.before, self.at[0]), time_id(self.after, self.at[1])

    @property
    def sides(self) -> tuple[tuple[Metrics, str], tuple[Metrics, str]]:
        """Both versions, each with its ledger id."""
        return (self.before, self.at[0]), (self.after, self.at[1])


@dataclass(frozen=True)
class OptimizeEvidence:
    """A run of `optimize` with its iterations, and the numbers that follow from them.

    beyond: in a large run, how many attempts of each iteration are stored but not read, by status.
    """

    run: RunRecord
    iterations: tuple[Iteration, ...]
    beyond: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def tried_values(self, iteration: Iteration) -> int:
        """Returns how many values an iteration tried."""
        return len(iteration.attempts) + sum(self.beyond.get(iteration.n, {}).values())

    def more_values(self, iteration: Iteration) -> str:
        """Says how many values of an iteration are not shown, and where they are; empty if all are shown."""
        counts = self.beyond.get(iteration.n, {})
        each = ", ".join(f"{count} {status}" for status, count in counts.items())
        return (
            f"{sum(counts.values())} more: {each}; see `tilewright report {self.run.run} --jsonl -`" if counts else ""
        )

    @cached_property
    def points(self) -> tuple[Point, ...]:
        points, incumbent, measured = [], None, self.run.measured
        for iteration in self.iterations:
            ms = iteration.latency_ms if measured else iteration.predicted_ms
            if ms is None or not (math.isfinite(ms) and ms > 0) or iteration.status == "crash":
                points.append(Point(iteration, None, None, incumbent))
                continue
            incumbent = ms if iteration.status == "keep" else incumbent
            points.append(Point(iteration, ms, iteration.interval_ms if measured else None, incumbent))
        return tuple(points)

    @cached_property
    def workloads(self) -> tuple[WorkloadChange, ...]:
        """All workloads. In an unfinished run, ``after`` is the last kept change. Its FLOP and bytes are the
        baseline's."""
        final = {metrics.workload: (metrics, f"run/final/{n}") for n, metrics in enumerate(self.run.final)}
        changes = []
        for n, before in enumerate(self.run.baseline):
            at = f"run/baseline/{n}"
            after, after_at = final.get(before.workload) or (not final and self._last_kept(before)) or (before, at)
            work = after_at if final else at
            bounds, flops = (f"{at}/bound", f"{work}/bound"), (f"{at}/flops", f"{work}/flops")
            changes.append(WorkloadChange(before, after, (at, after_at), bounds, flops))
        return tuple(changes)

    def _last_kept(self, before: Metrics) -> tuple[Metrics, str] | None:
        """Returns a workload's metrics after the last kept change, and their ledger id; None without such a change."""
        for iteration in self.kept[-1:]:
            for n, outcome in enumerate(iteration.outcomes):
                if outcome.workload == before.workload:
                    after = replace(before, measured=outcome.measured, predicted=outcome.predicted, code=outcome.code,
                                    mix={}, against_baseline=outcome.against_baseline)  # fmt: skip
                    return after, f"iteration/{iteration.n}/outcomes/{n}"
        return None

    @property
    def patch(self) -> str:
        return self.run.patch or "".join(iteration.diff for iteration in self.kept)

    @property
    def tried(self) -> tuple[Iteration, ...]:
        """The iterations, except the baseline."""
        return tuple(iteration for iteration in self.iterations if iteration.n > 0)

    @property
    def kept(self) -> tuple[Iteration, ...]:
        return tuple(still_kept(self.iterations))

    @property
    def before_ms(self) -> float | None:
        """The geometric mean of the workloads' times before the run, in ms."""
        return _mean_ms(change.before for change in self.workloads)

    @property
    def after_ms(self) -> float | None:
        return _mean_ms(change.after for change in self.workloads)

    @property
    def speedup(self) -> Speedup | None:
        return mean_speedup(self.workloads)

    @cached_property
    def records(self) -> dict[str, Json]:
        """The records as the ledger stores them. The key is the first part of their ids."""
        return {"run": to_json(self.run), "iteration": to_json({str(each.n): each for each in self.iterations})}

    def lines(self) -> Iterator[tuple[str, Dataclass]]:
        """Yields every record with its kind. The run is first."""
        yield "run", self.run
        yield from (("iteration", each) for each in self.iterations)

    @property
    def ruled_out(self) -> tuple[str, ...]:
        """The causes of slowness that the run excluded, without duplicates."""
        return tuple(dict.fromkeys(text for iteration in self.iterations for text in iteration.ruled_out))


def collect(
    run: RunRecord, iterations: Iterable[Iteration], beyond: Mapping[int, Mapping[str, int]] | None = None
) -> OptimizeEvidence:
    """Returns the evidence of a run from `Ledger.run`, `Ledger.iterations` and `Ledger.attempts`."""
    return OptimizeEvidence(run, tuple(iterations), beyond or {})


def speedup_of(ratio: Interval | None, at: str) -> Speedup | None:
    """Converts a ratio new / old to a speed-up. With too few samples for an interval, the speed-up has no bounds.

    at: the ledger id of the ratio.
    """
    if ratio is None or ratio.centre <= 0:
        return None
    ids = (f"{at}/centre", f"{at}/low", f"{at}/high")
    if not ratio.decided or ratio.low <= 0:
        return Speedup(1 / ratio.centre, ids=ids[:1])
    return Speedup(1 / ratio.centre, 1 / ratio.high, 1 / ratio.low, ids)


def time_id(metrics: Metrics, at: str) -> str:
    """Returns the ledger id of a time. ``at``: the id of its record."""
    return f"{at}/{'measured' if metrics.measured else 'predicted'}/us"


def settings(values: Encodable, at: str, name: str = "") -> Iterator[tuple[str, Sourced]]:
    """Flattens records into pairs of name and text. Nested names are joined with dots.

    at: the ledger id of ``values``.
    name: the prefix of each name.
    """
    yield from _flat(name, to_json(values), at)


def fields_of(record: object, at: str, *names: str) -> Iterator[tuple[str, Sourced]]:
    """Flattens fields of a record into pairs, as `settings` does. ``at``: the ledger id of the record."""
    for name in names:
        yield from settings(getattr(record, name), f"{at}/{name}", name)


def _flat(prefix: str, value: Json, at: str) -> Iterator[tuple[str, Sourced]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else name, inner, f"{at}/{key(name)}")
    elif isinstance(value, list):
        yield prefix, Sourced(", ".join(map(str, value)) or "none", at)
    elif prefix:
        yield prefix, Sourced("none" if value is None or value == {} else value, at)


def _mean_ms(versions: Iterable[Metrics]) -> float | None:
    mean_us = _geometric_mean([metrics.us for metrics in versions])
    return None if mean_us is None else mean_us / 1e3


def mean_speedup(changes: Iterable[WorkloadChange]) -> Speedup | None:
    """Returns the geometric mean of the speed-ups, without bounds. Returns None if a workload has no speed-up."""
    each = [change.speedup for change in changes]
    mean = _geometric_mean([speedup.centre if speedup else None for speedup in each])
    if mean is None:
        return None
    ids = (at for speedup in each if speedup for at in speedup.ids if not at.endswith(("/low", "/high")))
    return Speedup(mean, ids=tuple(ids))


def _geometric_mean(values: list[float | None]) -> float | None:
    positive = [value for value in values if value is not None and value > 0]
    return geometric_mean(positive) if len(positive) == len(values) else None
