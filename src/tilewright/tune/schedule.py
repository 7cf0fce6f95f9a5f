"""Verifies and races one workload while compilers still run.

A second thread runs the compilers. The caller's thread takes the workloads one by one. It verifies the best candidates
of a workload before all candidates have compiled, and races them when most candidates have compiled. The last
candidates to compile mostly spill, so they rarely change the choice of candidates. If the choice stays the same,
nothing is verified or raced again, because the judge remembers its results. After the first race, compilers that take
much longer than those of the fastest candidates are ended (`compile.skipped`).

The second thread compiles the first batch of each workload's search. Further batches depend on outcomes, so the
caller's thread compiles them. If a time limit passes, candidates that have not arrived are left out of the result.

What was compiled for one workload is a candidate of all workloads for which the code is the same. A workload takes what
those before it compiled when it begins, and what all others compiled with each further batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING

from tilewright.compile.compile import Compiled, Stopped, Unit, compile_all
from tilewright.compile.screen import ENOUGH_TO_START
from tilewright.compile.skipped import CompileLimit, NotStarted
from tilewright.hardware.boards import Board
from tilewright.languages.kept_cubins import CubinsInMemory, KeptCubins
from tilewright.progress import Progress
from tilewright.records import Built, Candidate, Configuration, Workload
from tilewright.strategies.base import Batch, Search, batches
from tilewright.task.task import Task
from tilewright.tools import child
from tilewright.tune.workload_search import Searching, TimeLimit

if TYPE_CHECKING:  # not loaded before the first compilers run
    from tilewright.tune.field import Field
    from tilewright.tune.judge import Judge

ENOUGH_TO_RACE = 0.7
"""Share of the candidates that must have compiled before the best of them are raced."""

AT_ONCE = 64
"""With a time limit, candidates are compiled in groups of this size. All of a group pass the front end before the first
of them may arrive."""
OUT_OF_TIME = CompileLimit(0.0, "the time limit passed")


@dataclass(frozen=True)
class Arrived:
    """The candidates of one workload that are already compiled, failed or skipped, in the order of the space."""

    so_far: list[Compiled]
    expected: int
    earlier: Mapping[Configuration, Candidate]
    """The outcomes of the batches before this one."""

    @property
    def all(self) -> bool:
        return len(self.so_far) == self.expected

    @property
    def enough_to_race(self) -> bool:
        compiled = count_compiled(self.so_far)
        skipped = len(self.so_far) - compiled
        return compiled >= ENOUGH_TO_RACE * (self.expected - skipped)

    def batches(self, chosen: Search, field: Field) -> Iterator[Batch]:
        """Yields the batches to verify. While candidates are missing, yields only the first batch."""
        return islice(batches(chosen, field.outcomes), None if self.all else 1)


def count_compiled(arrived: list[Compiled]) -> int:
    """Returns the number of candidates that were not skipped."""
    return sum(not is_skipped(compiled) for compiled in arrived)


def is_skipped(compiled: Compiled) -> bool:
    """Returns whether the compiler of a candidate was not started."""
    return isinstance(compiled.built, NotStarted)


class Schedule:
    """A context manager that compiles the first batch of each search in a second thread.

    searches: one for each workload. If the ``with`` block ends early, the compilers are ended.
    budget: the most seconds of one compiler. limit: the time limit of the run.
    kept: as in `CompilerPool`.
    """

    def __init__(
        self, task: Task, board: Board, searches: Mapping[str, Searching], jobs: int, budget: float,
        limit: TimeLimit, progress: Progress, kept: KeptCubins | None = None,
    ) -> None:  # fmt: skip
        self.task, self.board, self.searches, self.jobs, self.budget = task, board, searches, jobs, budget
        self.time, self.progress, self.kept = limit, progress, kept or CubinsInMemory()
        self.units = [unit for search in searches.values() for unit in self._units(search, search.batch)]
        self.seconds = 0.0
        """Wall time from the start of the first compiler to the end of the last."""
        self._arrived: dict[str, list[Compiled]] = {workload: [] for workload in searches}
        self._place = {(unit.workload.name, unit.configuration): at for at, unit in enumerate(self.units)}
        self._changed = threading.Condition()
        self._left = threading.Event()
        self._limits: dict[str, CompileLimit] = {}
        self._late: set[str] = set()
        """The workloads for which the time limit ended the compilers."""
        self._again: set[str] = set()
        """The workloads of which more was compiled after all had arrived."""
        self._alone = threading.Lock()
        self._busy = threading.Event()
        self._error: BaseException | None = None
        self._done = count(1)
        self._thread = threading.Thread(target=self._compile_first, name="compilers")

    def __enter__(self) -> Schedule:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._left.set()
        while self._thread.is_alive():
            if kind is not None:  # after Ctrl-C or an error, the other results are not needed
                child.kill_all()
            self._thread.join(0.02)

    def finish(self) -> None:
        """Waits for all compilers."""
        self._thread.join()
        self._raise()

    def wait_until_busy(self) -> None:
        """Waits until each compiler has a candidate, or the front end is done.

        Other work in Python would delay the start of the compilers.
        """
        self._busy.wait()

    def compiled(self, workload: Workload, judge: Judge, *, ahead: bool) -> Iterator[Arrived]:
        """Yields the compiled candidates of a workload repeatedly, each time with more candidates. Finally yields all.

        ahead: whether to begin before all candidates have compiled. If the judge had nothing to do since the last
            yield, waits for more candidates.
        """
        search = self.searches[workload.name]
        self._compile_new(search, self._taken(search, [each for each in self.searches.values() if each.why]))
        more_than = int(ENOUGH_TO_START * len(search.every)) if ahead else len(search.every) - 1
        while True:
            so_far, steps = self._wait(workload.name, more_than, len(search.every)), judge.steps
            expected = len(so_far) if workload.name in self._late else len(search.every)
            arrived = Arrived(so_far, expected, search.judged)
            yield arrived
            if arrived.all and workload.name not in self._again:
                return
            self._again.discard(workload.name)
            more_than = -1 if judge.steps > steps else count_compiled(arrived.so_far)

    def limit(self, workload: Workload, limit: CompileLimit | None) -> None:
        """Limits the compilers of a workload from now on, except that of the shipped configuration."""
        if limit is not None:
            self._limits[workload.name] = limit

    def compile_left_out(self, workload: Workload, configs: Collection[Configuration]) -> bool:
        """Compiles the candidates ``configs`` of a workload in the caller's thread. Their compilers were never started,
        or were ended early.

        Afterwards, `compiled` yields all candidates again. If the run's time is over, compiles nothing and returns
        False.
        """
        if self.time.passed:
            return False
        arrived = self._arrived[workload.name]
        units = [compiled.unit for compiled in arrived if compiled.unit.configuration in configs]
        others = [compiled for compiled in arrived if compiled.unit.configuration not in configs]
        with self._alone:
            arrived[:] = others + compile_all(
                self.task, units, jobs=self.jobs, seconds=self.budget,
                limit_of=lambda _: OUT_OF_TIME if self.time.passed else None, kept=self.kept,
            )  # fmt: skip
        self._again.add(workload.name)
        return True

    def search_on(self, workload: Workload, field: Field) -> bool:
        """Compiles the next batch of a workload's search in the caller's thread. Returns False if the search is over.

        field: all candidates that have arrived. Afterwards, `compiled` yields all candidates again.
        """
        search = self.searches[workload.name]
        self._wait_for_first(search)
        new = search.next(field.candidates, self.time, late=workload.name in self._late)
        batch = (*new, *self._taken(search, self.searches.values()))
        if not batch:
            return False
        self._compile_new(search, batch)
        self._again.add(workload.name)
        return True

    def _compile_new(self, search: Searching, batch: Batch) -> None:
        """Compiles further configurations of a workload in the caller's thread."""
        if not batch:
            return
        units = self._units(search, batch)
        with self._alone:  # each GPU has a thread that calls this
            for unit in units:
                self._place[search.workload.name, unit.configuration] = len(self._place)
            self.units = [*self.units, *units]  # a new list, because the second thread may be compiling the old one
            self._compile(units, self.time.divided(sum(not each.why for each in self.searches.values()) or 1))

    def _taken(self, search: Searching, others: Collection[Searching]) -> Batch:
        """Takes what is compiled for ``others`` into a search, if it has the same code there."""
        if self.time.passed:
            return ()
        built = {
            (name, each.unit.configuration)
            for name in (other.workload.name for other in others)
            for each in tuple(self._arrived[name])
            if isinstance(each.built, Built)
        }
        shared = search.shared().items()
        return search.take(config for config, other in shared if (other.workload.name, config) in built)

    def _wait_for_first(self, search: Searching) -> None:
        """Waits until the first batches of the workloads with the same code are compiled.

        Otherwise, the speed of the compilers would decide what is taken. With a time limit, it decides anyway.
        """
        if self.time.seconds is not None:
            return
        first = {other.workload.name: len(other.every) for other in search.shared().values() if not other.judged}

        def compiled() -> bool:
            return all(name in self._late or len(self._arrived[name]) >= size for name, size in first.items())

        with self._changed:
            self._changed.wait_for(lambda: compiled() or self._error is not None)
            if not compiled():
                self._raise()

    def _units(self, search: Searching, batch: Batch) -> list[Unit]:
        return [Unit(search.workload, config, self.board) for config in batch]

    def _expected_us(self, unit: Unit) -> float | None:
        return self.searches[unit.workload.name].expected_us(unit.configuration)

    def _wait(self, workload: str, more_than: int, expected: int) -> list[Compiled]:
        arrived = self._arrived.get(workload, [])
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    count_compiled(arrived) > more_than
                    or len(arrived) == expected
                    or workload in self._late
                    or self._error is not None
                )
            )
            if len(arrived) < expected:
                self._raise()
            return sorted(arrived, key=lambda compiled: self._place[workload, compiled.unit.configuration])

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _compile_first(self) -> None:
        started = time.perf_counter()
        try:
            for units, limit in self._groups():
                self._compile(units, limit)
        except Stopped:
            pass
        except BaseException as error:  # raised again in the caller's thread
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            self._busy.set()
        self.seconds = time.perf_counter() - started

    def _groups(self) -> Iterator[tuple[list[Unit], TimeLimit]]:
        """Yields the units that are compiled together, with their time limit.

        With a time limit, shipped configurations are compiled first, and each workload has an equal share of the time.
        """
        if self.time.seconds is None:
            yield self.units, self.time
            return
        shipped = self.task.space.shipped
        first = list(self.units)
        yield [unit for unit in first if unit.configuration == shipped], TimeLimit(None)
        for place, workload in enumerate(self.searches):
            rest = [unit for unit in first if unit.workload.name == workload and unit.configuration != shipped]
            limit = self.time.divided(len(self.searches) - place)
            for start in range(0, len(rest), AT_ONCE):
                yield rest[start : start + AT_ONCE], limit

    def _compile(self, units: list[Unit], limit: TimeLimit) -> None:
        """Compiles units. If the time limit passes, leaves out those that are not compiled yet."""

        def on_done(compiled: Compiled) -> None:
            unit = compiled.unit
            with self._changed:
                self._arrived[unit.workload.name].append(compiled)
                self._changed.notify_all()
            left = "" if self.time.seconds is None else f", {self.time.left:.0f} s left"
            note = f"{unit.workload.name} {unit.configuration}{left}"
            self.progress("compile", next(self._done), len(self.units), note)

        def limit_of(unit: Unit) -> CompileLimit | None:
            if limit.passed:
                return OUT_OF_TIME
            is_shipped = unit.configuration == self.task.space.shipped
            return None if is_shipped else self._limits.get(unit.workload.name)

        try:
            compile_all(
                self.task, units, jobs=self.jobs, seconds=self.budget, on_done=on_done,
                stopped=lambda: self._left.is_set() or limit.passed, unfit=False, limit_of=limit_of, kept=self.kept,
                on_busy=self._busy.set, expected_us=self._expected_us,
            )  # fmt: skip
        except Stopped:
            if self._left.is_set():
                raise
            with self._changed:
                self._late |= {unit.workload.name for unit in units}
                self._changed.notify_all()
