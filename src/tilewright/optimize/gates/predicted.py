"""The gate without a GPU: right by the interpreter, faster by the model. Every result is named predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tilewright.ledger.records import Attempt, Metrics, WorkloadOutcome
from tilewright.optimize.attempting import Variant
from tilewright.optimize.decide import PredictedDecision, decide_predicted
from tilewright.optimize.gates.base import CORRECTNESS, Judged
from tilewright.optimize.gates.interpreting import Interpreting
from tilewright.optimize.metrics import metrics_of
from tilewright.race.stats import Interval
from tilewright.records import Bound, Checked, Workload

CHECK_SECONDS = 20.0
"""For the interpreter's check of one variant."""


class PredictedGate:
    """Implements `base.Gate`."""

    measured = False
    noise: Mapping[str, Interval] = MappingProxyType({})

    def __init__(self, interpreting: Interpreting, workloads: Sequence[Workload], bounds: Mapping[str, Bound]) -> None:
        self.interpreting, self.workloads, self.bounds = interpreting, tuple(workloads), bounds
        self._baseline: Variant | None = None

    def baseline(self, variant: Variant) -> tuple[Metrics, ...] | str:
        """The untouched code, checked by the interpreter."""
        self._baseline = variant
        checked = self.interpreting.verdict(variant, CHECK_SECONDS)
        return checked.reason if checked.verdict == "incorrect" else self._standings(variant)

    def final(self, variant: Variant) -> tuple[Metrics, ...]:
        return self._standings(variant)

    def judge(self, variants: Sequence[Variant], incumbent: Variant) -> Judged:
        """The first in the order of predicted time that is correct, kept if the model says that it gains."""
        attempts: list[Attempt] = []
        for best in variants:
            checked = self.interpreting.verdict(best, CHECK_SECONDS)
            if checked.verdict != "incorrect":
                break
            attempts.append(best.attempt("wrong", checked.reason))
        judged = {attempt.value for attempt in attempts}
        attempts += [
            variant.attempt("predicted", _times(variant.predicted_us / incumbent.predicted_us))
            for variant in variants
            if str(variant.value) not in judged
        ]
        decided = self._decided(best, incumbent)
        correct = checked.verdict == "correct"
        return Judged(
            best=best,
            correctness=CORRECTNESS[checked.verdict],
            keep=decided.keep and correct,
            reason=decided.reason if correct else f"{checked.verdict}: {checked.reason}",
            outcomes=tuple(self._outcome(best, incumbent, workload, checked) for workload in self.workloads),
            attempts=tuple(attempts),
            predicted_ms=best.predicted_us / 1e3,
        )

    def _outcome(self, best: Variant, incumbent: Variant, workload: Workload, checked: Checked) -> WorkloadOutcome:
        name = workload.name
        return WorkloadOutcome(
            workload=name,
            verdict=_times(best.predicted[name].us / incumbent.predicted[name].us),
            predicted=best.predicted[name],
            checked=checked,
            code=best.codes[name],
        )

    def _decided(self, variant: Variant, incumbent: Variant) -> PredictedDecision:
        assert self._baseline is not None, "the baseline is judged first"
        return decide_predicted(variant.predicted, incumbent.predicted, self._baseline.predicted)

    def _standings(self, variant: Variant) -> tuple[Metrics, ...]:
        return tuple(metrics_of(variant, workload, self.bounds[workload.name]) for workload in self.workloads)


def _times(ratio: float) -> str:
    return f"predicted {ratio:.3f} × the incumbent's time"
