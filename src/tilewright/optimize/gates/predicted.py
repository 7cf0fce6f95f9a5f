"""The gate without a GPU: the interpreter checks results, the model predicts times. Results are marked as predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from tilewright.ledger.records import Metrics, WorkloadOutcome
from tilewright.optimize.attempting import Variant
from tilewright.optimize.decide import PredictedDecision, decide_predicted, ratio_text
from tilewright.optimize.gates import base
from tilewright.optimize.gates.base import ConfirmedVariant, Judged, RacedVariants, RankedVariant
from tilewright.race.stats import Interval
from tilewright.records import Bound, Workload


@dataclass(frozen=True)
class PredictedRanking:
    """Implements `base.Ranking` with predicted times. The interpreter is slow, so `PredictedGate.confirm` checks only
    variants that may be kept."""

    incumbent: Variant

    @property
    def times(self) -> Mapping[str, float]:
        return {}

    def heat(self, variants: Sequence[Variant]) -> bool:
        return False

    def race(self, variants: Sequence[Variant]) -> RacedVariants:
        ranked = tuple(RankedVariant(one, one.predicted_us / self.incumbent.predicted_us) for one in variants)
        attempts = (one.variant.attempt("predicted", ratio_text(one.ratio)) for one in ranked)
        return RacedVariants(tuple(variants), ranked, tuple(attempts))


class PredictedGate:
    """Implements `base.Gate`."""

    measured = False
    _baseline: Variant
    noise: Mapping[str, Interval] = MappingProxyType({})

    def __init__(
        self, checker: base.VariantChecker, workloads: Sequence[Workload], bounds: Mapping[str, Bound]
    ) -> None:
        self.checker, self.workloads, self.bounds = checker, tuple(workloads), bounds

    def baseline(self, variant: Variant) -> tuple[Metrics, ...] | str:
        """Checks the untouched code with the interpreter."""
        self._baseline = variant
        checked = self.checker.verdict(variant)
        return checked.reason if checked.verdict == "incorrect" else self.final(variant)

    def final(self, variant: Variant) -> tuple[Metrics, ...]:
        return tuple(base.metrics_of(variant, workload, self.bounds[workload.name]) for workload in self.workloads)

    def ranking(self, incumbent: Variant) -> PredictedRanking:
        return PredictedRanking(incumbent)

    def confirm(self, raced: RacedVariants, incumbent: Variant) -> ConfirmedVariant:
        """Checks the variants with the interpreter in the order of predicted time, until one is correct.

        A variant that would be kept is also checked at the workloads' full size.
        """
        attempts = raced.attempts
        for ranked in raced.ranked:
            checked = self.checker.verdict(ranked.variant)
            decided = self._decision(ranked.variant, incumbent)
            if checked.right and (decided.keep or decided.to_confirm):
                checked = self.checker.verdict(ranked.variant, own_shapes=True)
            if checked.verdict != "incorrect":
                break
            attempts = base.with_outcome(attempts, ranked.variant, "wrong", checked.reason)
        return ConfirmedVariant(ranked.variant, incumbent, checked, attempts)

    def decide(self, confirmed: ConfirmedVariant) -> Judged:
        """Keeps a correct variant if the model predicts a gain that its errors cannot explain.

        If only the untouched code could be checked at the workloads' full size, the variant is to be confirmed.
        """
        best, checked = confirmed.best, confirmed.checked
        decided = self._decision(best, confirmed.incumbent)
        outcomes = [
            WorkloadOutcome(
                workload=name, verdict=verdict, predicted=best.predicted[name], checked=checked, code=best.codes[name]
            )
            for name, verdict in decided.by_workload.items()
        ]
        correct, reason = checked.right, decided.reason
        keep, to_confirm = decided.keep and correct, decided.to_confirm and correct
        if (keep or to_confirm) and checked.verdict != "correct":
            keep = keep and self._baseline_is_reduced
            to_confirm = not keep
            reason += f"; {checked.verdict}: {checked.reason}"
        return Judged(
            best=best, correctness=base.CORRECTNESS[checked.verdict], keep=keep, to_confirm=to_confirm,
            reason=reason if correct else f"{checked.verdict}: {checked.reason}",
            outcomes=tuple(outcomes), attempts=confirmed.attempts,
        )  # fmt: skip

    @cached_property
    def _baseline_is_reduced(self) -> bool:
        """Whether the untouched code, too, cannot be checked at the workloads' full size."""
        return self.checker.verdict(self._baseline, own_shapes=True).verdict == "correct on reduced shapes"

    def _decision(self, variant: Variant, incumbent: Variant) -> PredictedDecision:
        versions = (variant, incumbent, self._baseline)
        unread = next((code.unread for one in versions for code in one.codes.values() if code.unread), "")
        return decide_predicted(variant.predicted, incumbent.predicted, self._baseline.predicted, variant.kind, unread)
