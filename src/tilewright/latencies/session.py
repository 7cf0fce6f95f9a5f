"""One session of `pytest --tilewright`: collects the records, stores them, compares them, and prints the outcome.

The files are read before the first test, so that a mistake in them does not cost a run. The latency of a test that
failed does not count: its kernel was wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tilewright.errors import RequestError, TilewrightError
from tilewright.latencies.comparing import CONFIDENCE, LatencyChange, LatencyComparison, compare
from tilewright.latencies.records import Latency, Malformed, Record, line_of, read
from tilewright.latencies.runs import SuiteRun, append, appendable, current, load


class LatencySession:
    """A pytest plugin object, registered in the process that prints."""

    def __init__(self, config: pytest.Config):
        """Checks the options and reads the baseline. Raises as `runs.py` does where a file cannot be used."""
        self._root = config.rootpath
        self._machine: str | None = config.getoption("tilewright_machine")
        self._save, self._baseline = (_path(config, name) for name in ("save", "baseline"))
        self._limit: float | None = config.getoption("tilewright_fail_slower")
        """Percent."""
        if self._limit is not None and self._baseline is None:
            raise RequestError("--tilewright-fail-slower needs --tilewright-baseline FILE")
        if self._limit is not None and not (math.isfinite(self._limit) and self._limit >= 0):
            raise RequestError(f"--tilewright-fail-slower {self._limit:g}: give a percentage of at least 0, like 5")
        if self._save and self._baseline and self._save.resolve() == self._baseline.resolve():
            raise RequestError(
                f"--tilewright-save and --tilewright-baseline both name {self._save}: "
                "runs of this code would become their own baseline; save to another file"
            )
        if self._save:
            appendable(self._save)
        self._earlier = load(self._baseline) if self._baseline else ()
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
        own = tuple(path for path in (self._save, self._baseline) if path)
        if not counted or not own:
            return
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._notes.append("the run did not finish: nothing was stored or compared")
            return
        workers = max(1, len(self._workers))
        run = current(counted, machine=self._machine, workers=workers, folder=self._root, own=own)
        beside = self._stored(run, session)
        if self._baseline:
            self._comparison = compare(run, beside, self._earlier)
        if self._slower() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _stored(self, run: SuiteRun, session: pytest.Session) -> tuple[SuiteRun, ...]:
        """Stores the run; the runs that were in the file before."""
        if self._save is None:
            return ()
        try:
            runs = append(self._save, run)
        except TilewrightError as error:
            self._notes.append(f"not stored: {error}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return ()
        self._notes.append(f"stored as run {len(runs)} of {self._save}")
        return runs[:-1]

    def _slower(self) -> Sequence[LatencyChange]:
        return self._comparison.slower_by(self._limit) if self._comparison and self._limit is not None else ()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
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
            rows = [
                (*_times(latency), record.backend, direction, record.test)
                for record in records
                for direction, latency in record.directions.items()
            ]
            yield from _table(("median ms", "± %", "min ms", "max ms", "n", "MiB", *_NAMES), rows)
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
        yield f"against {self._baseline}:"
        rows = [(*_compared(change), change.backend, change.direction, change.test) for change in comparison.results]
        yield from _table(("before ms", "after ms", "ratio", "verdict", "why", *_NAMES), rows)
        yield from comparison.notes
        if self._save is None and any(change.verdict == "not enough runs" for change in comparison.results):
            yield "runs of this code add up in a file of their own: --tilewright-save FILE"
        if (n := comparison.decidable) > 1:
            chance = f"about {n * (1.0 - CONFIDENCE):.1f} of them are called faster or slower by chance"
            yield f"{n} comparisons at {100 * CONFIDENCE:.0f} %: {chance}"
        for change in self._slower():
            what = f"{change.test} {change.backend} {change.direction}"
            yield f"FAILED: slower by more than {self._limit:g} %: {what}"


_NAMES = ("backend", "direction", "test")
_WORDS = (*_NAMES, "verdict", "why")
"""The columns that hold no numbers."""


def _times(one: Latency) -> tuple[str, ...]:
    times = (f"{one.median:.6g}", f"{one.rel_std:.1f}", f"{one.min:.6g}", f"{one.max:.6g}")
    return (*times, str(one.nrep), f"{one.peak_mem_mb:g}")


def _compared(change: LatencyChange) -> tuple[str, ...]:
    before = "" if change.before_ms is None else f"{change.before_ms:.6g}"
    ratio = f"{change.ratio.centre:.3f}" if change.ratio is not None and change.ratio.decided else ""
    return before, f"{change.after_ms:.6g}", ratio, change.verdict, change.reason


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns of text; numbers are aligned on the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = (
            cell.ljust(width) if name in _WORDS else cell.rjust(width)
            for cell, width, name in zip(row, widths, head, strict=True)
        )
        yield "  ".join(cells).rstrip()


def _path(config: pytest.Config, name: str) -> Path | None:
    given = config.getoption(f"tilewright_{name}")
    return None if given is None else config.invocation_params.dir / given
