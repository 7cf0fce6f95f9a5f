"""The evidence of a run as one value: what the Markdown and the page show.

It is collected from the ledger's records alone, so the report of an old run is the same on any machine. A run of
`optimize` that has not finished ends with the last change that was kept.
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
    """Old time over new time: above 1 is faster. Bounds are None where no interval is known."""

    centre: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Point:
    """One iteration in the chart of latencies, measured or predicted as the run is."""

    iteration: Iteration
    ms: float | None
    """None where there is no time: it crashed, or it is wrong."""
    interval_ms: tuple[float, float] | None
    incumbent_ms: float | None
    """Of the code that is kept after it."""

    @property
    def n(self) -> int:
        return self.iteration.n


@dataclass(frozen=True)
class WorkloadChange:
    """One workload before and after the run; for `tune`, as shipped today and with the best configuration."""

    before: Metrics
    after: Metrics

    @property
    def workload(self) -> str:
        return self.before.workload

    @property
    def speedup(self) -> Speedup | None:
        """Paired by rounds where the two were raced; None where one has no time."""
        if paired := speedup_of(self.after.against_baseline):
            return paired
        old, new = time_us(self.before), time_us(self.after)
        return Speedup(old / new) if old and new else None


@dataclass(frozen=True)
class OptimizeEvidence:
    """A run of `optimize` and what follows from its records."""

    run: RunRecord
    iterations: tuple[Iteration, ...]

    @cached_property
    def points(self) -> tuple[Point, ...]:
        found, incumbent, measured = [], None, self.run.measured
        for iteration in self.iterations:
            ms = iteration.latency_ms if measured else iteration.predicted_ms
            if ms is None or not (math.isfinite(ms) and ms > 0) or iteration.status == "crash":
                found.append(Point(iteration, None, None, incumbent))
                continue
            incumbent = ms if iteration.status == "keep" else incumbent
            found.append(Point(iteration, ms, iteration.interval_ms if measured else None, incumbent))
        return tuple(found)

    @cached_property
    def workloads(self) -> tuple[WorkloadChange, ...]:
        """An unfinished run stands as its last kept change left it; the work is taken to be the baseline's."""
        final = {metrics.workload: metrics for metrics in self.run.final}
        kept = () if final else self.kept[-1:]
        outcomes = {outcome.workload: outcome for iteration in kept for outcome in iteration.outcomes}
        changes = []
        for before in self.run.baseline:
            after = final.get(before.workload, before)
            if made := outcomes.get(before.workload):
                after = replace(before, measured=made.measured, predicted=made.predicted, code=made.code, mix={})
                after = replace(after, against_baseline=made.against_baseline)
            changes.append(WorkloadChange(before, after))
        return tuple(changes)

    @property
    def patch(self) -> str:
        return self.run.patch or "".join(iteration.diff for iteration in self.kept)

    @property
    def tried(self) -> tuple[Iteration, ...]:
        """Without the baseline."""
        return tuple(iteration for iteration in self.iterations if iteration.n > 0)

    @property
    def kept(self) -> tuple[Iteration, ...]:
        return tuple(still_kept(self.iterations))

    @property
    def before_ms(self) -> float | None:
        """Geometric mean over the workloads, as is `after_ms`."""
        return _mean_ms(change.before for change in self.workloads)

    @property
    def after_ms(self) -> float | None:
        return _mean_ms(change.after for change in self.workloads)

    @property
    def speedup(self) -> float | None:
        return _mean_speedup(self.workloads)

    @property
    def ruled_out(self) -> tuple[str, ...]:
        """The causes that the run excluded, each once, for a person who continues from here."""
        return tuple(dict.fromkeys(text for iteration in self.iterations for text in iteration.ruled_out))


def collect(run: RunRecord, iterations: Iterable[Iteration]) -> OptimizeEvidence:
    """The report of a run, from what `Ledger.run` and `Ledger.iterations` return."""
    return OptimizeEvidence(run, tuple(iterations))


def time_us(metrics: Metrics) -> float | None:
    """Its time, measured or else predicted: a run has only one of them."""
    time = metrics.measured or metrics.predicted
    return time.us if time else None


