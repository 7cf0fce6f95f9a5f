"""Decides whether a candidate is kept, from confidence intervals of its measured times.

    captures of paired samples → intervals of the ratios → a verdict per workload → keep, revert or not decided

A *capture* loads the code of all versions anew, captures it in fresh graphs and times it for a few rounds. Some noise
is constant within a capture (the place of the code in memory, the making of a graph) or correlated in time. Such noise
makes the rounds of a capture alike, so a capture counts once, however many rounds it has.

A ratio is the candidate's time over the incumbent's: below 1 is faster. The ratio of a capture is the median over its
rounds. The interval is a confidence interval of the median over captures (`race.stats`). It assumes no distribution,
only that captures are independent.

- The noise floor (*floor*) of a workload is the possible difference between captures of one kernel on this machine. It
  is the outer bound of the A/A interval of the same captures, but at least `FLOOR`. Differences within the floor are
  ignored.
- A workload is *slower* if its interval lies above 1 + floor. It is also slower if the interval of its ratio to the
  baseline lies above 1 + `WORSE`. One slower workload reverts the candidate.
- A gain is *proven* if the interval of the overall ratio, or that of one workload, lies below 1 - floor. The overall
  ratio is the geometric mean over the workloads in the same capture.
- A candidate is *kept* if a gain is proven, and no workload may be slower by more than `WORSE`, compared with the
  incumbent and with the baseline. The second condition must be proven, too.
- There is *no gain* if every ratio lies above 1 - floor and above 1 - `SMALL`, with the error probability `MISSED`.
  This reverts the candidate.
- Otherwise the candidate is *not decided*. A *look* is an interim analysis of the samples. A candidate that is not
  decided after the last look is not kept.

The claims of gain at all looks share one error budget (`ERROR`, by Bonferroni). So an identical candidate is kept at
most once in a hundred decisions, even without the floor. The size of a gain is the centre of the overall interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from tilewright.errors import RequestError
from tilewright.hardware import prediction_error
from tilewright.hardware.prediction_error import ChangeKind
from tilewright.race import stats
from tilewright.race.stats import Array, Interval
from tilewright.records import PredictedTime

ERROR = 0.01
"""Probability that a decision claims a gain that does not exist."""
MISSED = 0.05
"""Probability that a look (an interim analysis) misses a gain as large as the noise floor. This error can only lose a
gain, not keep noise.
"""
LOOKS = ((16, 6), (32, 9), (64, 18))
"""Number of captures at each look of a confirmation, and the rounds of each capture. Each look uses its share of
`ERROR`. A clear difference ends at the first look. In simulation (bench/decide_simulated.py), the looks keep gains of 3
% under noise that is constant or correlated within a capture. The later looks are for noisier kernels and smaller
gains.
"""
AA_CONFIDENCE = 0.95
"""Confidence of the A/A interval whose outer bound is the noise floor."""
FLOOR = 0.005
"""The smallest noise floor, even if the A/A check gives a smaller one: half of the tie band of a race."""
WORSE = 0.02
"""No workload may become slower by more than this share."""
LARGE, SMALL = 0.05, 0.02
"""Gains as shares of the time. After a gain below `LARGE`, the entry's priority is lowered. After a gain below `SMALL`,
the base policy stops."""
BASE_MISSES = 2
"""Iterations in a row without improvement that end the loop under the base policy."""
PATIENCE = 10
"""Iterations in a row without improvement that end the loop under the default policy, which tries more of the
playbook."""
PREDICTED_WORTH = 0.05
"""A predicted gain below this share is ignored, and a predicted loss above it reverts the change. A gain is kept only
if it exceeds the margin of its kind of change (`prediction_error.KINDS`)."""
POLICIES = ("default", "base")
"""``base`` stops after a gain under 2 % or two misses. ``default`` continues after a small gain, and allows more
misses."""

Verdict: TypeAlias = Literal["faster", "slower", "same", "undecided"]


@dataclass(frozen=True)
class Paired:
    """Times of one workload in µs, in the same rounds: candidate, incumbent, a copy of the incumbent, and baseline."""

    candidate_us: Sequence[float] = field(repr=False)
    incumbent_us: Sequence[float] = field(repr=False)
    copy_us: Sequence[float] = field(repr=False)
    baseline_us: Sequence[float] = field(repr=False)
    captures: Sequence[int] = field(repr=False)
    """The rounds of each capture, in order."""

    @cached_property
    def ratios(self) -> Array:
        """The ratio candidate / incumbent of each capture."""
        return stats.by_capture(self.candidate_us, self.incumbent_us, self.captures)

    @property
    def against_baseline(self) -> Array:
        """The ratio candidate / baseline of each capture."""
        return stats.by_capture(self.candidate_us, self.baseline_us, self.captures)

    @cached_property
    def copies(self) -> Array:
        """The ratio copy / incumbent of each capture: the A/A check."""
        return stats.by_capture(self.copy_us, self.incumbent_us, self.captures)

    @cached_property
    def noise(self) -> Interval:
        """The A/A interval. Its true centre is 1, because the copy equals the incumbent."""
        return stats.median_interval(self.copies, AA_CONFIDENCE)


@dataclass(frozen=True)
class Following:
    """The continuation of the loop after a decision."""

    lower_priority: bool
    """True if the gain was under 5 %. The entry's next site is then less promising."""
    stop_reason: str | None
    """The reason why the loop ends; None if it continues."""
    misses: int
    """Iterations in a row that kept nothing, including this one."""


