"""Checks by the interpreter, for candidates that no GPU runs and for versions of a task that a GPU verified before.

A candidate's hints do not change what its Tile IR computes. So candidates that differ only in hints share a verdict,
unless their launches have different grids.
"""

from __future__ import annotations

from tilewright.hardware.architectures import Board
from tilewright.records import Checked, Configuration, Workload
from tilewright.task.task import Task
from tilewright.verify.check import check_on
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.planning import Scope
from tilewright.verify.schedule import Equipment
from tilewright.verify.trusted import Trusted

SECONDS = 10.0  # for one candidate


class Closed(Exception):
    """The check was closed while it ran."""


class QuickChecker:
    """Checks one task with the interpreter. One process computes its trusted implementation."""

    def __init__(self, task: Task, board: Board, seed: int) -> None:
        self.task, self.board, self.seed = task, board, seed
        self._engine = InterpreterEngine(task, board)
        self._trusted = Trusted(task)
        self._closed = False
        self._known: dict[tuple[str, tuple[int, ...], Configuration], Checked] = {}

    def of(self, workload: Workload, configuration: Configuration) -> Checked:
        """Checks a candidate on reduced shapes and small integers; candidates that compute the same are checked once.
        Raises TaskError if the task's reference fails or does not depend on its inputs."""
        launch = self.task.launched(configuration, workload.dims, self.task.arrays(workload.dims), self.board)
        hints = self.task.space.hints
        computed = Configuration(tuple(item for item in configuration.items_ if item[0] not in hints))
        key = (workload.name, launch.grid, computed)
        if key not in self._known:
            scope = Scope((configuration,), (workload,), seed=self.seed, quick=True, seconds=SECONDS)
            self._known[key] = self._checked(self.task, self._engine, scope)
        return self._known[key]

    def check(self, version: Task, workloads: tuple[Workload, ...], *, quick: bool, seconds: float) -> Checked:
        """Checks the shipped configuration of a version of the task. Raises TaskError as `of` does."""
        scope = Scope(workloads=workloads, seed=self.seed, quick=quick, seconds=seconds)
        return self._checked(version, InterpreterEngine(version, self.board), scope)

    def close(self) -> None:
        """Ends the trusted implementation. A check that still runs in another thread ends at its next case."""
        self._closed = True
        self._trusted.close()

    def _checked(self, task: Task, engine: InterpreterEngine, scope: Scope) -> Checked:
        verdict = check_on(task, Equipment(engine, self._trusted), scope, self._go_on)
        share = max((result.error.share for result in verdict.results if result.error is not None), default=None)
        cases = tuple(result.case.described for result in verdict.results if result.verdict == "correct")
        return Checked(verdict.verdict, f"by the interpreter, not on a GPU: {verdict.reason}", share, cases)

    def _go_on(self, stage: str, done: int, total: int | None, note: str = "") -> None:
        if self._closed:
            raise Closed
