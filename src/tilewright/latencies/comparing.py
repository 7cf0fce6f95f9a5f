"""Is a test slower than it was? From the medians of whole runs, with an interval, per test and direction.

One run is not enough: the median of the same code moves by several percent from run to run, and the deviation
inside one record does not show that. So the medians of several runs on each side are compared (`unpaired.py`). Where
there are too few runs, the answer is how many more are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

from tilewright.latencies.runs import SuiteRun
from tilewright.latencies.unpaired import more_runs, unpaired_ratio_interval
from tilewright.race.stats import Interval

CONFIDENCE = 0.95

Verdict: TypeAlias = Literal["faster", "slower", "no difference shown", "not enough runs", "new"]
Key: TypeAlias = tuple[str, str, str]
"""Test, backend, direction."""


@dataclass(frozen=True)
class LatencyChange:
    """One test and direction. ``ratio`` is after / before; below 1 is faster."""

    test: str
    backend: str
    direction: str
    verdict: Verdict
    reason: str
    before_ms: float | None
    """Median of the runs' medians; None where the baseline has none."""
    after_ms: float
    ratio: Interval | None


@dataclass(frozen=True)
class LatencyComparison:
    """All that the current run measured, and notes about the whole."""

    results: tuple[LatencyChange, ...]
    notes: tuple[str, ...]

    @property
    def decidable(self) -> int:
        """How many could have been called faster or slower."""
        return sum(change.ratio is not None and change.ratio.decided for change in self.results)

    def slower_by(self, percent: float) -> tuple[LatencyChange, ...]:
        """The tests whose whole interval is slower by more than ``percent``."""
        limit = 1.0 + percent / 100.0
        return tuple(change for change in self.results if change.ratio is not None and change.ratio.low > limit)


def compare(run: SuiteRun, beside: Sequence[SuiteRun], baseline: Sequence[SuiteRun]) -> LatencyComparison:
    """Compare ``run``, which ended now, and earlier runs ``beside`` it with the runs of the ``baseline``.

    Only runs on the same host count. Of ``beside`` only those of the same revision count: a run of other code is
    no further sample of this code.
    """
    here = [other for other in beside if other.place == run.place]
    same = [other for other in here if other.revision == run.revision]
    old = [other for other in baseline if other.place == run.place]
    after, before = _medians((*same, run)), _medians(old)
    results = tuple(
        _change(key, after[key], before.get(key, ()))
        for record in run.records
        for direction in record.directions
        for key in [(record.test, record.backend, direction)]
    )
    return LatencyComparison(results, tuple(_notes(run, beside, here, same, baseline, old)))


def _medians(runs: Iterable[SuiteRun]) -> Mapping[Key, tuple[float, ...]]:
    medians: dict[Key, tuple[float, ...]] = {}
    for run in runs:
        for record in run.records:
            for direction, latency in record.directions.items():
                key = (record.test, record.backend, direction)
                medians[key] = (*medians.get(key, ()), latency.median)
    return medians


def _change(key: Key, after: tuple[float, ...], before: tuple[float, ...]) -> LatencyChange:
    if not before:
        return LatencyChange(*key, "new", "not in the baseline", None, median(after), None)
    ratio = unpaired_ratio_interval(after, before, CONFIDENCE)
    verdict, reason = _judged(ratio, len(after), len(before))
    return LatencyChange(*key, verdict, reason, median(before), median(after), ratio)


def _judged(ratio: Interval, after: int, before: int) -> tuple[Verdict, str]:
    runs = f"{after} run{'s' if after > 1 else ''} against {before}"
    if not ratio.decided:
        now, then = more_runs(after, before, CONFIDENCE)
        lacking = [f"{now} more of this code"] * (now > 0) + [f"{then} more in the baseline"] * (then > 0)
        return "not enough runs", f"{runs}: {' and '.join(lacking)}"
    between = f"{_percent(ratio.low)} to {_percent(ratio.high)}, {runs}"
    if ratio.low > 1.0:
        return "slower", between
    if ratio.high < 1.0:
        return "faster", between
    return "no difference shown", between


def _percent(ratio: float) -> str:
    return f"{(ratio - 1.0) * 100.0:+.1f} %"


def _notes(
    run: SuiteRun, beside: Sequence[SuiteRun], here: Sequence[SuiteRun], same: Sequence[SuiteRun],
    baseline: Sequence[SuiteRun], old: Sequence[SuiteRun],
) -> Iterable[str]:  # fmt: skip
    elsewhere = [other for other in (*baseline, *beside) if other.place != run.place]
    if elsewhere:
        places = ", ".join(sorted({str(other.place) for other in elsewhere}))
        yield f"{len(elsewhere)} runs are not compared, being of another place ({places}; here: {run.place})"
    if len(here) > len(same):
        yield f"{len(here) - len(same)} runs of other revisions of the code are not counted with this one"
    if len({other.revision for other in old}) > 1:
        yield "the baseline mixes runs of several revisions of the code"
    for what, now, then in (
        ("driver", {str(run.driver)}, {str(other.driver) for other in old}),
        *(
            (name, {version}, {other.versions.get(name, "none") for other in old})
            for name, version in run.versions.items()
        ),
        *(
            (name, {run.settings.get(name, "unset")}, {other.settings.get(name, "unset") for other in old})
            for name in sorted({*run.settings, *(name for other in old for name in other.settings)})
        ),
    ):
        if old and now != then:
            yield f"{what}: {', '.join(sorted(then))} in the baseline, {', '.join(now)} here"
