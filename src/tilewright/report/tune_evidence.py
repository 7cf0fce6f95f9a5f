"""The evidence of a run of `tune`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.ledger.codec import Dataclass, to_json
from tilewright.ledger.records import Metrics, TuneRun
from tilewright.records import Candidate, Configuration, Json, TuningResult, WorkloadResult
from tilewright.report.evidence import Speedup, WorkloadChange, mean_speedup


@dataclass(frozen=True)
class TunedWorkload:
    """One workload of a run of `tune`."""

    result: WorkloadResult
    measured: bool
    at: str
    """The ledger id of the workload."""

    @property
    def name(self) -> str:
        return self.result.workload.name

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates, sorted by measured time, then by predicted time."""

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
        sides = next((candidate for candidate in self.candidates if self.is_shipped(candidate)), None), self.result.best
        at, bound = (self.at_of(sides[0]), self.at_of(sides[1])), f"{self.at}/bound"
        before, after = map(self.metrics, sides)
        return WorkloadChange(before, after, at, (bound, bound), (f"{bound}/flops", f"{bound}/flops"))

    def at_of(self, candidate: Candidate | None) -> str:
        """Returns the candidate's ledger id."""
        return f"{self.at}/candidates/{self.result.candidates.index(candidate)}" if candidate else self.at

    def is_best(self, candidate: Candidate) -> bool:
        return self.result.best is not None and candidate.configuration == self.result.best.configuration

    def is_shipped(self, candidate: Candidate) -> bool:
        """Returns whether the candidate is the shipped one, or was raced in its place because of equal machine code."""
        shipped = next((other for other in self.candidates if other.configuration == self.result.shipped), None)
        if shipped is None or shipped.status != "duplicate" or shipped.code is None or candidate.code is None:
            return candidate.configuration == self.result.shipped
        return candidate.measured is not None and candidate.code.code_hash == shipped.code.code_hash

    def metrics(self, candidate: Candidate | None) -> Metrics:
        """Returns the candidate's time and work.

        A measured run uses only measured times, because predicted times cannot be compared with them.
        """
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
    def speedup(self) -> Speedup | None:
        """Speed-up of the best over the shipped configuration: the geometric mean over the workloads."""
        return mean_speedup(self.changes)

    @cached_property
    def records(self) -> dict[str, Json]:
        """The records; see `OptimizeEvidence.records`."""
        return {"run": to_json(self.run), "workload": to_json([each.result for each in self.workloads])}

    def lines(self) -> Iterator[tuple[str, Dataclass]]:
        """Yields the records; see `OptimizeEvidence.lines`."""
        yield "run", self.run
        yield from (("workload", each.result) for each in self.workloads)


def collect_tune(run: TuneRun, result: TuningResult) -> TuneEvidence:
    """Returns the evidence of a run from `TuneLedger.run` and `TuneLedger.load`."""
    workloads = (TunedWorkload(each, run.measured, f"workload/{n}") for n, each in enumerate(result.workloads))
    return TuneEvidence(run, result, tuple(workloads))


def knobs(configuration: Configuration, varying: Iterable[str]) -> str:
    """Formats a configuration: only the knobs in ``varying``."""
    return str(Configuration.of({knob: configuration[knob] for knob in varying if knob in configuration}))
