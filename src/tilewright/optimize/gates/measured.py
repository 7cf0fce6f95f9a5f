"""The gate with a GPU: verified on the device and by the interpreter, raced, confirmed on fresh inputs, decided.

    verify each variant → race them with the incumbent → the best of them → interpreter → confirm → decide

The race only chooses. The best of many noisy times looks faster than it is, so it is measured again: the decision
rests on the confirmation alone, which pairs it with incumbent and baseline on inputs that nobody has seen.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from tilewright.ledger.records import Attempt, AttemptStatus, Metrics, WorkloadOutcome
from tilewright.optimize.attempting import Variant
from tilewright.optimize.decide import ROUNDS
from tilewright.optimize.gates.arena import FEWEST_ROUNDS, SECONDS, Arena, Confirmation, Confirmed, confirm
from tilewright.optimize.gates.base import CORRECTNESS, Interpreting, Judged, metrics_of
from tilewright.race.protocol import Budget
from tilewright.race.stats import Interval, geometric_mean, ratio_interval
from tilewright.records import Bound, Checked, MeasuredTime, Workload
from tilewright.worker.client import Eliminated, RaceResult, measured_of

WORTH_CONFIRMING = 0.998
"""Of the incumbent's time in the race: a variant that is not even this much faster there is not confirmed."""
LOSS = 1.02
"""A variant that is this much slower on some workload in the race is no candidate while another is."""


