"""What a run of the loop leaves: its record and iterations, the patch, and the object that ``--json`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.ledger.records import Iteration, Metrics, RunRecord, still_kept
from tilewright.race.stats import geometric_mean


@dataclass(frozen=True)
class Optimized:
    """What a run leaves."""

    record: RunRecord
    iterations: tuple[Iteration, ...]
    patch: str
    folder: Path
    """Where the views of the run lie."""
    note: str | None = None

    @property
    def kept(self) -> tuple[Iteration, ...]:
        return tuple(still_kept(self.iterations))

    @property
    def speedup(self) -> float | None:
        """Baseline over final, geometric mean over the workloads: of paired rounds, or of predictions."""
        ratios = [
            ratio
            for one, other in zip(self.record.baseline, self.record.final, strict=False)
            if (ratio := speedup_of(one, other)) is not None
        ]
        return geometric_mean(ratios)


def speedup_of(before: Metrics, after: Metrics) -> float | None:
    """Paired where it can be: two medians of different minutes also differ by what happened in between."""
    if after.against_baseline is not None:
        return 1 / after.against_baseline.centre
    a, b = us_of(before), us_of(after)
    return a / b if a and b else None


def us_of(one: Metrics) -> float | None:
    time = one.measured or one.predicted
    return time.us if time else None


def to_json(result: Optimized) -> dict[str, Any]:
    """What `optimize --json` prints; scripts rely on these names."""
    record = result.record
    return {
        "run": record.run,
        "task": record.task,
        "machine": {**vars(record.machine), "versions": dict(record.machine.versions)},
        "measured": record.measured,
        "note": None if record.measured else "predicted, not measured",
        "baseline": {one.workload: _standing_json(one) for one in record.baseline},
        "final": {one.workload: _standing_json(one) for one in record.final},
        "speedup": result.speedup,
        "kept": [one.optimization for one in result.kept],
        "branch": record.branch,
        "stop_reason": record.stop_reason,
        "iterations": [_iteration_json(one) for one in result.iterations],
        "folder": str(result.folder),
    }


def _standing_json(one: Metrics) -> dict[str, Any]:
    """A measured time under ``us``, a predicted one under ``predicted_us``."""
    return {
        "us": one.measured.us if one.measured else None,
        "interval_us": list(one.measured.interval_us) if one.measured else None,
        "predicted_us": one.predicted.us if one.predicted else None,
        "against_baseline": one.against_baseline.to_json() if one.against_baseline else None,
        "speed_of_light_us": one.bound.speed_of_light_us if one.bound else None,
    }


def _iteration_json(one: Iteration) -> dict[str, Any]:
    return {
        "n": one.n,
        "optimization": one.optimization,
        "entry": one.entry,
        "site": one.site,
        "value": one.value,
        "risk": one.risk,
        "correctness": one.correctness,
        "status": one.status,
        "latency_ms": one.latency_ms,
        "interval": list(one.interval_ms) if one.interval_ms else None,
        "predicted_ms": one.predicted_ms,
        "reason": one.reason,
        "why_chosen": one.why_chosen,
        "seconds": one.seconds,
    }