@dataclass(frozen=True)
class WorkloadDecision:
    """The verdict on one workload.

    ratio: candidate's time / incumbent's time. no_gain: whether a gain above the noise floor is ruled out.
    verdict: ``same`` if neither faster nor slower is proven, and a loss of more than 2 % is ruled out.
    """

    ratio: Interval
    against_baseline: Interval
    floor: float
    no_gain: bool
    verdict: Verdict
    why: str

    @property
    def harmless(self) -> bool:
        """True if the candidate is proven to be at most 2 % slower than incumbent and baseline."""
        return max(self.ratio.high, self.against_baseline.high) <= 1 + WORSE


@dataclass(frozen=True)
class Decision:
    """The decision whether a candidate is kept. ``reason`` is one line for the ledger."""

    keep: bool
    decided: bool
    """False if noise hides whether the candidate is faster. More captures may then keep it."""
    reason: str
    overall: Interval
    """Candidate / incumbent, geometric mean over the workloads."""
    by_workload: Mapping[str, WorkloadDecision]


@dataclass(frozen=True)
class PredictedDecision:
    """The decision from predicted times, without intervals.

    overall: candidate's time / incumbent's time, geometric mean over the workloads.
    by_workload: the sentence with the ratio of each workload.
    """

    keep: bool
    to_confirm: bool
    """True if the change was not kept, but is predicted to be faster: a GPU can confirm it."""
    reason: str
    overall: float
    by_workload: Mapping[str, str]


def decide(samples: Mapping[str, Paired]) -> Decision:
    """Decides from the ``samples`` of each workload, by the rules at the top of this module."""
    if not samples:
        raise RequestError("a decision needs the samples of at least one workload")
    confidence = 1 - 2 * tail_of(len(samples))
    by_workload = {name: _workload(sample, confidence) for name, sample in samples.items()}
    ratios = _over_workloads(list(samples.values()))
    overall = stats.median_interval(ratios, confidence)
    floor = sum(decision.floor for decision in by_workload.values()) / len(by_workload)
    slower = [name for name, decision in by_workload.items() if decision.verdict == "slower"]
    faster = [name for name, decision in by_workload.items() if decision.verdict == "faster"]
    harmful = [name for name, decision in by_workload.items() if not decision.harmless]
    no_gain = _no_gain(ratios, floor) and all(each.no_gain for each in by_workload.values())
    keep, decided = False, True
    if slower:
        reason = f"slower on {', '.join(slower)}: {by_workload[slower[0]].why}"
    elif no_gain:
        reason = f"no gain: {overall} × the incumbent's time, within the noise of {floor:.1%}"
    elif overall.high >= 1 - floor and (not faster or overall.centre >= 1):
        decided, reason = False, f"not decided: {overall} × the incumbent's time{_missing_captures(samples, floor)}"
    elif harmful:
        where, why = ", ".join(harmful), by_workload[harmful[0]].why
        decided, reason = False, f"not decided: a loss of {WORSE:.0%} is not ruled out on {where}: {why}"
    else:
        keep = True
        where = "" if overall.high < 1 - floor else f", proven on {', '.join(faster)}"
        reason = f"{1 - overall.centre:.1%} less time: {overall} × the incumbent's{where}"
    return Decision(keep, decided, reason, overall, by_workload)


