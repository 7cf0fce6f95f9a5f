"""Stores the rows of one run of `agent`. Each row is in the ledger before the work continues.

`RunBook.parts` has all stored rows, including those from before an interruption. To read a run for a report, use
`ledger.agent_runs.AgentLedger.load`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tilewright.coordinate.plan import ChangePlan, PlanStep
from tilewright.coordinate.priority import WorkItem
from tilewright.ledger.agent_records import (
    AgentChange,
    AgentEnd,
    AgentFinding,
    AgentItem,
    AgentMeasurement,
    AgentParts,
    AgentRun,
    AgentStep,
)
from tilewright.ledger.agent_runs import AgentLedger


class RunBook:
    """Writes the rows of one run."""

    def __init__(self, ledger: AgentLedger, run: AgentRun, parts: AgentParts) -> None:
        self.run, self.parts = run, parts
        self._ledger = ledger

    def measured(self, measurement: AgentMeasurement) -> str:
        """Stores a measurement, and returns its id."""
        stored = self._ledger.measured(self.run.run, measurement)
        self.parts = replace(self.parts, measurements=(*self.parts.measurements, stored))
        return stored.id

    def found(self, findings: Sequence[AgentFinding]) -> None:
        """Stores the findings that are not yet stored."""
        known = {each.id for each in self.parts.findings}
        for finding in (each for each in findings if each.id not in known):
            self._ledger.found(self.run.run, finding)
            self.parts = replace(self.parts, findings=(*self.parts.findings, finding))

    def planned(self, items: Sequence[WorkItem]) -> None:
        """Stores the items that are not yet stored."""
        known = {each.id for each in self.parts.items}
        for item in (each for each in items if each.id not in known):
            stored = AgentItem(id=item.id, text=item.text, impact=item.impact, effort=item.effort, risk=item.risk,
                               specialists=item.specialists, findings=item.findings, tag=item.tag,
                               change=item.change)  # fmt: skip
            self._ledger.planned(self.run.run, stored)
            self.parts = replace(self.parts, items=(*self.parts.items, stored))

    def proposed(self, change: AgentChange) -> AgentChange:
        """Gives a change an id, stores it, and returns it."""
        number = len(self.parts.changes_of(change.item)) + 1
        stored = replace(change, id=f"{change.item}.{number}")
        self._ledger.proposed(self.run.run, stored)
        self.parts = replace(self.parts, changes=(*self.parts.changes, stored))
        return stored

    def stepped(self, change: str, plan: ChangePlan) -> None:
        """Stores the steps of a plan that have ended and are not yet stored, in order."""
        ended = [step for step in plan.steps if step.state != "pending"]
        for step in ended[len(self.parts.steps_of(change)) :]:
            stored = AgentStep(change=change, name=step.name, state=_end(step), evidence=step.evidence,
                               reason=step.reason)  # fmt: skip
            self._ledger.stepped(self.run.run, stored)
            self.parts = replace(self.parts, steps=(*self.parts.steps, stored))

    def ended(self, end: AgentEnd) -> None:
        """Stores the outcome of an item."""
        self._ledger.ended(self.run.run, end)
        self.parts = replace(self.parts, ends=(*self.parts.ends, end))

    def finished(self, stop_reason: str, effect: str, proof: str, patch: str) -> None:
        """Ends the run."""
        self._ledger.finish(self.run.run, stop_reason, effect=effect, proof=proof, patch=patch)
        self.run, self.parts = self._ledger.load(self.run.run)


def _end(step: PlanStep) -> Literal["done", "failed", "left out"]:
    if step.state == "pending":
        raise ValueError(f"step '{step.name}' has not ended")
    return step.state
