"""Makes the JSON object that `tune --json` prints. Scripts rely on the names of its fields."""

from __future__ import annotations

from tilewright.hardware.prediction_error import TIME_FACTOR
from tilewright.race.stats import geometric_mean
from tilewright.records import Bound, Candidate, Json, TuningResult, WorkloadResult

OF_CODE = ("registers", "local_stores", "shared_bytes", "tensor_path", "code_hash")


def to_json(result: TuningResult) -> dict[str, Json]:
    return {
        "task": result.task,
        "run": result.run,
        "machine": {**vars(result.machine), "versions": dict(result.machine.versions)},
        "measured": result.measured,
        "note": None if result.measured else "predicted, not measured",
        "error_factor": None if result.measured else TIME_FACTOR,
        "seconds": dict(result.seconds),
        "speedup_over_shipped": speedup_over_shipped(result),
        "workloads": [_workload_json(workload) for workload in result.workloads],
    }


def _workload_json(result: WorkloadResult) -> dict[str, Json]:
    return {
        "workload": result.workload.name,
        "dims": dict(result.workload.dims),
        "bound": {**vars(result.bound)},
        "best": _candidate_json(result.best, result.bound) if result.best else None,
        "reason": result.reason,
        "tied": [dict(config) for config in result.tied],
        "shipped": dict(result.shipped),
        "shipped_us": _measured_us(shipped_of(result)),
        "speedup_over_shipped": speedup_of(result),
        "predicted_shipped_us": _predicted_us(shipped_of(result)),
        "candidates": [_candidate_json(candidate, result.bound) for candidate in result.candidates],
        "race": dict(result.race) if result.race else None,
        "searched": {**vars(result.searched)} if result.searched else None,
    }


def shipped_of(result: WorkloadResult) -> Candidate | None:
    """Returns the candidate that ships today; None if it was not tried."""
    return next((each for each in result.candidates if each.configuration == result.shipped), None)


def speedup_of(result: WorkloadResult) -> float | None:
    """Returns the measured time of the shipped configuration / that of the best; None unless both were measured."""
    before, after = _measured_us(shipped_of(result)), _measured_us(result.best)
    return before / after if before and after else None


def speedup_over_shipped(result: TuningResult) -> float | None:
    """Returns the geometric mean of `speedup_of` over the workloads; None unless all are known."""
    speedups = [speedup_of(workload) for workload in result.workloads]
    known = [speedup for speedup in speedups if speedup is not None]
    return geometric_mean(known) if len(known) == len(speedups) else None


def _measured_us(candidate: Candidate | None) -> float | None:
    return candidate.measured.us if candidate is not None and candidate.measured is not None else None


def _predicted_us(candidate: Candidate | None) -> float | None:
    return candidate.predicted.us if candidate is not None and candidate.predicted is not None else None


def _candidate_json(candidate: Candidate, bound: Bound) -> dict[str, Json]:
    measured, code = candidate.measured, candidate.code
    return {
        "config": dict(candidate.configuration),
        "status": candidate.status,
        "reason": candidate.reason,
        "predicted_us": candidate.predicted.us if candidate.predicted else None,
        "measured_us": measured.us if measured else None,
        "interval_us": list(measured.interval_us) if measured else None,
        "speed_of_light": bound.share(measured.us) if measured else None,
        "verdict": candidate.checked.verdict if candidate.checked else "unverified",
        "verdict_reason": candidate.checked.reason if candidate.checked else None,
        **{name: code.known[name] if code else None for name in OF_CODE},
        "compile_seconds": candidate.compile_seconds,
    }
