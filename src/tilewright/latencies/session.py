"""Collects the latency records of tests in a session of `pytest --tilewright`; stores, compares and prints them.

The files are read before the first test, so that an error in a file does not cost a run. The latencies of failed tests
do not count, because their kernels were wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tilewright.errors import RequestError, TilewrightError
from tilewright.latencies import gate
from tilewright.latencies.comparing import CONFIDENCE, LatencyChange, LatencyComparison, compare, in_words
from tilewright.latencies.records import Latency, Malformed, Record, line_of, read
from tilewright.latencies.runs import SuiteRun, append, appendable, current, load


class LatencySession:
    """The pytest plug-in, which is registered only in the process that prints the results."""

    def __init__(self, config: pytest.Config):
        """Checks the options and reads the baseline. Raises RequestError, or StorageError if a file cannot be used."""
        self._root = config.rootpath
        self._machine: str | None = config.getoption("tilewright_machine")
        self._save, self._baseline = (_path(config, name) for name in ("save", "baseline"))
        self._limit: float | None = config.getoption("tilewright_fail_slower")
        """The limit of ``--tilewright-fail-slower``, in percent."""
        if self._limit is not None and self._baseline is None:
            raise RequestError("--tilewright-fail-slower needs --tilewright-baseline FILE")
        if self._limit is not None and not (math.isfinite(self._limit) and self._limit >= 0):
            raise RequestError(f"--tilewright-fail-slower {self._limit:g}: give a percentage of at least 0, like 5")
        if self._save and self._baseline and self._save.resolve() == self._baseline.resolve():
            why = "the runs of this code would be compared with themselves; save to another file"
            raise RequestError(f"--tilewright-save and --tilewright-baseline both name {self._save}: {why}")
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
        """Reads the records from the report of a test's teardown, which has the records of all its phases."""
        test = report.nodeid
        if report.when == "setup":
            self._failed.discard(test)  # a test may run again
        if report.failed:
            self._failed.add(test)
        if report.when == "teardown":
            self._workers.add(getattr(report, "node", None))
            records, self._problems[test] = read(test, report.user_properties)
            if records:
                self._records[test] = records

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Stores and compares the run. Sets the exit code if a test became slower, or if the run cannot be stored."""
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
        """Stores the run if ``--tilewright-save`` is given. Returns the runs that were in the file before."""
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
        if self._comparison is None or self._limit is None:
            return ()
        return gate.slower_by(self._comparison.results, self._limit)

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
            pairs = ((record, direction) for record in records for direction in record.directions)
            rows = [(*_times(record.directions[way]), record.backend, way, record.test) for record, way in pairs]
            yield from _table(("median ms", "± %", "min ms", "max ms", "n", "MiB", *_NAMES), rows)
        else:
            yield "no test left a benchmark record with record_property('benchmark', …)"
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
            yield "to collect several runs of this code, add --tilewright-save FILE, with a file of its own"
        if (n := comparison.decidable) > 1:
            chance = f"about {n * (1.0 - CONFIDENCE):.1f} of them are called faster or slower by chance"
            yield f"{n} comparisons at {100 * CONFIDENCE:.0f} %: {chance}"
        yield from self._gate_lines(comparison)
        for change in self._slower():
            what = f"{change.test} {change.backend} {change.direction}"
            yield f"FAILED: slower by more than {self._limit:g} %: {what}"

    def _gate_lines(self, comparison: LatencyComparison) -> Iterator[str]:
        """Yields what ``--tilewright-fail-slower`` can find, and with how many runs."""
        sigma, n = gate.spread(comparison.results), max(1, comparison.decidable)
        if self._limit is None:
            return
        name = f"--tilewright-fail-slower {self._limit:g}"
        now, then = gate.missing_runs(comparison.results)
        if now + then:
            lacking = in_words(now, then)
            yield f"{name} cannot fail yet, because it is corrected for {n} comparisons; missing runs: {lacking}"
        if sigma is not None:
            found = gate.table(n, self._limit, sigma)
            given = f"{n} comparisons and a spread of {100.0 * sigma:.1f} % between runs"
            yield f"{name} finds in {gate.POWER:.0%} of cases, with {given}, a slowdown of ({found})"
        if self._limit > 0:
            lower = f"to find {self._limit:g} %, set a lower limit, such as {0.4 * self._limit:.2g}"
            yield f"{name} finds a slowdown of {self._limit:g} % itself in at most {gate.CHANCE:.1%} of cases; {lower}"


_NAMES = ("backend", "direction", "test")
_WORDS = (*_NAMES, "verdict", "why")
"""The columns that contain text. They are aligned left."""


def _times(latency: Latency) -> tuple[str, ...]:
    times = (f"{latency.median:.6g}", f"{latency.rel_std:.1f}", f"{latency.min:.6g}", f"{latency.max:.6g}")
    return (*times, str(latency.nrep), f"{latency.peak_mem_mb:g}")


def _compared(change: LatencyChange) -> tuple[str, ...]:
    before = "" if change.before_ms is None else f"{change.before_ms:.6g}"
    ratio = f"{change.ratio.centre:.3f}" if change.ratio is not None and change.ratio.decided else ""
    return before, f"{change.after_ms:.6g}", ratio, change.verdict, change.reason


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a table. Columns of numbers are aligned right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    align = [str.ljust if name in _WORDS else str.rjust for name in head]
    for row in (head, *rows):
        cells = (place(cell, width) for place, cell, width in zip(align, row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _path(config: pytest.Config, name: str) -> Path | None:
    given = config.getoption(f"tilewright_{name}")
    return None if given is None else config.invocation_params.dir / given