class MeasuredGate:
    """Implements `base.Gate`."""

    measured = True
    _baseline: Variant

    def __init__(
        self, arena: Arena, interpreting: Interpreting, workloads: Sequence[Workload], bounds: Mapping[str, Bound],
        fresh: str,
    ) -> None:  # fmt: skip
        """``fresh``: what the seeds of the confirmations are drawn from."""
        self.arena, self.interpreting, self.bounds = arena, interpreting, bounds
        self.workloads = tuple(workloads)
        self.noise: dict[str, Interval] = {}
        self._fresh = random.Random(fresh)
        self._blind = False
        """The interpreter cannot judge even the untouched code: then the GPU's word has to do."""

    def baseline(self, variant: Variant) -> tuple[Metrics, ...] | str:
        """The untouched code: verified on both engines, and timed against a second copy of itself."""
        self._baseline = variant
        variant.remember()
        checked = self.interpreting.verdict(variant)
        if checked.verdict == "incorrect":
            return checked.reason
        self._blind = checked.verdict == "unverified"
        metrics = []
        for workload in self.workloads:
            on_gpu = self.arena.verify(variant.version, workload.name)
            if isinstance(on_gpu, Eliminated) or on_gpu.verdict != "correct":
                return f"workload {workload}: {on_gpu.reason}"
            seen = self._paired(workload, variant, variant)
            if isinstance(seen, Eliminated):
                return f"workload {workload}: {seen.reason}"
            self.noise[workload.name] = seen.paired.noise.ratio
            metrics.append(metrics_of(variant, workload, self.bounds[workload.name], measured_of(seen.incumbent_us)))
        return tuple(metrics)

    def final(self, variant: Variant) -> tuple[Metrics, ...]:
        """The last incumbent, paired with the baseline once more."""
        metrics = []
        for workload in self.workloads:
            seen, bound = self._paired(workload, variant, self._baseline), self.bounds[workload.name]
            if isinstance(seen, Eliminated):
                metrics.append(metrics_of(variant, workload, bound))
            else:
                ratio = ratio_interval(seen.candidate_us, seen.baseline_us, 0.95)
                metrics.append(metrics_of(variant, workload, bound, measured_of(seen.candidate_us), ratio))
        return tuple(metrics)

    def judge(self, variants: Sequence[Variant], incumbent: Variant) -> Judged:
        """Verified, raced, confirmed, decided."""
        attempts: list[Attempt] = []
        correct = self._verified(variants, attempts)
        if not correct:
            return _failed(variants[0], attempts, "no value gave a correct result")
        versions = [incumbent.version, *(variant.version for variant in correct)]
        races = {workload.name: self.arena.race(workload.name, versions) for workload in self.workloads}
        ranked = _ranked(correct, races)
        attempts += [_raced(variant, races, ranked) for variant in correct]
        while ranked:
            best, ratio = ranked.pop(0)
            if ratio > WORTH_CONFIRMING:
                return self._no_gain(best, races, ratio, attempts)
            checked = self.interpreting.verdict(best)
            if checked.verdict != "incorrect":
                return self._confirm(best, incumbent, checked, attempts)
            attempts = _again(attempts, best, "wrong", checked.reason)
        return _failed(variants[0], attempts, "no variant was left to confirm")

    def _verified(self, variants: Sequence[Variant], attempts: list[Attempt]) -> list[Variant]:
        correct = []
        for variant in variants:
            variant.remember()
            for workload in self.workloads:
                checked = self.arena.verify(variant.version, workload.name)
                if isinstance(checked, Eliminated) or checked.verdict != "correct":
                    status: AttemptStatus = "wrong" if _checked(checked) else "crashed"
                    attempts.append(variant.attempt(status, f"{workload}: {checked.reason}"))
                    break
            else:
                correct.append(variant)
        return correct

    def _confirm(self, best: Variant, incumbent: Variant, checked: Checked, attempts: list[Attempt]) -> Judged:
        """Against incumbent and baseline, on inputs of its own."""
        seen = confirm(
            self.arena, [workload.name for workload in self.workloads], best.version, incumbent.version,
            self._baseline.version, self._fresh.getrandbits(31),
        )  # fmt: skip
        if isinstance(seen, Eliminated):
            attempts = _again(attempts, best, "wrong" if seen.checked else "crashed", seen.reason)
            return _failed(best, attempts, seen.reason)
        return self._decided(best, seen, checked, attempts)

    def _decided(self, best: Variant, confirmed: Confirmed, checked: Checked, attempts: list[Attempt]) -> Judged:
        decided, seen, outcomes = confirmed.decision, confirmed.by_workload, []
        for name, times in seen.items():
            verdict = decided.by_workload[name]
            outcomes.append(
                WorkloadOutcome(
                    workload=name, verdict=f"{verdict.verdict}: {verdict.why}", ratio=verdict.ratio,
                    against_baseline=verdict.against_baseline, measured=measured_of(times.candidate_us),
                    incumbent=measured_of(times.incumbent_us), baseline=measured_of(times.baseline_us),
                    checked=times.checked, code=best.codes[name],
                )
            )  # fmt: skip
        sound = checked.verdict == "correct" or self._blind
        unsound = f"faster, but not verified on other shapes: {checked.reason}"
        return Judged(
            best=best, correctness=CORRECTNESS["correct" if sound else "unverified"], keep=decided.keep and sound,
            reason=decided.reason if sound or not decided.keep else unsound,
            outcomes=tuple(outcomes), attempts=tuple(attempts), environment={
                "noise": {name: times.paired.noise.to_json() for name, times in seen.items()},
                "monitors": {name: [dict(monitor) for monitor in times.monitors] for name, times in seen.items()},
                "other_shapes": checked.reason,
            },
        )  # fmt: skip

    def _paired(self, workload: Workload, variant: Variant, baseline: Variant) -> Confirmation | Eliminated:
        """One look of a version against the baseline, on the run's own inputs."""
        budget = Budget(ROUNDS[0], SECONDS[0], FEWEST_ROUNDS)
        return self.arena.confirm(
            workload.name, variant.version, baseline.version, baseline.version, self.arena.seed, budget
        )

    def _no_gain(self, best: Variant, races: Mapping[str, RaceResult], ratio: float, attempts: list[Attempt]) -> Judged:
        outcomes = []
        for workload in self.workloads:
            pair = _raced_times(best, races[workload.name])
            assert pair is not None, "a ranked variant has a time in every race"
            mine, incumbent = pair
            outcomes.append(
                WorkloadOutcome(
                    workload=workload.name, verdict=f"{mine.us / incumbent.us:.3f} × the incumbent's time in the race",
                    ratio=_ratio(mine, incumbent), measured=mine, incumbent=incumbent,
                    checked=_checked(self.arena.verify(best.version, workload.name)),
                    code=best.codes[workload.name],
                )
            )  # fmt: skip
        return Judged(
            best=best, correctness="PASS", keep=False,
            reason=f"no gain in the race: the best of {len(attempts)} is {ratio:.3f} × the incumbent's time",
            outcomes=tuple(outcomes), attempts=tuple(attempts),
        )  # fmt: skip


