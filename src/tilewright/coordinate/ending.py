"""Decides the outcome of an item and of a run. All functions are pure."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.coordinate.priority import WorkItem
from tilewright.ledger.agent_records import AgentChange, AgentEnd, AgentParts
from tilewright.program.trial import ChangeTrial
from tilewright.specialists.proposal import LATE, OUT_OF_TIME, NoProposal

NOTHING_NEW = NoProposal(
    "mechanism already present", "an earlier item has already tried the proposals of its specialists"
)


def ended(
    item: WorkItem, trials: Sequence[tuple[AgentChange, ChangeTrial]], refusals: Sequence[NoProposal], parts: AgentParts
) -> AgentEnd:
    """Returns the outcome of a work item: applied if one of its changes is kept, rolled back if one was tried, else
    remaining."""
    if applied := [change for change in parts.kept if change.item == item.id]:
        said = {change.id: trial.reason for change, trial in trials}
        reason = "; ".join(f"{change.name}: {said.get(change.id, 'kept before an interruption')}" for change in applied)
        return AgentEnd(item=item.id, status="applied", why="", reason=reason, evidence=_evidence(applied[-1], parts))
    if trials:
        change, trial = trials[-1]
        why, reason = trial.why or "blocked", trial.reason
        if trial.kept:  # it was correct and faster, but the user's files could not be changed
            reason = next(step.reason for step in parts.steps_of(change.id) if step.state == "failed")
        more = f"; other changes for it were {LATE.reason}" if LATE in refusals else ""
        return AgentEnd(item=item.id, status="rolled back", why=why, reason=f"{change.name}: {reason}{more}",
                        evidence=_evidence(change, parts))  # fmt: skip
    refusal = min(refusals, key=lambda each: (each != LATE, each.why == "blocked"), default=NOTHING_NEW)
    return AgentEnd(item=item.id, status="remaining", why=refusal.why, reason=refusal.reason, evidence=refusal.evidence)


def _evidence(change: AgentChange, parts: AgentParts) -> str:
    """Returns the id of the measurement that decided: the race, or else the last one before it."""
    mine = [each for each in parts.measurements if each.change == change.id]
    order = ("race", "outputs", "operations")
    return min(mine, key=lambda each: order.index(each.kind)).id if mine else ""


def stop_reason(parts: AgentParts, effect: str) -> str:
    """Returns how the run ended, in one line. A change that is faster by itself does not always make the whole program
    faster.
    """
    kept = len(parts.kept)
    if not kept:
        if not parts.changes and any(end.reason == LATE.reason for end in parts.ends):
            return f"no change was tried: {OUT_OF_TIME}"
        if parts.items:
            return "no change was kept"
        return (
            "nothing to change was found"
            if parts.measurements
            else "there was nothing to try, so the program was not run"
        )
    measured = parts.measurement(effect)
    changes = f"{kept} change{'s' if kept > 1 else ''} kept"
    if measured is None or measured.verdict == "failed":
        return f"{changes}; the effect on the command was not measured"
    if measured.verdict != "faster":
        return f"{changes}, each faster on its own; no effect on the whole command was shown"
    return f"{changes}; the command is faster beyond the noise"
