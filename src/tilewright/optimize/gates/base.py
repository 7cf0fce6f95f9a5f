"""The gate that every change goes through: verify, race, confirm, decide.

`measured.py` judges on a GPU; `predicted.py` judges by the interpreter and the model. Both take the variants of one
iteration and decide whether the best variant replaces the incumbent.

A variant that is correct on the workloads' shapes may still be wrong on other shapes that the kernel supports. So the
interpreter checks a variant on other shapes before it is kept (`VariantChecker`), even if a GPU verified it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.hardware.architectures import Board
from tilewright.inspect.work import count, diagnosis_of
from tilewright.ledger.records import Attempt, AttemptStatus, Correctness, GainParts, Metrics, WorkloadOutcome
from tilewright.optimize.attempting import Variant
from tilewright.optimize.gates.arena import Confirmations
from tilewright.race.stats import Interval
from tilewright.records import Bound, Checked, Json, MeasuredTime, Workload
from tilewright.task.task import Task
from tilewright.verify.cases import Case
from tilewright.verify.check import InterpreterChecker

CORRECTNESS: Mapping[str, Correctness] = {
    "correct": "PASS", "correct on reduced shapes": "PASS", "incorrect": "FAIL", "unverified": "unverified",
}  # fmt: skip
"""Maps the verdict of a check to the value that the ledger stores."""
CHECK_SECONDS = 20.0
"""Time limit for the check of one variant."""
FULL_CHECK_SECONDS = 60.0
"""Time limit for the last incumbent's check on hostile shapes and data."""

Attempts = tuple[Attempt, ...]


@dataclass(frozen=True)
class RankedVariant:
    """A variant. ``ratio``: its time / the incumbent's time, geometric mean over the workloads.

    loses: whether it is clearly slower than the incumbent on some workload. Then it is ranked last.
    """

    variant: Variant
    ratio: float
    loses: bool = False
    times: Mapping[str, tuple[MeasuredTime, MeasuredTime]] = field(default_factory=dict)
    """The times of the variant and of the incumbent on each workload; empty if the times are predicted."""


@dataclass(frozen=True)
class RacedVariants:
    """All variants of an iteration, sorted by predicted time, and the ranking of those that were timed, the fastest
    first. ``correct``: whether one was found correct."""

    variants: tuple[Variant, ...]
    ranked: tuple[RankedVariant, ...]
    attempts: Attempts
    correct: bool = True


@dataclass(frozen=True)
class ConfirmedVariant:
    """The variant that is decided on, with its check and its measurements."""

    best: Variant
    incumbent: Variant
    checked: Checked
    """The interpreter's verdict on ``best``."""
    attempts: Attempts
    confirmations: Confirmations | None = None
    """The measurements on fresh inputs; None if the times are predicted."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The outcome of an iteration's variants."""

    best: Variant
    """The variant that passed the most stages, whether it is kept or not."""
    correctness: Correctness
    keep: bool
    crashed: bool = False
    """True if every variant crashed or hung."""
    decided: bool = True
    """False if noise hid whether the best variant is faster."""
    to_confirm: bool = False
    """True if the variant was not kept, but is correct and predicted to be faster: a GPU can confirm it."""
    reason: str
    outcomes: tuple[WorkloadOutcome, ...] = ()
    attempts: Attempts = ()
    gain_parts: GainParts | None = None
    environment: Mapping[str, Json] = field(default_factory=dict)


class Ranking(Protocol):
    """Verifies and races the variants of one iteration, some of them while others are still built."""

    @property
    def times(self) -> Mapping[str, float]:
        """The time of each variant that was raced so far / the incumbent's time, by the name of its version. Empty if
        times are predicted."""

    def heat(self, variants: Sequence[Variant]) -> bool:
        """Verifies and races the most promising of ``variants``. Returns False if nothing was left to do."""

    def race(self, variants: Sequence[Variant]) -> RacedVariants:
        """Ranks the correct variants by time. ``variants``: sorted by predicted time."""


class Gate(Protocol):
    """Judges variants in three stages. ``measured``: whether times are measured on a GPU; else they are predicted."""

    measured: bool

    @property
    def noise(self) -> Mapping[str, Interval]:
        """The ratio of the times of two baseline copies on each workload; empty if nothing is measured."""

    def baseline(self, variant: Variant) -> tuple[Metrics, ...] | str:
        """Returns the metrics of the untouched code for each workload, or the reason why it is not correct."""

    def ranking(self, incumbent: Variant) -> Ranking:
        """Begins to rank the variants of an iteration: checks them on the workloads' shapes, and times them."""

    def confirm(self, raced: RacedVariants, incumbent: Variant) -> ConfirmedVariant | Judged:
        """Checks the fastest variant on other shapes, and measures it again. Returns `Judged` if no variant is left."""

    def decide(self, confirmed: ConfirmedVariant) -> Judged:
        """Decides whether the confirmed variant replaces the incumbent."""

    def final(self, variant: Variant) -> tuple[Metrics, ...]:
        """Returns the metrics of the last incumbent for each workload."""


class VariantChecker:
    """Checks versions of one task with the interpreter. All checks share one process for the trusted implementation."""

    def __init__(self, baseline: Task, board: Board, workloads: Sequence[Workload], seed: int) -> None:
        self.workloads = tuple(workloads)
        self._checker = InterpreterChecker(baseline, board, seed)

    def verdict(self, variant: Variant, *, own_shapes: bool = False) -> Checked:
        """Checks the variant's shipped configuration on every workload, on reduced shapes.

        With ``own_shapes``, also checks it at the workload's full size.
        """
        return self._checker.check(variant.task, self.workloads, seconds=CHECK_SECONDS, own_shapes=own_shapes)

    def wrong_cases(self, variant: Variant, case: Case | None = None) -> Mapping[Case, str]:
        """Runs all checks of `tilewright check` (hostile shapes, data and memory), or only ``case``. Returns the cases
        in which the variant is incorrect, each with the mistake."""
        return self._checker.wrong_cases(variant.task, self.workloads, FULL_CHECK_SECONDS, case)

    def close(self) -> None:
        self._checker.close()


def with_outcome(attempts: Sequence[Attempt], variant: Variant, status: AttemptStatus, reason: str) -> Attempts:
    """Returns ``attempts`` with a new outcome for ``variant``."""
    others = [attempt for attempt in attempts if attempt.value != str(variant.value)]
    return (*others, variant.attempt(status, reason))


def metrics_of(
    variant: Variant, workload: Workload, bound: Bound, measured: MeasuredTime | None = None,
    ratio: Interval | None = None,
) -> Metrics:  # fmt: skip
    """Returns the variant's metrics. They are predicted if ``measured`` is None. ``ratio``: time / baseline's time."""
    name, task, board = workload.name, variant.task, variant.board
    work, code, us = count(task, workload, board), variant.codes[name], measured.us if measured else None
    return Metrics(
        workload=name, measured=measured, predicted=variant.predicted[name] if measured is None else None,
        against_baseline=ratio, bound=bound, flops=work.flops, bytes=work.bytes, code=code, mix=code.mix,
        diagnosis=diagnosis_of(task, workload, (code, variant.grids[name]), bound, board, work, us),
    )  # fmt: skip
