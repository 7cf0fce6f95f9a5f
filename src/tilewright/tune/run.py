"""A tuning run in the ledger: begun or resumed, saved workload by workload, finished."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from tilewright.hardware.machine import Target
from tilewright.ledger.file import key_of
from tilewright.ledger.records import TuneRun
from tilewright.ledger.tunings import TuneLedger
from tilewright.race.rules import Policy
from tilewright.records import Machine, TuningResult, Workload, WorkloadResult
from tilewright.task.loading import file_of, where_is
from tilewright.task.task import Task

PREDICTED = "predicted"
"""The strategy of a run that names none."""


class TuningRun:
    """The results of one run; without a ledger they are kept in memory only.

    A run with the same key that was interrupted goes on where it stopped, unless ``fresh``.
    """

    def __init__(
        self, ledger: TuneLedger | None, task: Task, target: Target, policy: Policy, workloads: Sequence[Workload],
        machine: Machine, top: int, strategy: str, seed: int | None, seeds: str | None, fresh: bool,
    ) -> None:  # fmt: skip
        self.ledger, self.task, self.target, self.machine, self.name = ledger, task, target, machine, ""
        self.workloads = tuple(workloads)
        self.done: dict[str, WorkloadResult] = {}
        self._record: TuneRun | None = None
        if ledger is None:
            return
        key = key_of(
            {
                "task": file_of(task).read_text(),
                "name": task.name,
                "board": target.board.name,
                "policy": policy.to_json(),
                "workloads": [workload.name for workload in workloads],
                "top": top,
                "seed": seed,
                "versions": dict(machine.versions),
                **({"seeds": seeds} if seeds else {}),
                **({"strategy": strategy} if strategy != PREDICTED else {}),
            }
        )
        interrupted = None if fresh else ledger.resume(key)
        if interrupted is not None:
            self.name, self.done = interrupted[0].run, dict(interrupted[1])
            ledger.note(f"resuming run {self.name}: {len(self.done)} of {len(workloads)} workloads are done")
            return
        board, where = target.board, where_is(task)
        self._record = TuneRun(
            key=key,
            task=task.name,
            machine=machine,
            measured=target.measured,
            where=where,
            board=board.name,
            bandwidth_gbs=board.bandwidth_gbs,
            dtype=task.compute_dtype,
            policy=policy.to_json(),
            top=top,
            seed=seed,
            reproduce=_command(where, board.arch, task, policy, self.workloads, top, strategy, seed, seeds),
        )

    @property
    def open(self) -> list[Workload]:
        """The workloads that are not done."""
        return [workload for workload in self.workloads if workload.name not in self.done]

    def begin(self) -> None:
        """A new run is in the ledger once its first workload was found sound: a refused request leaves none."""
        if self.ledger is not None and self._record is not None:
            self.name, self._record = self.ledger.begin(self._record).run, None

    def save(self, result: WorkloadResult) -> None:
        self.done[result.workload.name] = result
        if self.ledger is not None:
            self.ledger.save(self.name, result)

    def finish(self, seconds: Mapping[str, float]) -> TuningResult:
        """The whole run. ``seconds``: wall time of each stage."""
        if self.ledger is not None:
            self.ledger.finish(self.name, seconds)
        results = tuple(self.done[workload.name] for workload in self.workloads)
        return TuningResult(self.task.name, self.machine, self.target.measured, results, self.name, seconds)


def _command(
    where: str, arch: str, task: Task, policy: Policy, workloads: Sequence[Workload], top: int, strategy: str,
    seed: int | None, seeds: str | None,
) -> str:  # fmt: skip
    """The command that makes the run again."""
    words = ["tilewright", "tune", where, "--arch", arch, "--top", str(top), "--fresh"]
    if len(workloads) < len(task.workloads):
        words += [word for workload in workloads for word in ("--workload", workload.name)]
    usual = Policy()
    for name, value, default in (
        ("--l2", policy.l2, usual.l2), ("--launch", policy.launch, usual.launch),
        ("--tie-band", policy.tie_band, usual.tie_band), ("--strategy", strategy, PREDICTED), ("--seed", seed, None),
        ("--seeds", seeds, None),
    ):  # fmt: skip
        if value != default:
            words += [name, str(value)]
    return shlex.join(words)
