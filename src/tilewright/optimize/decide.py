"""Keep or revert: the decision table, read on intervals and not on points.

    paired samples ─→ intervals of the ratios ─→ a verdict per workload ─→ keep or revert ─→ go on or stop

A ratio is the candidate's time over the incumbent's in the same round, below 1 is faster. Its interval is that
of the median (`race.stats`), without a distribution behind it. Nothing here measures or asks a clock.

- The *floor* of a workload is how far two copies of one kernel may differ on this machine: the outer bound of
  the A/A interval of the same session, and at least `FLOOR`. What lies within the floor is ignored.
- *Slower*: the interval lies wholly above 1 + floor, or that of the ratio to the baseline wholly above
  1 + `WORSE`. One slower workload reverts.
- A gain is *proven* when the interval of the overall ratio, or that of one workload, lies wholly below
  1 - floor. The overall ratio is the geometric mean over the workloads in the same round.
- *Keep*: a gain is proven, and for every workload it is proven that it is at most `WORSE` slower than the incumbent
  and the baseline. What stays undecided to the last look is reverted.

All claims of gain, at all planned looks, share one error budget, `ERROR`, by Bonferroni: an identical candidate
is kept at most once in a hundred decisions, floor or no floor. The rows of the table are told apart by the
*centre* of the overall interval; whether there is a gain or a loss at all is asked of its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from tilewright.errors import RequestError, UnknownChoice
from tilewright.race import stats
from tilewright.race.stats import Array, Interval, Noise
from tilewright.records import PredictedTime

ERROR = 0.01
"""Probability that a whole decision claims a gain where there is none."""
ROUNDS = (100, 400, 1600)
"""Rounds after which a confirmation is looked at; each look costs its share of `ERROR`. What is clear ends at the
first. By `rounds_needed` the noisiest kernel recorded on an H200 (9 µs, one sample spreads 3.5 %) shows a gain of
3 % in 200 rounds; the third look is for smaller gains."""
AA_CONFIDENCE = 0.95
"""Of the A/A interval whose outer bound is the floor."""
FLOOR = 0.005
"""Smallest difference that counts, whatever the A/A check says: half of the tie band of a race."""
WORSE = 0.02
"""Nothing may end slower than the baseline by more than this."""
LARGE, SMALL = 0.05, 0.02
"""Gains, as shares of the time, that separate the rows of the decision table."""
BASE_MISSES = 2
"""Iterations in a row without improvement that end the loop."""
PATIENCE = 10
"""The same number under the default policy, which tries more of the playbook."""
PREDICTED_MARGIN = 0.05
"""A predicted difference below this says nothing. Of the pairs of configurations recorded on an H200 on 2026-11-21
(bench/recorded), the slower predicted was the slower measured in 55 % of those predicted less than 5 % apart,
and in 85 % of the others: the order is worth something beyond it, the size of the difference nothing."""
POLICIES = ("default", "base")
"""``base`` follows the decision table to the letter: it ends after a gain under 2 % and after two misses. ``default``
goes on after a small gain and is more patient."""

Verdict: TypeAlias = Literal["faster", "slower", "same", "undecided"]


@dataclass(frozen=True)
class Paired:
    """One workload's confirmation: µs of three versions in the same rounds, and two copies of the incumbent."""

    candidate_us: Sequence[float] = field(repr=False)
    incumbent_us: Sequence[float] = field(repr=False)
    baseline_us: Sequence[float] = field(repr=False)
    noise: Noise


@dataclass(frozen=True)
class Following:
    """What comes after the decision."""

    lower_priority: bool
    """The entry's next site is less promising: it gained under 5 % here."""
    stop_reason: str | None
    """Why the loop ends here; None to go on."""
    misses: int
    """Iterations in a row that kept nothing, with this one."""


@dataclass(frozen=True)
class WorkloadDecision:
    """``ratio``: candidate over incumbent. ``same``: neither proven, and slower by more than 2 % ruled out."""

    ratio: Interval
    against_baseline: Interval
    floor: float
    verdict: Verdict
    why: str

    @property
    def harmless(self) -> bool:
        """Proven to be at most 2 % slower than the incumbent and than the baseline."""
        return max(self.ratio.high, self.against_baseline.high) <= 1 + WORSE