def speedup_of(ratio: Interval | None) -> Speedup | None:
    """The speed-up behind a ratio new / old; without bounds where too few samples bound it."""
    if ratio is None or ratio.centre <= 0:
        return None
    if not ratio.decided or ratio.low <= 0:
        return Speedup(1 / ratio.centre)
    return Speedup(1 / ratio.centre, 1 / ratio.high, 1 / ratio.low)


def settings(values: Mapping[str, Encodable]) -> tuple[tuple[str, str], ...]:
    """A mapping as pairs of name and text; nested names are joined with dots."""
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
        """Those with a time first, the fastest first: by the measured time, then by the predicted one."""
        rows = self.result.candidates
        return tuple(sorted(rows, key=lambda one: [t.us if t else math.inf for t in (one.measured, one.predicted)]))

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """The knobs whose values differ between the candidates."""
        configurations = [candidate.configuration for candidate in self.candidates]
        return tuple(
            knob
            for knob in dict.fromkeys(knob for configuration in configurations for knob in configuration)
            if len({str(configuration.get(knob)) for configuration in configurations}) > 1
        )

    @property
    def tie_band(self) -> float | None:
        """Share of the time that is worth no change of winner."""
        policy = (self.result.race or {}).get("policy")
        band = policy.get("tie_band") if isinstance(policy, dict) else None
        return float(band) if isinstance(band, (int, float)) else None

    @property
    def change(self) -> WorkloadChange:
        """From the configuration shipped today to the best one."""
        shipped = next((candidate for candidate in self.candidates if self.is_shipped(candidate)), None)
        return WorkloadChange(self._metrics(shipped), self._metrics(self.result.best))

    def is_best(self, candidate: Candidate) -> bool:
        return self.result.best is not None and candidate.configuration == self.result.best.configuration

    def is_shipped(self, candidate: Candidate) -> bool:
        """True also for the candidate that was raced in its place because their machine code is equal."""
        shipped = next((other for other in self.candidates if other.configuration == self.result.shipped), None)
        if shipped is None or shipped.status != "duplicate" or shipped.code is None or candidate.code is None:
            return candidate.configuration == self.result.shipped
        return candidate.measured is not None and candidate.code.code_hash == shipped.code.code_hash

    def _metrics(self, candidate: Candidate | None) -> Metrics:
        """For a measured run the measured time only: a predicted time is not compared with it."""
        bound = self.result.bound
        return Metrics(
            workload=self.name,
            measured=candidate.measured if candidate and self.measured else None,
            predicted=candidate.predicted if candidate and not self.measured else None,
            bound=bound,
            flops=bound.flops,
            bytes=bound.bytes,
            code=candidate.code if candidate else None,
        )


@dataclass(frozen=True)
class TuneEvidence:
    """A run of `tune` and what follows from its records."""

    run: TuneRun
    result: TuningResult
    workloads: tuple[TunedWorkload, ...]

    @property
    def changes(self) -> tuple[WorkloadChange, ...]:
        return tuple(workload.change for workload in self.workloads)

    @property
    def speedup(self) -> float | None:
        """Of the best over the shipped configuration."""
        return _mean_speedup(self.changes)


def collect_tune(run: TuneRun, result: TuningResult) -> TuneEvidence:
    """The evidence of a run, from what `TuneLedger.run` and `TuneLedger.load` return."""
    return TuneEvidence(run, result, tuple(TunedWorkload(workload, run.measured) for workload in result.workloads))


def knobs(configuration: Configuration, varying: Iterable[str]) -> str:
    """The configuration without the knobs that are the same for all candidates."""
    return str(Configuration.of({knob: configuration[knob] for knob in varying if knob in configuration}))


def _mean_ms(versions: Iterable[Metrics]) -> float | None:
    mean_us = _geometric_mean([time_us(metrics) for metrics in versions])
    return None if mean_us is None else mean_us / 1e3


def _mean_speedup(changes: Iterable[WorkloadChange]) -> float | None:
    """Geometric mean over the workloads; None where one of them has none."""
    return _geometric_mean([speedup.centre if (speedup := change.speedup) else None for change in changes])


def _geometric_mean(values: list[float | None]) -> float | None:
    positive = [value for value in values if value is not None and value > 0]
    return geometric_mean(positive) if len(positive) == len(values) else None
