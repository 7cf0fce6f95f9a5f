"""The evidence of a run as one value, from which the Markdown and the page are written.

The evidence comes only from the ledger's records, so a run has the same report on every machine. An unfinished run of
`optimize` is reported as if it had ended with its last kept change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.ledger.codec import Encodable, to_json
from tilewright.ledger.records import Iteration, Metrics, RunRecord, TuneRun, still_kept
from tilewright.race.stats import Interval, geometric_mean
from tilewright.records import Candidate, Configuration, Json, TuningResult, WorkloadResult


@dataclass(frozen=True)
class Speedup:
    """Old time / new time; above 1 is faster. ``low`` and ``high``: bounds, None if no interval is known."""

    centre: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Point:
    """One iteration in the chart of latencies. The times are measured in a measured run, else predicted.

    ms: None if the iteration crashed or was wrong.
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
    """One workload before and after a run. For `tune`, these are the shipped and the best configuration."""

    before: Metrics
    after: Metrics

    @property
    def workload(self) -> str:
        return self.before.workload

    @property
    def speedup(self) -> Speedup | None:
        """The speed-up, from paired rounds if both versions raced, else from both times; None if a time is missing."""
        if paired := speedup_of(self.after.against_baseline):
            return paired
        old, new = self.before.us, self.after.us
        return Speedup(old / new) if old and new else None


@dataclass(frozen=True)
class OptimizeEvidence:
    """A run of `optimize` with its iterations, and the numbers that follow from them."""

    run: RunRecord
    iterations: tuple[Iteration, ...]

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
        """All workloads. In an unfinished run, ``after`` is the last kept change with the baseline's FLOP and bytes."""
        final = {metrics.workload: metrics for metrics in self.run.final}
        kept = () if final else self.kept[-1:]
        outcomes = {outcome.workload: outcome for iteration in kept for outcome in iteration.outcomes}
        changes = []
        for before in self.run.baseline:
            after = final.get(before.workload, before)
            if outcome := outcomes.get(before.workload):
                after = replace(before, measured=outcome.measured, predicted=outcome.predicted, code=outcome.code,
                                mix={}, against_baseline=outcome.against_baseline)  # fmt: skip
            changes.append(WorkloadChange(before, after))
        return tuple(changes)

    @property
    def patch(self) -> str:
        return self.run.patch or "".join(iteration.diff for iteration in self.kept)

    @property
    def tried(self) -> tuple[Iteration, ...]:
        """The iterations without the baseline."""
        return tuple(iteration for iteration in self.iterations if iteration.n > 0)

    @property
    def kept(self) -> tuple[Iteration, ...]:
        return tuple(still_kept(self.iterations))

    @property
    def before_ms(self) -> float | None:
        """Geometric mean of the workloads' times before the run. `after_ms` is that of the times after the run."""
        return _mean_ms(change.before for change in self.workloads)

    @property
    def after_ms(self) -> float | None:
        return _mean_ms(change.after for change in self.workloads)

    @property
    def speedup(self) -> float | None:
        return _mean_speedup(self.workloads)

    @property
    def ruled_out(self) -> tuple[str, ...]:
        """The causes of slowness that the run ruled out, without repetitions."""
        return tuple(dict.fromkeys(text for iteration in self.iterations for text in iteration.ruled_out))


def collect(run: RunRecord, iterations: Iterable[Iteration]) -> OptimizeEvidence:
    """Returns the evidence of a run from `Ledger.run` and `Ledger.iterations`."""
    return OptimizeEvidence(run, tuple(iterations))


def speedup_of(ratio: Interval | None) -> Speedup | None:
    """Turns a ratio new / old into a speed-up, which has no bounds if the samples are too few for an interval."""
    if ratio is None or ratio.centre <= 0:
        return None
    if not ratio.decided or ratio.low <= 0:
        return Speedup(1 / ratio.centre)
    return Speedup(1 / ratio.centre, 1 / ratio.high, 1 / ratio.low)


def settings(values: Mapping[str, Encodable]) -> tuple[tuple[str, str], ...]:
    """Flattens a mapping into pairs of name and text; nested names are joined with dots."""
    return tuple(_flat("", to_json(values)))


