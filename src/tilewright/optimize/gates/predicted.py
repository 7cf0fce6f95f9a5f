"""The gate without a GPU: right by the interpreter, faster by the model. Every result is named predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tilewright.ledger.records import Attempt, Metrics, WorkloadOutcome
from tilewright.optimize.attempting import Variant
from tilewright.optimize.decide import decide_predicted, said_of
from tilewright.optimize.gates.base import CORRECTNESS, Interpreting, Judged, metrics_of
from tilewright.race.stats import Interval
from tilewright.records import Bound, Workload


class PredictedGate:
    """Implements `base.Gate`."""

    measured = False
    _baseline: Variant
    noise: Mapping[str, Interval] = MappingProxyType({})

    def __init__(self, interpreting: Interpreting, workloads: Sequence[Workload], bounds: Mapping[str, Bound]) -> None:
        self.interpreting, self.workloads, self.bounds = interpreting, tuple(workloads), bounds

    def baseline(self, variant: Variant) -> tuple[Metrics, ...] | str:
        """The untouched code, checked by the interpreter."""
        self._baseline = variant
        checked = self.interpreting.verdict(variant)
        return checked.reason if checked.verdict == "incorrect" else self.final(variant)

    def final(self, variant: Variant) -> tuple[Metrics, ...]:
        return tuple(metrics_of(variant, workload, self.bounds[workload.name]) for workload in self.workloads)

    def judge(self, variants: Sequence[Variant], incumbent: Variant) -> Judged:
        """The first in the order of predicted time that is correct, kept if the model says that it gains."""
        attempts: list[Attempt] = []
        for best in variants:
            checked = self.interpreting.verdict(best)
            if checked.verdict != "incorrect":
                break
            attempts.append(best.attempt("wrong", checked.reason))
        judged = {attempt.value for attempt in attempts}
        attempts += [
            variant.attempt("predicted", said_of(variant.predicted_us / incumbent.predicted_us))
            for variant in variants
            if str(variant.value) not in judged
        ]
        decided = decide_predicted(best.predicted, incumbent.predicted, self._baseline.predicted)
        correct = checked.verdict == "correct"
        return Judged(
            best=best,
            correctness=CORRECTNESS[checked.verdict],
            keep=decided.keep and correct,
            reason=decided.reason if correct else f"{checked.verdict}: {checked.reason}",
            outcomes=tuple(
                WorkloadOutcome(
                    workload=name,
                    verdict=verdict,
                    predicted=best.predicted[name],
                    checked=checked,
                    code=best.codes[name],
                )
                for name, verdict in decided.by_workload.items()
            ),
            attempts=tuple(attempts),
        )
