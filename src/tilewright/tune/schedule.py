"""Verifies and races one workload while compilers still run.

A second thread runs the compilers. The caller's thread takes the workloads one by one. It verifies the best candidates
of a workload before all candidates have compiled, and races them when most candidates have compiled. The last
candidates to compile mostly spill, so they rarely change the choice of candidates. If the choice stays the same,
nothing is verified or raced again, because the judge remembers its results. After the first race, compilers that take
much longer than those of the fastest candidates are ended (`compile.skipped`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING

from tilewright.compile.accumulators import HasToSpill
from tilewright.compile.compile import Compiled, Stopped, Unit, compile_all
from tilewright.compile.screen import ENOUGH_TO_START
from tilewright.compile.skipped import CompileLimit
from tilewright.progress import Progress
from tilewright.records import Workload
from tilewright.strategies.base import Batch, Search, batches
from tilewright.task.task import Task
from tilewright.tools import child

if TYPE_CHECKING:  # not loaded before the first compilers run
    from tilewright.tune.field import Field
    from tilewright.tune.judge import Judge

ENOUGH_TO_RACE = 0.7
"""Share of the candidates that must have compiled before the best of them are raced."""


@dataclass(frozen=True)
class Arrived:
    """The candidates of one workload that are already compiled, failed or skipped, in the order of the space."""

    so_far: list[Compiled]
    expected: int

    @property
    def all(self) -> bool:
        return len(self.so_far) == self.expected

    @property
    def enough_to_race(self) -> bool:
        compiled = count_compiled(self.so_far)
        skipped = len(self.so_far) - compiled
        return compiled >= ENOUGH_TO_RACE * (self.expected - skipped)

    def batches(self, search: Search, field: Field) -> Iterator[Batch]:
        """Yields the strategy's batches. While candidates are missing, yields only the first batch."""
        return islice(batches(search, field.outcomes), None if self.all else 1)


def count_compiled(arrived: list[Compiled]) -> int:
    """Returns the number of candidates that were not skipped."""
    return sum(not is_skipped(compiled) for compiled in arrived)


def is_skipped(compiled: Compiled) -> bool:
    """Returns whether a candidate was not compiled because its accumulators cannot fit."""
    return isinstance(compiled.built, HasToSpill)


class Schedule:
    """A context manager that compiles ``units`` in a second thread.

    If the ``with`` block ends early, the compilers are ended.
    """

    def __init__(self, task: Task, units: list[Unit], jobs: int, seconds: float, progress: Progress) -> None:
        self.task, self.units, self.jobs, self.budget, self.progress = task, units, jobs, seconds, progress
        self.seconds = 0.0
        """Wall time from the start of the first compiler to the end of the last."""
        self._arrived: dict[str, list[Compiled]] = {unit.workload.name: [] for unit in units}
        self._place = {(unit.workload.name, unit.configuration): at for at, unit in enumerate(units)}
        self._changed = threading.Condition()
        self._left = threading.Event()
        self._limits: dict[str, CompileLimit] = {}
        self._again = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._compile, name="compilers")

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

    def compiled(self, workload: Workload, judge: Judge, *, ahead: bool) -> Iterator[Arrived]:
        """Yields the compiled candidates of a workload repeatedly, each time with more candidates. Finally yields all.

        ahead: whether to begin before all candidates have compiled. If the judge had nothing to do since the last
            yield, waits for more candidates.
        """
        expected = sum(unit.workload == workload for unit in self.units)
        more_than = int(ENOUGH_TO_START * expected) if ahead else expected - 1
        while True:
            arrived, steps = Arrived(self._wait(workload.name, more_than, expected), expected), judge.steps
            yield arrived
            if arrived.all and not self._again:
                return
            self._again = False
            more_than = -1 if judge.steps > steps else count_compiled(arrived.so_far)

    def limit(self, workload: Workload, limit: CompileLimit | None) -> None:
        """Limits the compilers of a workload from now on, except that of the shipped configuration."""
        if limit is not None:
            self._limits[workload.name] = limit

    def _limit_of(self, unit: Unit) -> CompileLimit | None:
        is_shipped = unit.configuration == self.task.space.shipped
        return None if is_shipped else self._limits.get(unit.workload.name)

    def compile_unfit(self, workload: Workload) -> None:
        """Compiles the skipped candidates of a workload in the caller's thread.

        Afterwards, `compiled` yields all candidates again.
        """
        arrived = self._arrived[workload.name]
        units = [compiled.unit for compiled in arrived if is_skipped(compiled)]
        others = [compiled for compiled in arrived if not is_skipped(compiled)]
        arrived[:] = others + compile_all(self.task, units, jobs=self.jobs, seconds=self.budget)
        self._again = True

    def _wait(self, workload: str, more_than: int, expected: int) -> list[Compiled]:
        arrived = self._arrived.get(workload, [])
        with self._changed:
            self._changed.wait_for(
                lambda: count_compiled(arrived) > more_than or len(arrived) == expected or self._error is not None
            )
            if len(arrived) < expected:
                self._raise()
            return sorted(arrived, key=lambda compiled: self._place[workload, compiled.unit.configuration])

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _compile(self) -> None:
        started, counter = time.perf_counter(), count(1)

        def on_done(compiled: Compiled) -> None:
            unit = compiled.unit
            with self._changed:
                self._arrived[unit.workload.name].append(compiled)
                self._changed.notify_all()
            self.progress("compile", next(counter), len(self.units), f"{unit.workload.name} {unit.configuration}")

        try:
            compile_all(
                self.task, self.units, jobs=self.jobs, seconds=self.budget, on_done=on_done,
                stopped=self._left.is_set, unfit=False, limit_of=self._limit_of,
            )  # fmt: skip
        except Stopped:
            pass
        except BaseException as error:  # raised again in the caller's thread
            with self._changed:
                self._error = error
                self._changed.notify_all()
        self.seconds = time.perf_counter() - started