@dataclass(frozen=True)
class Decision:
    """Keep or revert, and why. ``reason`` is one line for the ledger."""

    status: Literal["keep", "revert"]
    decided: bool
    """False where more rounds may still change the status."""
    reason: str
    overall: Interval
    """Candidate over incumbent, over all workloads."""
    by_workload: Mapping[str, WorkloadDecision]

    @property
    def keep(self) -> bool:
        return self.status == "keep"


@dataclass(frozen=True)
class PredictedDecision:
    """The same from predicted times: ratios without intervals, and every reason says that it is predicted."""

    keep: bool
    reason: str
    overall: float
    """Predicted candidate over incumbent, geometric mean over the workloads."""
    by_workload: Mapping[str, str]


def decide(samples: Mapping[str, Paired], *, last: bool = True) -> Decision:
    """Keep or revert the candidate of ``samples``, by workload; the rules stand at the top of this module.

    last: no more rounds will come, so that what is undecided is reverted; otherwise the decision says so and may be
    asked again after the next look.
    """
    if not samples:
        raise RequestError("a decision needs the samples of at least one workload")
    confidence = 1 - 2 * tail_of(len(samples))
    by_workload = {name: _workload(sample, confidence) for name, sample in samples.items()}
    overall = stats.median_interval(_per_round(list(samples.values())), confidence)
    floor = sum(decision.floor for decision in by_workload.values()) / len(by_workload)
    slower = [name for name, decision in by_workload.items() if decision.verdict == "slower"]
    faster = [name for name, decision in by_workload.items() if decision.verdict == "faster"]
    harmful = [name for name, decision in by_workload.items() if not decision.harmless]
    status: Literal["keep", "revert"] = "revert"
    decided = True
    if slower:
        reason = f"slower on {', '.join(slower)}: {by_workload[slower[0]].why}"
    elif (
        math.isfinite(floor)
        and overall.low > 1 - floor
        and all(decision.ratio.low > 1 - decision.floor for decision in by_workload.values())
    ):
        reason = f"no gain: {overall} × the incumbent's time, within the noise of {floor:.1%}"
    elif overall.high >= 1 - floor and (not faster or overall.centre >= 1):
        decided, reason = last, f"no gain is proven: {overall} × the incumbent's time{_wanted(samples)}"
    elif harmful:
        decided = last
        reason = f"a loss of {WORSE:.0%} is not ruled out on {', '.join(harmful)}: {by_workload[harmful[0]].why}"
    else:
        status = "keep"
        where = "" if overall.high < 1 - floor else f", proven on {', '.join(faster)}"
        reason = f"{1 - overall.centre:.1%} less time: {overall} × the incumbent's{where}"
    return Decision(status, decided, reason, overall, by_workload)


def following(keep: bool, gain: float, policy: str, misses: int, patience: int = PATIENCE) -> Following:
    """What comes after a decision. ``gain``: share of the time, the centre of its interval. An iteration that crashed,
    failed or was wrong has no decision and counts as a miss."""
    if policy not in POLICIES:
        raise UnknownChoice("policy", policy, POLICIES)
    base, stop = policy == "base", None
    if keep:
        if base and gain < SMALL:
            stop = f"a gain of {gain:.1%} is under {SMALL:.0%} (--policy base)"
        return Following(gain < LARGE, stop, 0)
    limit, rule = (BASE_MISSES, "--policy base") if base else (patience, f"--patience {patience}")
    if misses + 1 >= limit:
        stop = f"{misses + 1} iterations in a row without improvement ({rule})"
    return Following(False, stop, misses + 1)


