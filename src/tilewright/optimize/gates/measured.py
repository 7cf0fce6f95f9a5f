"""The gate with a GPU.

    verify and race in heats of three (`heats`) → confirm the fastest → decide

The heats only rank. The best of many noisy times looks faster than it is, so the fastest variant is measured again.
The decision uses only this confirmation. The interpreter checks the variant on other shapes. The GPU times the variant
in pairs with incumbent and baseline, on fresh inputs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial

from tilewright.ledger.records import Attempt, AttemptStatus, Metrics, WorkloadOutcome
from tilewright.optimize.attempting import Variant
from tilewright.optimize.gates import arena as racing
from tilewright.optimize.gates import base
from tilewright.optimize.gates.base import ConfirmedVariant, Judged, RacedVariants, RankedVariant
from tilewright.optimize.gates.heats import Heats
from tilewright.race.stats import Interval, geometric_mean, measured_of, median_interval
from tilewright.records import Bound, Checked, MeasuredTime, Workload
from tilewright.worker.client import Eliminated, RaceResult

WORTH_CONFIRMING = 0.998
"""A variant is confirmed only if its time in the race is at most this fraction of the incumbent's time."""
LOSS = 1.02
"""A variant that takes more than this many times the incumbent's time on some workload is ranked last."""


class MeasuredGate:
    """Implements `base.Gate` with measured times."""

    measured = True
    _baseline: Variant

    def __init__(
        self, arena: racing.Arena, checker: base.VariantChecker, workloads: Sequence[Workload],
        bounds: Mapping[str, Bound], fresh: str,
    ) -> None:  # fmt: skip
        """``fresh``: the seed from which the seeds of all confirmations are drawn."""
        self.arena, self.checker, self.bounds = arena, checker, bounds
        self.workloads = tuple(workloads)
        self.noise: dict[str, Interval] = {}
        self._fresh = random.Random(fresh)
        self._gpu_only = False
        """True if the interpreter cannot check even the untouched code. Then only the GPU checks variants."""

    def baseline(self, variant: Variant) -> tuple[Metrics, ...] | str:
        """Verifies the untouched code with the interpreter and on the GPU, and times it against a copy of itself."""
        self._baseline = variant
        with self.arena.preparing([workload.name for workload in self.workloads]):
            checked = self.checker.verdict(variant)
        if checked.verdict == "incorrect":
            return checked.reason
        self._gpu_only = checked.verdict == "unverified"
        metrics = []
        for workload in self.workloads:
            on_gpu = self.arena.verify(variant.entrant, workload.name)
            if isinstance(on_gpu, Eliminated) or not on_gpu.right:
                return f"workload {workload}: {on_gpu.reason}"
            timed = self._paired(workload, variant, variant)
            if isinstance(timed, Eliminated):
                return f"workload {workload}: {timed.reason}"
            self.noise[workload.name] = timed.noise
            measured = measured_of(timed.incumbent_us)
            metrics.append(base.metrics_of(variant, workload, self.bounds[workload.name], measured))
        return tuple(metrics)

    def final(self, variant: Variant) -> tuple[Metrics, ...]:
        """Times the last incumbent once more, in pairs with the baseline."""
        metrics = []
        for workload in self.workloads:
            timed, measured, ratio = self._paired(workload, variant, self._baseline), None, None
            if not isinstance(timed, Eliminated):
                measured = measured_of(timed.candidate_us)
                ratio = median_interval(timed.against_baseline)
            metrics.append(base.metrics_of(variant, workload, self.bounds[workload.name], measured, ratio))
        return tuple(metrics)

    def ranking(self, incumbent: Variant) -> Heats:
        return Heats(self._failure, partial(self._race, incumbent))

    def _failure(self, variant: Variant) -> Attempt | None:
        for workload in self.workloads:
            checked = self.arena.verify(variant.entrant, workload.name)
            if isinstance(checked, Eliminated) or not checked.right:
                return variant.attempt("wrong" if _checked(checked) else "crashed", f"{workload}: {checked.reason}")
        return None

    def _race(self, incumbent: Variant, variants: Sequence[Variant]) -> tuple[list[RankedVariant], list[Attempt]]:
        """Races correct variants with the incumbent on every workload."""
        versions = [incumbent.entrant, *(variant.entrant for variant in variants)]
        races = {workload.name: self.arena.race(workload.name, versions) for workload in self.workloads}
        ranked = _ranked(variants, races)
        return ranked, [_raced(variant, races, ranked) for variant in variants]

    def confirm(self, raced: RacedVariants, incumbent: Variant) -> ConfirmedVariant | Judged:
        """Measures the fastest variant that the interpreter accepts, in pairs with incumbent and baseline, on fresh
        inputs."""
        attempts = raced.attempts
        for ranked in raced.ranked:
            best = ranked.variant
            if ranked.ratio > WORTH_CONFIRMING:
                return self._no_gain(ranked, attempts)
            checked = self.checker.verdict(best)
            if checked.verdict == "incorrect":
                attempts = base.with_outcome(attempts, best, "wrong", checked.reason)
                continue
            confirmed = racing.confirm(
                self.arena, [workload.name for workload in self.workloads], best.entrant, incumbent.entrant,
                self._baseline.entrant, self._fresh.getrandbits(31),
            )  # fmt: skip
            if not isinstance(confirmed, Eliminated):
                return ConfirmedVariant(best, incumbent, checked, attempts, confirmed)
            status: AttemptStatus = "wrong" if confirmed.checked else "crashed"
            return _failed(best, base.with_outcome(attempts, best, status, confirmed.reason), confirmed.reason)
        reason = "no variant was left to confirm" if raced.correct else "no value gave a correct result"
        return _failed(raced.variants[0], attempts, reason)

    def decide(self, confirmed: ConfirmedVariant) -> Judged:
        """Keeps the variant if the confirmation proves a gain and the interpreter's check passed."""
        assert confirmed.confirmations is not None, "this gate measures"
        best, checked = confirmed.best, confirmed.checked
        decision, samples = confirmed.confirmations.decision, confirmed.confirmations.by_workload
        outcomes = []
        for name, times in samples.items():
            verdict = decision.by_workload[name]
            outcomes.append(
                WorkloadOutcome(
                    workload=name, verdict=f"{verdict.verdict}: {verdict.why}", ratio=verdict.ratio,
                    against_baseline=verdict.against_baseline, measured=measured_of(times.candidate_us),
                    incumbent=measured_of(times.incumbent_us), baseline=measured_of(times.baseline_us),
                    checked=times.checked, code=best.codes[name],
                )
            )  # fmt: skip
        verified = checked.right or self._gpu_only
        unverified = f"faster, but not verified on other shapes: {checked.reason}"
        return Judged(
            best=best, correctness="PASS" if verified else "unverified", keep=decision.keep and verified,
            decided=decision.decided,
            reason=decision.reason if verified or not decision.keep else unverified,
            outcomes=tuple(outcomes), attempts=confirmed.attempts, environment={
                "noise": {name: times.noise.to_json() for name, times in samples.items()},
                "monitors": {name: [dict(monitor) for monitor in times.monitors] for name, times in samples.items()},
                "other_shapes": checked.reason,
            },
        )  # fmt: skip

    def _paired(self, workload: Workload, variant: Variant, baseline: Variant) -> racing.Confirmation | Eliminated:
        """Times a version in pairs with the baseline, on the inputs of the run's seed."""
        return self.arena.confirm(
            workload.name, variant.entrant, baseline.entrant, baseline.entrant, self.arena.seed, racing.PLAN[0]
        )

    def _no_gain(self, ranked: RankedVariant, attempts: Sequence[Attempt]) -> Judged:
        best, outcomes = ranked.variant, []
        raced = sum(attempt.status == "raced" for attempt in attempts)
        for workload, (time, incumbent) in ranked.times.items():
            outcomes.append(
                WorkloadOutcome(
                    workload=workload, verdict=f"{time.us / incumbent.us:.3f} × the incumbent's time in the race",
                    ratio=_ratio(time, incumbent), measured=time, incumbent=incumbent,
                    checked=_checked(self.arena.verify(best.entrant, workload)), code=best.codes[workload],
                )
            )  # fmt: skip
        return Judged(
            best=best, correctness="PASS", keep=False,
            reason=f"no gain in the race: the best of {raced} is {ranked.ratio:.3f} × the incumbent's time",
            outcomes=tuple(outcomes), attempts=tuple(attempts),
        )  # fmt: skip


