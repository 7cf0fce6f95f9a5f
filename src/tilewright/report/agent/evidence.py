"""The evidence of a run of `agent`, from the ledger's records only: each change that was tried, with its outcome.

Each number has an id (see `sourced`). The id begins with the id of a measurement, such as ``RUN/m3/ratio/centre``, or
with the name of a list: ``items``, ``changes``, ``ends``, ``findings`` or ``run``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tilewright.coordinate.from_run import FOUND
from tilewright.coordinate.principles import principle_of
from tilewright.ledger.agent_records import (
    STEPS,
    AgentChange,
    AgentEnd,
    AgentFinding,
    AgentItem,
    AgentMeasurement,
    AgentParts,
    AgentRun,
)
from tilewright.ledger.codec import Dataclass, to_json
from tilewright.records import Json

APPLIED, ROLLED_BACK = "Applied", "Rolled back"


@dataclass(frozen=True)
class AgentEvidence:
    """A run of `agent` with all its records."""

    run: AgentRun
    parts: AgentParts

    @cached_property
    def records(self) -> dict[str, Json]:
        """The records as the ledger stores them. The key is the first part of their ids."""
        measured = {each.id.rpartition("/")[2]: each for each in self.parts.measurements}
        parts = {name: getattr(self.parts, name) for name in ("findings", "items", "changes")}
        by_id: dict[str, Json] = {name: to_json({each.id: each for each in records}) for name, records in parts.items()}
        ends = to_json({each.item: each for each in self.parts.ends})
        steps = to_json(
            {each.id: {step.name: step for step in self.parts.steps_of(each.id)} for each in self.parts.changes}
        )
        return {"run": to_json(self.run), self.run.run: to_json(measured), "ends": ends, "steps": steps, **by_id}

    @property
    def single(self) -> bool:
        """Whether the user asked for one change by name. Such a run has a different report."""
        return self.run.mode == "user-specified" and len(self.parts.items) == 1

    @property
    def tried(self) -> tuple[AgentChange, ...]:
        """The changes that were or will be implemented, in order. Changes that failed before ``implement`` are left
        out."""
        return tuple(each for each in self.parts.changes if each.texts and not self._stopped_early(each))

    def _stopped_early(self, change: AgentChange) -> bool:
        early = self.parts.steps_of(change.id)[: STEPS.index("implement")]
        return any(step.state == "failed" for step in early)

    def item_of(self, change: AgentChange) -> AgentItem | None:
        return next((item for item in self.parts.items if item.id == change.item), None)

    def tag(self, item: AgentItem) -> str:
        """Returns the principle of an item: stored, or else recognised in the item's text and changes."""
        names = (change.name for change in self.parts.changes_of(item.id))
        return item.tag or principle_of(" ".join((item.text, *names)))

    def also_found(self, item: AgentItem) -> Iterator[AgentFinding]:
        """Yields the findings of a recorded run that belong to the item of a change."""
        mine = (each for each in self.parts.findings if each.item == item.id != each.id)
        yield from (each for each in mine if each.id.startswith(FOUND))

    def measured(self, kind: str, change: str = "") -> AgentMeasurement | None:
        """Returns the last measurement of this kind. ``change``: the id of a change, or "" for the whole program."""
        found = [each for each in self.parts.measurements if each.kind == kind and each.change == change]
        return found[-1] if found else None

    def race(self, change: AgentChange) -> AgentMeasurement | None:
        """Returns the race of a change against the previous version."""
        return self.measured("race", change.id)

    @property
    def effect(self) -> AgentMeasurement | None:
        """The measurement of the user's own command: the first version against the last."""
        return self.parts.measurement(self.run.effect) or self.measured("effect")

    def proof(self, change: AgentChange | None = None) -> AgentMeasurement | None:
        """The measurement that counts the operations of the last version.

        If the last version was not measured in this way, this is the measurement of the version with ``change`` alone.
        """
        return self.parts.measurement(self.run.proof) or (self.measured("operations", change.id) if change else None)

    def site(self, change: AgentChange) -> str:
        """Returns the place of a change. The path is relative to the program's folder."""
        return change.site.removeprefix(f"{self.run.root}/")

    def state(self, change: AgentChange) -> str:
        """Returns `APPLIED`, `ROLLED_BACK`, or the next step of an unfinished run."""
        if change in self.parts.kept:
            return APPLIED
        steps = self.parts.steps_of(change.id)
        if any(step.name == "finish" for step in steps) or self.parts.end_of(change.item):
            return ROLLED_BACK
        return f"Not finished: the next step is {STEPS[len(steps)]}"

    def open_items(self) -> Iterator[AgentItem]:
        """Yields the items that have not ended, because the run was killed or is still running."""
        return (item for item in self.parts.items if self.parts.end_of(item.id) is None)

    def remaining(self) -> Iterator[tuple[AgentItem, AgentEnd]]:
        """Yields the items without a kept change, with their outcome."""
        for item in self.parts.items:
            end = self.parts.end_of(item.id)
            if end is not None and end.status != "applied":
                yield item, end

    @property
    def patch(self) -> str:
        """The patch of all kept changes. For an unfinished run: the patches of the changes, one after the other."""
        return self.run.patch or "".join(change.diff for change in self.parts.kept)

    def lines(self) -> Iterator[tuple[str, Dataclass]]:
        """Yields every record with its kind. The run is first."""
        yield "run", self.run
        for name in ("measurements", "findings", "items", "changes", "steps", "ends"):
            yield from ((name.removesuffix("s"), record) for record in getattr(self.parts, name))
