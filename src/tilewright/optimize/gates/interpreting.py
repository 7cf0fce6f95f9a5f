"""Whether a version computes the right thing on small shapes: the interpreter's word, for both gates.

A version that is right on the workloads' own shapes may still be wrong on the ragged ones that the kernel
promises. So what is about to be kept is checked here too where a GPU verified it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.hardware.architectures import Board
from tilewright.optimize.attempting import Variant
from tilewright.records import Checked, Workload
from tilewright.task.task import Task
from tilewright.verify.check import check_on
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.quick import checked_of
from tilewright.verify.trusted import Trusted

CHECK_SECONDS = 20.0
"""For the check of one variant."""
FULL_CHECK_SECONDS = 60.0
"""For the last incumbent's check on hostile shapes and data."""


class Interpreting:
    """Checks versions of one task, with one process for its trusted implementation."""

    def __init__(self, baseline: Task, board: Board, workloads: Sequence[Workload], seed: int) -> None:
        self.board, self.workloads, self.seed = board, tuple(workloads), seed
        self._trusted = Trusted(baseline)

    def verdict(self, variant: Variant) -> Checked:
        """Of the variant's shipped configuration, on reduced shapes of every workload."""
        return self._checked(variant, quick=True, seconds=CHECK_SECONDS)

    def incorrect(self, variant: Variant) -> str | None:
        """On hostile shapes, data and memory, all that `tilewright check` tries: what is wrong, or None."""
        checked = self._checked(variant, quick=False, seconds=FULL_CHECK_SECONDS)
        return checked.reason if checked.verdict == "incorrect" else None

    def _checked(self, variant: Variant, *, quick: bool, seconds: float) -> Checked:
        engine = InterpreterEngine(variant.task, self.board)
        return checked_of(
            check_on(
                variant.task, engine, workloads=self.workloads, seed=self.seed, trusted=self._trusted,
                quick=quick, seconds=seconds,
            )
        )  # fmt: skip

    def close(self) -> None:
        self._trusted.close()