def decide_predicted(
    candidate: Mapping[str, PredictedTime], incumbent: Mapping[str, PredictedTime],
    baseline: Mapping[str, PredictedTime],
) -> PredictedDecision:  # fmt: skip
    """The same table on predicted times, by workload, with the margin of the predictor (`PREDICTED_MARGIN`)."""
    ratios = {name: prediction.us / incumbent[name].us for name, prediction in candidate.items()}
    against = {name: prediction.us / baseline[name].us for name, prediction in candidate.items()}
    said = {name: said_of(ratio) for name, ratio in ratios.items()}
    overall = stats.geometric_mean(ratios.values())
    assert overall is not None, "a task has workloads"
    worse = [name for name in ratios if max(ratios[name], against[name]) > 1 + PREDICTED_MARGIN]
    gains = overall < 1 and min(overall, *ratios.values()) < 1 - PREDICTED_MARGIN
    if worse:
        loss = max(max(ratios[name], against[name]) for name in worse) - 1
        reason = f"predicted {loss:.1%} slower on {', '.join(worse)}"
    elif gains:
        reason = f"predicted {1 - overall:.1%} less time, over the predictor's margin of {PREDICTED_MARGIN:.0%}"
    else:
        reason = f"predicted {overall:.3f} × the incumbent's time, within the predictor's margin"
    return PredictedDecision(gains and not worse, reason, overall, said)


def said_of(ratio: float) -> str:
    """A predicted ratio in words."""
    return f"predicted {ratio:.3f} × the incumbent's time"


def tail_of(workloads: int) -> float:
    """The error that one bound may have: `ERROR`, divided by the claims of gain at all looks."""
    return ERROR / ((workloads + (workloads > 1)) * len(ROUNDS))


def rounds_needed(spread: float, *, gain: float = 0.03, power: float = 0.9, workloads: int = 1) -> int:
    """Rounds after which a true ``gain`` of one workload is proven with probability ``power``.

    ``spread``: of one sample, as `Noise.spread`. For planning, from the large-sample error under a normal law.
    The floor, too, is as wide as the A/A interval of so many rounds.
    """
    pair, tail, n = spread * math.sqrt(2), tail_of(workloads), stats.fewest(tail_of(workloads))
    error = stats.expected_half_width(pair, 1, tail) + stats.expected_half_width(pair, 1, 1 - power)
    while error / math.sqrt(n) > gain - max(FLOOR, stats.expected_half_width(pair, n, (1 - AA_CONFIDENCE) / 2)):
        n += max(1, n // 20)
    return n


def floor_of(noise: Noise) -> float:
    """How far two copies of one kernel may differ here; infinite where the A/A check was too short to say."""
    return max(FLOOR, noise.ratio.high - 1, 1 - noise.ratio.low)


def _workload(sample: Paired, confidence: float) -> WorkloadDecision:
    ratio = stats.ratio_interval(sample.candidate_us, sample.incumbent_us, confidence)
    against = stats.ratio_interval(sample.candidate_us, sample.baseline_us, confidence)
    floor = floor_of(sample.noise)
    verdict: Verdict = "undecided"
    why = f"{ratio} × the incumbent's time, noise {floor:.1%}"
    if against.low > 1 + WORSE:
        verdict, why = "slower", f"{against} × the baseline's time, {WORSE:.0%} are allowed"
    elif ratio.low > 1 + floor:
        verdict = "slower"
    elif ratio.high < 1 - floor:
        verdict = "faster"
    elif max(ratio.high, against.high) <= 1 + WORSE:
        verdict = "same"
    return WorkloadDecision(ratio, against, floor, verdict, why)


def _per_round(samples: Sequence[Paired]) -> Array:
    """The geometric mean over the workloads of the ratio, round by round of the workload with the fewest.

    A workload with more rounds gives the medians of equal, odd blocks of them: of an odd number of samples the
    median has the same median as one of them has, so that the interval stays as exact as it was.
    """
    ratios = [np.asarray(sample.candidate_us) / np.asarray(sample.incumbent_us) for sample in samples]
    rounds = min(len(ratio) for ratio in ratios)
    logs = []
    for ratio in ratios:
        block = len(ratio) // rounds
        block -= 1 - block % 2
        logs.append(np.median(np.log(ratio[: rounds * block].reshape(rounds, block)), axis=1))
    mean: Array = np.exp(np.mean(logs, axis=0))
    return mean


def _wanted(samples: Mapping[str, Paired]) -> str:
    """Words for a workload that had too few rounds to show a gain of 3 %: how many it needs."""
    for name, sample in samples.items():
        needed = rounds_needed(sample.noise.spread, workloads=len(samples))
        if needed > len(sample.candidate_us):
            return f"; {name} would need {needed} rounds to show 3 %, it had {len(sample.candidate_us)}"
    return ""
