"""One session of `pytest --tilewright`: collects the records, stores them, compares them, and prints the outcome.

The files are read before the first test, so that a mistake in them does not cost a run. The latency of a test that
failed does not count: its kernel was wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilewright.errors import RequestError, TilewrightError
from tilewright.latencies.comparing import CONFIDENCE, LatencyChange, LatencyComparison, compare
from tilewright.latencies.records import Malformed, Record, line_of, read
from tilewright.latencies.runs import SuiteRun, append, appendable, current, load

FINISHED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
"""Exit codes of a run that ran all its tests."""


@dataclass(frozen=True)
class LatencyOptions:
    """The options. Raises as `runs.py` does where a file cannot be used."""

    root: Path
    machine: str | None
    save: Path | None
    baseline: Path | None
    runs: tuple[SuiteRun, ...]
    """Of the baseline."""
    fail_slower: float | None
    """Percent."""

    @classmethod
    def of(cls, config: pytest.Config) -> LatencyOptions:
        """Read before the first test runs."""
        save, baseline = (_path(config, name) for name in ("save", "baseline"))
        limit = config.getoption("tilewright_fail_slower")
        if limit is not None and baseline is None:
            raise RequestError("--tilewright-fail-slower needs --tilewright-baseline FILE")
        if limit is not None and not (math.isfinite(limit) and limit >= 0):
            raise RequestError(f"--tilewright-fail-slower {limit:g}: give a percentage of at least 0, like 5")
        if save is not None and baseline is not None and save.resolve() == baseline.resolve():
            raise RequestError(
                f"--tilewright-save and --tilewright-baseline both name {save}: "
                "runs of this code would become their own baseline; save to another file"
            )
        if save is not None:
            appendable(save)
        runs = load(baseline) if baseline is not None else ()
        return cls(config.rootpath, config.getoption("tilewright_machine"), save, baseline, runs, limit)


class LatencySession:
    """A pytest plugin object, registered in the process that prints."""

    def __init__(self, request: LatencyOptions):
        self._request = request
        self._records: dict[str, tuple[Record, ...]] = {}
        self._problems: dict[str, tuple[Malformed, ...]] = {}
        self._failed: set[str] = set()
        self._workers: set[object] = set()
        self._notes: list[str] = []
        self._comparison: LatencyComparison | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The report of the teardown holds what any phase recorded."""
        test = report.nodeid
        if report.when == "setup":
            self._failed.discard(test)  # it may be a second try
        if report.failed:
            self._failed.add(test)
        if report.when == "teardown":
            self._workers.add(getattr(report, "node", None))
            records, self._problems[test] = read(test, report.user_properties)
            if records:
                self._records[test] = records

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Stores and compares; sets the exit code where a test got slower or the run could not be stored."""
        counted = tuple(r for test, rs in self._records.items() if test not in self._failed for r in rs)
        if not counted or not (self._request.save or self._request.baseline):
            return
        if exitstatus not in FINISHED:
            self._notes.append("the run did not finish: nothing was stored or compared")
            return
        own = tuple(path for path in (self._request.save, self._request.baseline) if path)
        run = current(
            counted, machine=self._request.machine, workers=max(1, len(self._workers)),
            folder=self._request.root, own=own,
        )  # fmt: skip
        beside = self._stored(run, session)
        if self._request.baseline is not None:
            self._comparison = compare(run, beside, self._request.runs)
        if self._slower() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _stored(self, run: SuiteRun, session: pytest.Session) -> tuple[SuiteRun, ...]:
        """Stores the run; the runs that were in the file before."""
        if self._request.save is None:
            return ()
        try:
            runs = append(self._request.save, run)
        except TilewrightError as error:
            self._notes.append(f"not stored: {error}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return ()
        self._notes.append(f"stored as run {len(runs)} of {self._request.save}")
        return runs[:-1]

    def _slower(self) -> Sequence[LatencyChange]:
        if self._comparison is None or self._request.fail_slower is None:
            return ()
        return self._comparison.slower_by(self._request.fail_slower)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints everything, at the end."""
        terminalreporter.section("latencies (Tilewright)")
        for line in self._lines():
            terminalreporter.write_line(line)

    def _lines(self) -> Iterator[str]:
        records = [record for of_test in self._records.values() for record in of_test]
        for record in records:
            failed = "  (the test failed: not stored, not compared)" if record.test in self._failed else ""
            yield f"{record.test}{failed}"
            yield line_of(record)
        if records:
            yield ""
            yield from _table(_HEAD, list(_rows(records)))
        else:
            yield "no test left a benchmark record; they do it with record_property('benchmark', …)"
        for problems in self._problems.values():
            yield from (f"not read: {problem}" for problem in problems)
        if len(self._workers) > 1:
            yield f"measured with {len(self._workers)} test processes at a time, which disturb one another's times"
        if self._comparison is not None:
            yield from self._comparison_lines(self._comparison)
        yield from self._notes

    def _comparison_lines(self, comparison: LatencyComparison) -> Iterator[str]:
        yield ""
        yield f"against {self._request.baseline}:"
        yield from _table(_COMPARED_HEAD, [_compared_row(change) for change in comparison.results])
        yield from comparison.notes
        if self._request.save is None and any(change.verdict == "not enough runs" for change in comparison.results):
            yield "runs of this code add up in a file of their own: --tilewright-save FILE"
        if comparison.decidable > 1:
            by_chance = comparison.decidable * (1.0 - CONFIDENCE)
            yield (
                f"{comparison.decidable} comparisons at {100 * CONFIDENCE:.0f} %: "
                f"about {by_chance:.1f} of them are called faster or slower by chance"
            )
        for change in self._slower():
            what = f"{change.test} {change.backend} {change.direction}"
            yield f"FAILED: slower by more than {self._request.fail_slower:g} %: {what}"


_HEAD = ("median ms", "± %", "min ms", "max ms", "n", "MiB", "backend", "direction", "test")
_NUMBERS = {"median ms", "± %", "min ms", "max ms", "n", "MiB", "before ms", "after ms", "ratio"}
_COMPARED_HEAD = ("before ms", "after ms", "ratio", "verdict", "why", "backend", "direction", "test")


def _rows(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    for record in records:
        for direction, latency in record.directions.items():
            yield (
                f"{latency.median:.6g}", f"{latency.rel_std:.1f}", f"{latency.min:.6g}", f"{latency.max:.6g}",
                str(latency.nrep), f"{latency.peak_mem_mb:g}", record.backend, direction, record.test,
            )  # fmt: skip


def _compared_row(change: LatencyChange) -> tuple[str, ...]:
    before = "" if change.before_ms is None else f"{change.before_ms:.6g}"
    ratio = f"{change.ratio.centre:.3f}" if change.ratio is not None and change.ratio.decided else ""
    return (
        before, f"{change.after_ms:.6g}", ratio, change.verdict, change.reason, change.backend, change.direction,
        change.test,
    )  # fmt: skip


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns of text; numbers are aligned on the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = (
            cell.rjust(width) if name in _NUMBERS else cell.ljust(width)
            for cell, width, name in zip(row, widths, head, strict=True)
        )
        yield "  ".join(cells).rstrip()


def _path(config: pytest.Config, name: str) -> Path | None:
    given = config.getoption(f"tilewright_{name}")
    return None if given is None else config.invocation_params.dir / given
