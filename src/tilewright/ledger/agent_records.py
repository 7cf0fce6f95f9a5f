"""The records of a run of `tilewright agent`, as the ledger stores them.

    AgentRun ─┬─ AgentMeasurement   RUN/m0, RUN/m1 …: every number of the run, and what each step cites as evidence
              ├─ AgentFinding       each finding or recommendation: the item that it became, or why it was dismissed
              ├─ AgentItem ── AgentEnd      the work, in its order, and how each item ended
              └─ AgentChange ── AgentStep   each change that was tried, and its seven steps

A ratio is time after / time before, in the same rounds. Below 1, the program became faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from tilewright.ledger.records import BaseRun, Risk
from tilewright.race.interval import Interval
from tilewright.records import Json

StepName: TypeAlias = Literal[
    "baseline", "backup", "prerequisites", "implement", "validate", "correctness", "finish"
]  # fmt: skip
STEPS: tuple[StepName, ...] = get_args(StepName)
"""The steps of a change, in order. `coordinate.plan.ABOUT` describes each step."""
StepEnd: TypeAlias = Literal["done", "failed", "left out"]
AgentMode: TypeAlias = Literal["user-specified", "autopilot"]
MeasurementKind: TypeAlias = Literal["baseline", "profile", "record", "outputs", "race", "operations", "effect"]
ItemStatus: TypeAlias = Literal["applied", "rolled back", "remaining"]
WhyRemaining: TypeAlias = Literal["mechanism already present", "inapplicable", "applied but no gain", "blocked"]


@dataclass(frozen=True, kw_only=True)
class AgentRun(BaseRun):
    """One run of `agent`. The fields from ``stop_reason`` on are empty until the run ends."""

    question: str
    mode: AgentMode
    program: tuple[str, ...]
    """The user's command, as a list of arguments."""
    root: str
    """The folder below which files may be changed."""
    specialists: tuple[str, ...]
    """The specialists of the question's route, in the order of their work."""
    why: str
    """The reason for the route."""
    trace: str
    """The line that records which case of the casebook (documented optimisations) was found."""
    bottleneck: str = ""
    bottleneck_evidence: str = ""
    """The first lines of the analysis with which autopilot began: bottleneck and evidence."""
    context: str = ""
    """The environment of the work. Each delegation contains this text."""
    options: Mapping[str, Json] = field(default_factory=dict)
    stop_reason: str | None = None
    effect: str = ""
    """The id of the measurement of the user's own command, baseline against final version. "" if nothing was kept."""
    proof: str = ""
    """The id of the measurement that counts the operations of the final version and of the baseline."""
    patch: str = ""
    """All kept changes, as a unified diff against the files at the start."""


@dataclass(frozen=True, kw_only=True)
class AgentMeasurement:
    """One measurement. The ledger gives the ``id``, such as ``RUN/m3``."""

    id: str = ""
    kind: MeasurementKind
    about: str
    """A short description of the measured thing."""
    change: str = ""
    """The id of the change. "" if the measurement is about the whole program."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The values by name and unit, such as ``step before, µs``."""
    ratio: Interval | None = None
    samples_us: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The times of each version in µs, in the order of the rounds."""
    verdict: str = ""
    """The result in one or two words: faster, slower, tied, equal, different and so on."""
    reason: str = ""
    device: str = ""
    """The device of the measurement, such as ``this CPU`` or the name of a GPU."""
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AgentFinding:
    """A finding of a profile or of a recorded run, a recommendation of an analysis, or a site (a place where a change
    applies)."""

    id: str
    kind: str
    """The kind of a profile's finding, the rule that found it in a recorded run, ``recommendation``, or ``site``."""
    level: str
    text: str
    item: str = ""
    """The item that the finding became; "" if it was dismissed."""
    dismissed: str = ""
    """The reason why the finding was dismissed; "" if it became an item."""
    evidence: str = ""
    """The id of the measurement, or ``file:line``."""


@dataclass(frozen=True, kw_only=True)
class AgentItem:
    """One piece of work. Items are stored in the order in which they are worked on."""

    id: str
    text: str
    impact: str
    """The expected impact: High, Medium or Low. ``effort`` has the same values."""
    effort: str
    risk: str
    specialists: tuple[str, ...]
    findings: tuple[str, ...] = ()
    """Ids of the findings that the item is about."""
    tag: str = ""
    """The principle by which the item saves time."""
    change: str = ""
    """The name of the change; "" if the specialists choose it."""


@dataclass(frozen=True, kw_only=True)
class AgentChange:
    """One change that was tried for an item. ``id``: the item's id and a number, such as ``R1.1``."""

    id: str
    item: str
    specialist: str
    name: str
    rationale: str
    site: str
    """``file:line``; "" if nothing was proposed."""
    risk: Risk = "lossless"
    delegation: str = ""
    """The text of the delegation to the specialist."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """The whole new text of each changed file, by absolute path."""
    before: Mapping[str, str] = field(default_factory=dict)
    """The whole text of each file before the change, by absolute path. New files are left out."""
    diff: str = ""
    ran: tuple[str, ...] = ()
    """Patterns of the names of operations and kernels that run more often with the change."""
    gone: tuple[str, ...] = ()
    """Patterns of the names of operations and kernels that run less often with the change."""


@dataclass(frozen=True, kw_only=True)
class AgentStep:
    """One step of a change's plan, in the order of `STEPS`."""

    change: str
    name: StepName
    state: StepEnd
    evidence: str = ""
    """The id of a measurement or of a journal entry, or ``file:line``. Every done step has one."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentEnd:
    """The outcome of an item.

    why: "" if one of its changes was kept.
    evidence: the id of the deciding measurement.
    """

    item: str
    status: ItemStatus
    why: WhyRemaining | Literal[""]
    reason: str
    evidence: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentParts:
    """Everything that a run has stored so far, each list in its order."""

    measurements: tuple[AgentMeasurement, ...] = ()
    findings: tuple[AgentFinding, ...] = ()
    items: tuple[AgentItem, ...] = ()
    changes: tuple[AgentChange, ...] = ()
    steps: tuple[AgentStep, ...] = ()
    ends: tuple[AgentEnd, ...] = ()

    def measurement(self, id: str) -> AgentMeasurement | None:
        """Returns the measurement with this id; None if there is none."""
        return next((one for one in self.measurements if one.id == id), None)

    def end_of(self, item: str) -> AgentEnd | None:
        """Returns the outcome of an item; None if it has not ended."""
        return next((one for one in self.ends if one.item == item), None)

    def steps_of(self, change: str) -> tuple[AgentStep, ...]:
        """Returns the stored steps of a change."""
        return tuple(one for one in self.steps if one.change == change)

    def changes_of(self, item: str) -> tuple[AgentChange, ...]:
        """Returns the changes that were tried for an item."""
        return tuple(one for one in self.changes if one.item == item)

    @property
    def kept(self) -> tuple[AgentChange, ...]:
        """Returns the kept changes: all seven steps of a kept change are done."""
        return tuple(
            change for change in self.changes
            if change.texts and [step.state for step in self.steps_of(change.id)] == ["done"] * len(STEPS)
        )  # fmt: skip