def _flat(prefix: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else name, inner)
    elif isinstance(value, list):
        yield prefix, ", ".join(map(str, value)) or "none"
    elif prefix:
        yield prefix, "none" if value is None or value == {} else str(value)


# Runs of tune


@dataclass(frozen=True)
class TunedWorkload:
    """One workload of a run of `tune`."""

    result: WorkloadResult
    measured: bool

    @property
    def name(self) -> str:
        return self.result.workload.name

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates, the fastest first: sorted by measured time, then by predicted time."""

        def times(candidate: Candidate) -> list[float]:
            return [time.us if time else math.inf for time in (candidate.measured, candidate.predicted)]

        return tuple(sorted(self.result.candidates, key=times))

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """The knobs whose values differ between the candidates."""
        configurations = [candidate.configuration for candidate in self.candidates]
        every = dict.fromkeys(knob for configuration in configurations for knob in configuration)
        return tuple(knob for knob in every if len({str(each.get(knob)) for each in configurations}) > 1)

    @property
    def tie_band(self) -> float | None:
        """Times within this fraction of the fastest time count as tied; None if nothing was raced."""
        policy = (self.result.race or {}).get("policy")
        band = policy.get("tie_band") if isinstance(policy, dict) else None
        return float(band) if isinstance(band, (int, float)) else None

    @property
    def change(self) -> WorkloadChange:
        """The change from the shipped configuration to the best one."""
        shipped = next((candidate for candidate in self.candidates if self.is_shipped(candidate)), None)
        return WorkloadChange(self.metrics(shipped), self.metrics(self.result.best))

    def is_best(self, candidate: Candidate) -> bool:
        return self.result.best is not None and candidate.configuration == self.result.best.configuration

    def is_shipped(self, candidate: Candidate) -> bool:
        """Returns whether the candidate is the shipped one, or was raced in place of it (same machine code)."""
        shipped = next((other for other in self.candidates if other.configuration == self.result.shipped), None)
        if shipped is None or shipped.status != "duplicate" or shipped.code is None or candidate.code is None:
            return candidate.configuration == self.result.shipped
        return candidate.measured is not None and candidate.code.code_hash == shipped.code.code_hash

    def metrics(self, candidate: Candidate | None) -> Metrics:
        """Returns the candidate's time and work. A measured run uses only measured times: predicted times cannot be
        compared with them."""
        bound = self.result.bound
        metrics = Metrics(workload=self.name, bound=bound, flops=bound.flops, bytes=bound.bytes)
        if candidate is None:
            return metrics
        if self.measured:
            return replace(metrics, code=candidate.code, measured=candidate.measured)
        return replace(metrics, code=candidate.code, predicted=candidate.predicted)


@dataclass(frozen=True)
class TuneEvidence:
    """A run of `tune` with its workloads, and the numbers that follow from them."""

    run: TuneRun
    result: TuningResult
    workloads: tuple[TunedWorkload, ...]

    @property
    def changes(self) -> tuple[WorkloadChange, ...]:
        return tuple(workload.change for workload in self.workloads)

    @property
    def speedup(self) -> float | None:
        """Speed-up of the best over the shipped configuration: the geometric mean over the workloads."""
        return _mean_speedup(self.changes)


def collect_tune(run: TuneRun, result: TuningResult) -> TuneEvidence:
    """Returns the evidence of a run from `TuneLedger.run` and `TuneLedger.load`."""
    return TuneEvidence(run, result, tuple(TunedWorkload(workload, run.measured) for workload in result.workloads))


def knobs(configuration: Configuration, varying: Iterable[str]) -> str:
    """Formats only the knobs ``varying`` of a configuration."""
    return str(Configuration.of({knob: configuration[knob] for knob in varying if knob in configuration}))


def _mean_ms(versions: Iterable[Metrics]) -> float | None:
    mean_us = _geometric_mean([metrics.us for metrics in versions])
    return None if mean_us is None else mean_us / 1e3


def _mean_speedup(changes: Iterable[WorkloadChange]) -> float | None:
    """Returns the geometric mean of the speed-ups; None if a workload has no speed-up."""
    return _geometric_mean([speedup.centre if (speedup := change.speedup) else None for change in changes])


def _geometric_mean(values: list[float | None]) -> float | None:
    positive = [value for value in values if value is not None and value > 0]
    return geometric_mean(positive) if len(positive) == len(values) else None
