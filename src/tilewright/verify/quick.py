"""A quick check of candidates where no GPU can run them: the interpreter's, on small shapes.

A candidate's hints do not change what its Tile IR computes. So candidates that differ in hints alone share a verdict,
unless their launches have different grids. The check is the quick part of `check`: reduced shapes that keep every
tile's remainder, poisoned outputs, and the sanitizer.
"""

from __future__ import annotations

from tilewright.hardware.architectures import Board
from tilewright.records import Checked, Configuration, Workload
from tilewright.task.task import Task
from tilewright.verify.check import check_on
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.trusted import Trusted
from tilewright.verify.verdict import Verdict

SECONDS = 10.0
"""For one candidate."""


class Closed(Exception):
    """The check was closed while it ran."""


class QuickChecker:
    """Checks candidates of one task with the interpreter. Those that compute the same are checked once."""

    def __init__(self, task: Task, board: Board, seed: int) -> None:
        self.task, self.board, self.seed = task, board, seed
        self._engine = InterpreterEngine(task, board)
        self._trusted: Trusted | None = None
        self._closed = False
        self._known: dict[tuple[str, tuple[int, ...], Configuration], Checked] = {}

    def of(self, workload: Workload, configuration: Configuration) -> Checked:
        """Raises TaskError where the task's reference fails or tells nothing."""
        launch = self.task.launched(configuration, workload.dims, self.task.arrays(workload.dims), self.board)
        hints = self.task.space.hints
        computed = Configuration(tuple(item for item in configuration.items_ if item[0] not in hints))
        key = (workload.name, launch.grid, computed)
        if key not in self._known:
            self._trusted = self._trusted or Trusted(self.task)
            self._known[key] = checked_of(
                check_on(
                    self.task, self._engine, configurations=(configuration,), workloads=(workload,), seed=self.seed,
                    trusted=self._trusted, quick=True, seconds=SECONDS, progress=self._go_on,
                )
            )  # fmt: skip
        return self._known[key]

    def close(self) -> None:
        """A check that still runs in another thread ends with its next case."""
        self._closed = True
        if self._trusted is not None:
            self._trusted.close()

    def _go_on(self, stage: str, done: int, total: int | None, note: str = "") -> None:
        if self._closed:
            raise Closed


def checked_of(verdict: Verdict) -> Checked:
    errors = [result.error.share for result in verdict.results if result.error is not None]
    return Checked(
        verdict.verdict,
        f"by the interpreter, not on a GPU: {verdict.reason}",
        max(errors, default=None),
        tuple(result.case.described for result in verdict.results if result.verdict == "correct"),
    )
