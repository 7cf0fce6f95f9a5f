"""The gate that every change goes through: verified, judged on time, against incumbent and baseline.

`measured.py` asks a GPU, `predicted.py` the interpreter and the model. Both take the variants of one iteration and say
which went furthest and whether it is kept. The metrics of a version are for the ledger.

A version that is right on the workloads' own shapes may still be wrong on the ragged ones that the kernel promises. So
what is about to be kept is checked by the interpreter too (`Interpreting`) where a GPU verified it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.hardware.architectures import Board
from tilewright.inspect.work import count
from tilewright.ledger.records import Attempt, Correctness, Metrics, WorkloadOutcome
from tilewright.machine_code.cubin import MachineCodeError, instruction_mix, opcodes
from tilewright.optimize.attempting import Variant
from tilewright.race.stats import Interval
from tilewright.records import Bound, Built, Checked, Json, MeasuredTime, Workload
from tilewright.task.task import Task
from tilewright.verify.quick import QuickChecker

CORRECTNESS: Mapping[str, Correctness] = {"correct": "PASS", "incorrect": "FAIL", "unverified": "unverified"}
"""The verdict of a check → the word of the ledger."""
CHECK_SECONDS = 20.0
"""For the check of one variant."""
FULL_CHECK_SECONDS = 60.0
"""For the last incumbent's check on hostile shapes and data."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The outcome of an iteration's variants."""

    best: Variant
    """The one that went furthest; kept or not."""
    correctness: Correctness
    keep: bool
    crashed: bool = False
    """Nothing was judged: every variant crashed or hung."""
    reason: str
    outcomes: tuple[WorkloadOutcome, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    environment: Mapping[str, Json] = field(default_factory=dict)


class Gate(Protocol):
    """Judges versions: verify → race → confirm → decide. ``measured``: on a GPU; otherwise times are predicted."""

    measured: bool

    @property
    def noise(self) -> Mapping[str, Interval]:
        """By workload: how far two copies of the baseline differ on this machine; empty where nothing is measured."""
        ...

    def baseline(self, variant: Variant) -> tuple[Metrics, ...] | str:
        """How the untouched code stands on each workload; the reason where it is not correct."""
        ...

    def judge(self, variants: Sequence[Variant], incumbent: Variant) -> Judged:
        """Which of them went furthest, the best predicted first, and whether it takes the incumbent's place."""
        ...

    def final(self, variant: Variant) -> tuple[Metrics, ...]:
        """How the last incumbent stands."""
        ...


class Interpreting:
    """Checks versions of one task, with one process for its trusted implementation."""

    def __init__(self, baseline: Task, board: Board, workloads: Sequence[Workload], seed: int) -> None:
        self.workloads = tuple(workloads)
        self._checker = QuickChecker(baseline, board, seed)

    def verdict(self, variant: Variant) -> Checked:
        """Of the variant's shipped configuration, on reduced shapes of every workload."""
        return self._checker.check(variant.task, self.workloads, quick=True, seconds=CHECK_SECONDS)

    def incorrect(self, variant: Variant) -> str | None:
        """On hostile shapes, data and memory, all that `tilewright check` tries: what is wrong, or None."""
        checked = self._checker.check(variant.task, self.workloads, quick=False, seconds=FULL_CHECK_SECONDS)
        return checked.reason if checked.verdict == "incorrect" else None

    def close(self) -> None:
        self._checker.close()


def metrics_of(
    variant: Variant,
    workload: Workload,
    bound: Bound,
    measured: MeasuredTime | None = None,
    ratio: Interval | None = None,
) -> Metrics:
    """Measured where there is a ``measured``; otherwise predicted. ``ratio``: to the baseline."""
    work = count(variant.task, workload, variant.board)
    return Metrics(
        workload=workload.name,
        measured=measured,
        predicted=variant.predicted[workload.name] if measured is None else None,
        against_baseline=ratio,
        bound=bound,
        flops=work.flops,
        bytes=work.bytes,
        code=variant.codes[workload.name],
        mix=_mix(variant, workload),
    )


def _mix(variant: Variant, workload: Workload) -> dict[str, int]:
    for one in variant.compiled:
        if one.unit.workload.name == workload.name and isinstance(one.built, Built):
            with suppress(MachineCodeError):
                return instruction_mix(opcodes([one.built.cubin])[0])
    return {}
