"""Is a test slower than it was? From the medians of whole runs, with an interval, per test and direction.

One run says nothing: from run to run the median of the same code moves by several percent (X-13), and
the deviation inside one record does not show that. So the medians of several runs on each side are
compared (`bench.unpaired`), and where there are too few the answer is how many more are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

from tilewright.latencies.runs import Run
from tilewright.latencies.unpaired import more_runs, unpaired_ratio_interval
from tilewright.race.stats import Interval

CONFIDENCE = 0.95

Verdict: TypeAlias = Literal["faster", "slower", "no difference shown", "not enough runs", "new"]
Key: TypeAlias = tuple[str, str, str]
"""Test, backend, direction."""


@dataclass(frozen=True)
class Compared:
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
class Comparison:
    """All that the current run measured, and what is to be said of the whole."""

    results: tuple[Compared, ...]
    notes: tuple[str, ...]

    @property
    def decidable(self) -> int:
        """Comparisons that could have been called faster or slower."""
        return sum(one.ratio is not None and one.ratio.decided for one in self.results)

    def slower_by(self, percent: float) -> tuple[Compared, ...]:
        """Those whose whole interval is beyond ``percent``."""
        limit = 1.0 + percent / 100.0
        return tuple(one for one in self.results if one.ratio is not None and one.ratio.low > limit)


def compare(run: Run, beside: Sequence[Run], baseline: Sequence[Run]) -> Comparison:
    """``run``, which ended now, and earlier runs ``beside`` it, against those of the ``baseline``.

    Only runs of the same place count. Of ``beside`` also only those of the same revision: runs of other
    code are no further samples of this one.
    """
    here = [one for one in beside if one.place == run.place]
    same = [one for one in here if one.revision == run.revision]
    old = [one for one in baseline if one.place == run.place]
    after, before = _medians((*same, run)), _medians(old)
    results = tuple(
        _compared(key, after[key], before.get(key, ()))
        for record in run.records
        for direction in record.directions
        for key in [(record.test, record.backend, direction)]
    )
    return Comparison(results, tuple(_notes(run, beside, here, same, baseline, old)))


def _medians(runs: Iterable[Run]) -> Mapping[Key, tuple[float, ...]]:
    found: dict[Key, tuple[float, ...]] = {}
    for run in runs:
        for record in run.records:
            for direction, latency in record.directions.items():
                key = (record.test, record.backend, direction)
                found[key] = (*found.get(key, ()), latency.median)
    return found


def _compared(key: Key, after: tuple[float, ...], before: tuple[float, ...]) -> Compared:
    if not before:
        return Compared(*key, "new", "not in the baseline", None, median(after), None)
    ratio = unpaired_ratio_interval(after, before, CONFIDENCE)
    verdict, reason = _judged(ratio, len(after), len(before))
    return Compared(*key, verdict, reason, median(before), median(after), ratio)


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
    run: Run, beside: Sequence[Run], here: Sequence[Run], same: Sequence[Run],
    baseline: Sequence[Run], old: Sequence[Run],
) -> Iterable[str]:  # fmt: skip
    elsewhere = [one for one in (*baseline, *beside) if one.place != run.place]
    if elsewhere:
        places = ", ".join(sorted({str(one.place) for one in elsewhere}))
        yield f"{len(elsewhere)} runs are not compared, being of another place ({places}; here: {run.place})"
    if len(here) > len(same):
        yield f"{len(here) - len(same)} runs of other revisions of the code are not counted with this one"
    if len({one.revision for one in old}) > 1:
        yield "the baseline mixes runs of several revisions of the code"
    for what, now, then in (
        ("driver", {str(run.driver)}, {str(one.driver) for one in old}),
        *((name, {version}, {one.versions.get(name, "none") for one in old}) for name, version in run.versions.items()),
        *(
            (name, {run.settings.get(name, "unset")}, {one.settings.get(name, "unset") for one in old})
            for name in sorted({*run.settings, *(name for one in old for name in one.settings)})
        ),
    ):
        if old and now != then:
            yield f"{what}: {', '.join(sorted(then))} in the baseline, {', '.join(now)} here"
