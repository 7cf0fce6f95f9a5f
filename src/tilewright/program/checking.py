"""Decides from the observed run of a changed program whether the change need be raced, and makes its trial."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ledger.agent_records import AgentChange, AgentMeasurement
from tilewright.program import deciding
from tilewright.program.deciding import ChangeVerdict, OperationCount, counted
from tilewright.program.measurements import outputs_measured, run_measured
from tilewright.program.outputs import EPS, compare
from tilewright.program.run import ProgramFailed, ProgramRun
from tilewright.program.trial import ChangeTrial


@dataclass(frozen=True)
class CheckedChange:
    """A change whose outputs were compared. ``verdict``: None if the change must be raced."""

    run: ProgramRun | ProgramFailed
    observed: AgentMeasurement
    outputs: AgentMeasurement | None
    verdict: ChangeVerdict | None

    def trial(self, raced: ChangeVerdict | None = None, race: AgentMeasurement | None = None) -> ChangeTrial:
        """Returns the trial. ``raced``: the verdict after the race, if there was one."""
        verdict = self.verdict or raced
        assert verdict is not None
        return ChangeTrial(kept=verdict.kept, failed_at=verdict.failed_at, why=verdict.why, reason=verdict.reason,
                           run=self.observed, outputs=self.outputs, race=race)  # fmt: skip


def checked_change(
    run: ProgramRun | ProgramFailed, change: AgentChange, before: ProgramRun, original: ProgramRun,
    noise: ProgramRun | None,
) -> CheckedChange:  # fmt: skip
    """Compares a changed program's run with that of the unchanged program, and counts its operations.

    before: a run of the version before the change. original, noise: runs of the unchanged program.
    """
    if isinstance(run, ProgramFailed):
        return CheckedChange(run, run_measured(run, change.id, ()), None, deciding.before_the_race(run, None, ()))
    compared, counts = compare(_expected(original, change), run, noise), counted_for(before, run, (change,))
    observed = run_measured(run, change.id, counts)
    outputs = outputs_measured(compared, change.id, observed.device)
    return CheckedChange(run, observed, outputs, deciding.before_the_race(None, compared, counts))


def counted_for(before: ProgramRun, after: ProgramRun, changes: tuple[AgentChange, ...]) -> tuple[OperationCount, ...]:
    """Counts the operations by which these changes show that they ran."""
    ran = dict.fromkeys(each for one in changes for each in one.ran)
    gone = dict.fromkeys(each for one in changes for each in one.gone)
    names = [{**run.operations, **run.kernels} for run in (before, after)]
    return counted(names[0], names[1], tuple(ran), tuple(gone))


def _expected(original: ProgramRun, change: AgentChange) -> ProgramRun:
    """Returns the run with which a change is compared. If the change rounds differently by design, the run allows
    rounding errors of bfloat16.
    """
    if change.risk != "lossy" or original.outputs is None:
        return original
    return replace(original, outputs=replace(original.outputs, eps=max(original.outputs.eps, EPS["bfloat16"])))