def _failed(best: Variant, attempts: Sequence[Attempt], reason: str) -> Judged:
    wrong = [attempt for attempt in attempts if attempt.status in ("wrong", "crashed")]
    if wrong and wrong[-1].reason not in reason:
        reason = f"{reason}: {wrong[-1].reason}"
    crashed = bool(wrong) and all(attempt.status == "crashed" for attempt in wrong)
    return Judged(best=best, correctness="FAIL", keep=False, crashed=crashed, reason=reason, attempts=tuple(attempts))


def _ranked(variants: Sequence[Variant], races: Mapping[str, RaceResult]) -> list[RankedVariant]:
    """Returns the variants that finished every race, with their times."""
    ranked = []
    for variant in variants:
        times = {workload: pair for workload, race in races.items() if (pair := _raced_times(variant, race))}
        ratios = [time.us / incumbent.us for time, incumbent in times.values()]
        mean = geometric_mean(ratios)
        if mean is not None and len(times) == len(races):
            ranked.append(RankedVariant(variant, mean, max(ratios) > LOSS, times))
    return ranked


def _raced_times(variant: Variant, race: RaceResult) -> tuple[MeasuredTime, MeasuredTime] | None:
    """Returns the times of the variant and of the incumbent; None if either time is missing."""
    times = {finisher.name: finisher.measured for finisher in race.raced}
    time, incumbent = times.get(variant.version.name), race.raced[0].measured if race.raced else None
    return (time, incumbent) if time is not None and incumbent is not None else None


def _raced(variant: Variant, races: Mapping[str, RaceResult], ranked: Sequence[RankedVariant]) -> Attempt:
    name = variant.version.name
    measured = {
        workload: finisher.measured
        for workload, race in races.items()
        for finisher in race.raced
        if finisher.name == name and finisher.measured is not None
    }
    for other in ranked:
        if other.variant is variant:
            reason = f"{other.ratio:.3f} × the incumbent's time in the race"
            return variant.attempt("raced", reason, measured=measured)
    for out in (out for race in races.values() for out in race.eliminated if out.name == name):
        return variant.attempt("wrong" if out.checked else "crashed", out.reason, measured=measured)
    return variant.attempt("crashed", "the race gave no time", measured=measured)


def _ratio(time: MeasuredTime, incumbent: MeasuredTime) -> Interval:
    """Returns the ratio of two medians. The times are not paired, so the interval combines the widths of both
    intervals."""
    low, high = time.interval_us[0] / incumbent.interval_us[1], time.interval_us[1] / incumbent.interval_us[0]
    return Interval(low, time.us / incumbent.us, high, 0.95, len(time.samples_us))


def _checked(verdict: Checked | Eliminated) -> Checked | None:
    return verdict if isinstance(verdict, Checked) else verdict.checked