def _again(attempts: Sequence[Attempt], variant: Variant, status: AttemptStatus, reason: str) -> list[Attempt]:
    """The attempts with another outcome of ``variant``."""
    others = [attempt for attempt in attempts if attempt.value != str(variant.value)]
    return [*others, variant.attempt(status, reason)]


def _failed(best: Variant, attempts: Sequence[Attempt], reason: str) -> Judged:
    wrong = [attempt for attempt in attempts if attempt.status in ("wrong", "crashed")]
    said = f"{reason}: {wrong[-1].reason}" if wrong and wrong[-1].reason not in reason else reason
    crashed = bool(wrong) and all(attempt.status == "crashed" for attempt in wrong)
    return Judged(best=best, correctness="FAIL", keep=False, crashed=crashed, reason=said, attempts=tuple(attempts))


def _ranked(variants: Sequence[Variant], races: Mapping[str, RaceResult]) -> list[tuple[Variant, float]]:
    """Those that went through every race, with their time over the incumbent's (geometric mean), the best first;
    what loses on some workload comes after what does not."""
    ranked = []
    for variant in variants:
        pairs = [pair for race in races.values() if (pair := _raced_times(variant, race))]
        ratios = [mine.us / incumbent.us for mine, incumbent in pairs]
        mean = geometric_mean(ratios)
        if mean is not None and len(pairs) == len(races):
            ranked.append((max(ratios) > LOSS, mean, variant))
    ranked.sort(key=lambda entry: entry[:2])
    return [(variant, mean) for _, mean, variant in ranked]


def _raced_times(variant: Variant, race: RaceResult) -> tuple[MeasuredTime, MeasuredTime] | None:
    """The variant's and the incumbent's; None where one of them has none."""
    raced = {finisher.name: finisher.measured for finisher in race.raced}
    mine, incumbent = raced.get(variant.version.name), race.raced[0].measured if race.raced else None
    return (mine, incumbent) if mine is not None and incumbent is not None else None


def _raced(variant: Variant, races: Mapping[str, RaceResult], ranked: Sequence[tuple[Variant, float]]) -> Attempt:
    name = variant.version.name
    finishers = [(workload, finisher) for workload, race in races.items() for finisher in race.raced]
    measured = {workload: one.measured for workload, one in finishers if one.name == name and one.measured is not None}
    for other, ratio in ranked:
        if other is variant:
            return variant.attempt("raced", f"{ratio:.3f} × the incumbent's time in the race", measured=measured)
    reasons = [out.reason for race in races.values() for out in race.eliminated if out.name == name]
    return variant.attempt("crashed", reasons[0] if reasons else "the race gave no time", measured=measured)


def _ratio(mine: MeasuredTime, incumbent: MeasuredTime) -> Interval:
    """Of two medians of a race; without pairs, so as wide as both intervals."""
    low, high = mine.interval_us[0] / incumbent.interval_us[1], mine.interval_us[1] / incumbent.interval_us[0]
    return Interval(low, mine.us / incumbent.us, high, 0.95, len(mine.samples_us))


def _checked(verdict: Checked | Eliminated) -> Checked | None:
    return verdict if isinstance(verdict, Checked) else verdict.checked
