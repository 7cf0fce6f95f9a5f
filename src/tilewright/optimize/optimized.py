"""The result of a run of `optimize`, and the object that ``--json`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilewright.hardware import prediction_error
from tilewright.ledger.codec import Encodable
from tilewright.ledger.records import Iteration, Metrics, RunRecord, ToConfirm, left_to_confirm, still_kept
from tilewright.printable import plural
from tilewright.race.stats import geometric_mean


@dataclass(frozen=True)
class Optimized:
    """The result of a run. ``folder``: the folder with the run's table, patch and versions."""

    record: RunRecord
    iterations: tuple[Iteration, ...]
    patch: str
    folder: Path
    note: str | None = None

    def __str__(self) -> str:
        how, tried = "measured" if self.record.measured else "predicted", max(len(self.iterations) - 1, 0)
        speedup = f"{self.speedup:.2f}× ({how}), " if self.speedup else ""
        return f"{self.record.task}: {speedup}{len(self.kept)} of {plural(tried, 'change')} kept"

    @property
    def kept(self) -> tuple[Iteration, ...]:
        return tuple(still_kept(self.iterations))

    @property
    def to_confirm(self) -> list[tuple[int, str, ToConfirm]]:
        """Number, name and evidence of each change that was left out until a GPU has measured it."""
        return left_to_confirm(self.iterations)

    @property
    def speedup(self) -> float | None:
        """Baseline time / final time, geometric mean over the workloads."""
        ratios = map(speedup_of, self.record.baseline, self.record.final)
        return geometric_mean(ratio for ratio in ratios if ratio is not None)


def speedup_of(before: Metrics, after: Metrics) -> float | None:
    """Returns the time before / the time after, from paired rounds if there are any.

    Without paired rounds the medians were measured minutes apart, so they may also differ for other reasons.
    """
    if after.against_baseline is not None:
        return 1 / after.against_baseline.centre
    a, b = before.us, after.us
    return a / b if a and b else None


def to_json(result: Optimized) -> dict[str, Encodable]:
    """Returns the object that `optimize --json` prints. Scripts rely on these names."""
    record = result.record
    return {
        **{name: getattr(record, name) for name in ("run", "task", "measured", "branch", "stop_reason")},
        "machine": {**vars(record.machine), "versions": dict(record.machine.versions)},
        "note": None if record.measured else "predicted, not measured",
        "baseline": {metrics.workload: _metrics_json(metrics) for metrics in record.baseline},
        "final": {metrics.workload: _metrics_json(metrics) for metrics in record.final},
        "speedup": result.speedup,
        "error_factor": None if record.measured else prediction_error.TIME_FACTOR,
        "to_confirm": [
            {"n": n, "optimization": name, "error_factor": prediction_error.KINDS[change.kind].factor, **vars(change)}
            for n, name, change in result.to_confirm
        ],
        "kept": [iteration.optimization for iteration in result.kept],
        "iterations": [_iteration_json(iteration) for iteration in result.iterations],
        "folder": str(result.folder),
    }


def _metrics_json(metrics: Metrics) -> dict[str, Encodable]:
    return {
        "us": metrics.measured.us if metrics.measured else None,
        "interval_us": list(metrics.measured.interval_us) if metrics.measured else None,
        "predicted_us": metrics.predicted.us if metrics.predicted else None,
        "against_baseline": metrics.against_baseline.to_json() if metrics.against_baseline else None,
        "speed_of_light_us": metrics.bound.speed_of_light_us if metrics.bound else None,
        "diagnosis": metrics.diagnosis.to_json() if metrics.diagnosis else None,
    }


def _iteration_json(iteration: Iteration) -> dict[str, Encodable]:
    names = ("n", "optimization", "entry", "site", "value", "risk", "correctness", "status", "latency_ms",
             "predicted_ms", "reason", "why_chosen", "seconds")  # fmt: skip
    tampering = {"tampering": iteration.tampering} if iteration.by_proposer else {}
    named = {name: getattr(iteration, name) for name in names}
    return {**named, "interval": iteration.interval_ms, "gain_parts": iteration.gain_parts, **tampering}