def following(keep: bool, gain: float, policy: str, misses: int, patience: int = PATIENCE) -> Following:
    """Returns how the loop continues.

    gain: the share of time saved (the centre of its interval). An iteration without a decision (crashed, failed or
        wrong) counts as a miss.
    """
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
    baseline: Mapping[str, PredictedTime], kind: ChangeKind, unread: str = "",
) -> PredictedDecision:  # fmt: skip
    """Decides from the predicted times of each workload.

    A gain is kept if it exceeds the margin of its kind of change. A smaller gain, and every change of form, waits for a
    GPU to confirm it.

    unread: the reason why instructions were not read. The margin of such predictions is not known.
    """
    ratios = {name: prediction.us / incumbent[name].us for name, prediction in candidate.items()}
    against = {name: prediction.us / baseline[name].us for name, prediction in candidate.items()}
    overall = stats.geometric_mean(ratios.values())
    assert overall is not None, "a task has workloads"
    worse = [name for name in ratios if max(ratios[name], against[name]) > 1 + PREDICTED_WORTH]
    least, best = min((overall, ""), *((ratio, name) for name, ratio in ratios.items()))
    margin, words = prediction_error.KINDS[kind].margin, prediction_error.KINDS[kind].words
    if unread:
        margin, words = None, f"what is predicted without instructions ({unread})"
    gains = overall < 1 and least < 1 - PREDICTED_WORTH and not worse
    keep = gains and margin is not None and least < 1 / (1 + margin)
    if worse:
        loss = max(max(ratios[name], against[name]) for name in worse) - 1
        reason = f"predicted {loss:.1%} slower on {', '.join(worse)}"
    elif gains:
        where = f" on {best}; {1 / overall:.2f}× over all workloads" if best and overall > least else ""
        reason = f"predicted {prediction_error.speedup(1 / least, kind)}{where}; "
        if margin is None:
            reason += f"{words} is not kept on a prediction: confirm it on a GPU"
        else:
            reason += f"{'beyond' if keep else 'within'} the margin of {1 + margin:.3g}× for {words}"
            reason += "" if keep else ": confirm it on a GPU"
    else:
        reason = f"predicted {overall:.3f} × the incumbent's time: no gain that counts"
    texts = {name: ratio_text(ratio) for name, ratio in ratios.items()}
    return PredictedDecision(keep, gains and not keep, reason, overall, texts)


def ratio_text(ratio: float) -> str:
    """Formats a predicted ratio as a phrase."""
    return f"predicted {ratio:.3f} × the incumbent's time"


def tail_of(workloads: int) -> float:
    """Returns the error probability of each bound: `ERROR`, divided by the number of claims of gain at all looks."""
    return ERROR / ((workloads + (workloads > 1)) * len(LOOKS))


def captures_needed(spread: float, *, gain: float = 0.03, power: float = 0.9, workloads: int = 1) -> int:
    """Estimates how many captures are needed to prove a real ``gain`` of one workload with probability ``power``.

    The error of the median ratio is taken from the large-sample formula for normal noise. The noise floor is that of
    equally many A/A captures.

    spread: how much the ratio of the times of two copies (A/A) varies between captures.
    workloads: the number of the task's workloads. With more of them, each gain needs stronger proof.
    """
    tail, n = tail_of(workloads), stats.fewest(tail_of(workloads))
    error = stats.expected_half_width(spread, 1, tail) + stats.expected_half_width(spread, 1, 1 - power)
    while error / math.sqrt(n) > gain - max(FLOOR, stats.expected_half_width(spread, n, (1 - AA_CONFIDENCE) / 2)):
        n += max(1, n // 20)
    return n


def floor_of(noise: Interval) -> float:
    """Returns the noise floor: the possible difference between captures of one kernel. It is infinite if the A/A check
    had too few captures.
    """
    return max(FLOOR, noise.high - 1, 1 - noise.low)


def _no_gain(ratios: Array, floor: float) -> bool:
    """Returns whether gains above the noise floor are ruled out. A noise floor above `SMALL` counts as `SMALL`."""
    return float(stats.bounds(ratios, MISSED)[0]) > 1 - min(floor, SMALL)


def _workload(sample: Paired, confidence: float) -> WorkloadDecision:
    ratios, floor = sample.ratios, floor_of(sample.noise)
    ratio = stats.median_interval(ratios, confidence)
    against = stats.median_interval(sample.against_baseline, confidence)
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
    return WorkloadDecision(ratio, against, floor, _no_gain(ratios, floor), verdict, why)


def _over_workloads(samples: Sequence[Paired]) -> Array:
    """Returns the geometric mean of the ratios over the workloads, one for each capture.

    The workload with the fewest captures sets their number. For other workloads, equal blocks of captures are replaced
    by their medians. A block has an odd number of captures, so its median has the same true median as a capture, and
    the interval stays exact.
    """
    ratios = [sample.ratios for sample in samples]
    captures = min(len(ratio) for ratio in ratios)
    logs = []
    for ratio in ratios:
        block = len(ratio) // captures
        block -= 1 - block % 2
        logs.append(np.median(np.log(ratio[: captures * block].reshape(captures, block)), axis=1))
    mean: Array = np.exp(np.mean(logs, axis=0))
    return mean


def _missing_captures(samples: Mapping[str, Paired], floor: float) -> str:
    """Names the first workload that had too few captures to show a gain of 3 %, and how many it needs."""
    for name, sample in samples.items():
        copies = sample.copies
        needed = captures_needed(stats.spread(copies), workloads=len(samples))
        if needed > len(copies):
            return f"; {name} would need {needed} captures to show 3 %, it had {len(copies)}"
    return f", and captures of one kernel differ by {floor:.1%}" if math.isfinite(floor) else ""
