"""The records of a run of `tilewright agent`, as the ledger stores them.

    AgentRun ─┬─ AgentMeasurement   RUN/m0, RUN/m1 …: every number of the run, and what each step cites as evidence
              ├─ AgentFinding       each finding or recommendation: the item that it became, or why it was dismissed
              ├─ AgentItem ── AgentEnd      the work, in its order, and how each item ended
              └─ AgentChange ── AgentStep   each change that was tried, and its seven steps

A ratio is a time after over the time before, in the same rounds; below 1, the program became faster.
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
"""The steps of a change, in their order. `coordinate.plan.ABOUT` says what each does."""
StepEnd: TypeAlias = Literal["done", "failed", "left out"]
AgentMode: TypeAlias = Literal["user-specified", "autopilot"]
MeasurementKind: TypeAlias = Literal["baseline", "profile", "outputs", "race", "operations", "effect"]
ItemStatus: TypeAlias = Literal["applied", "rolled back", "remaining"]
WhyRemaining: TypeAlias = Literal["mechanism already present", "inapplicable", "applied but no gain", "blocked"]


@dataclass(frozen=True, kw_only=True)
class AgentRun(BaseRun):
    """One run of `agent`. The fields from ``stop_reason`` on are empty until it ends."""

    question: str
    mode: AgentMode
    program: tuple[str, ...]
    """The words of the user's command."""
    root: str
    """The folder whose files may be changed."""
    specialists: tuple[str, ...]
    """The route of the question, in the order of the work."""
    why: str
    """Why that is its route."""
    trace: str
    """The line of the casebook."""
    bottleneck: str = ""
    bottleneck_evidence: str = ""
    """The heads of the analysis that autopilot began with."""
    context: str = ""
    """Where the work runs: the same text is in every delegation."""
    options: Mapping[str, Json] = field(default_factory=dict)
    stop_reason: str | None = None
    effect: str = ""
    """The id of the measurement of the user's own command, baseline against final; "" if nothing was kept."""
    proof: str = ""
    """The id of the measurement that counts the operations of the final version against those of the baseline."""
    patch: str = ""
    """All kept changes, as a unified diff of the files at the start."""


@dataclass(frozen=True, kw_only=True)
class AgentMeasurement:
    """One measurement. The ledger gives the ``id``, such as ``RUN/m3``."""

    id: str = ""
    kind: MeasurementKind
    about: str
    """What was measured, in a few words."""
    change: str = ""
    """The id of the change; "" if it is about the program as a whole."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Name with its unit → number, such as ``step before, µs``."""
    ratio: Interval | None = None
    samples_us: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Version → its times in µs, in the order of the rounds."""
    verdict: str = ""
    """In one word or two: faster, slower, tied, equal, different …"""
    reason: str = ""
    device: str = ""
    """What it was measured on, such as ``this CPU`` or the name of a GPU."""
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AgentFinding:
    """A finding of a profile, a recommendation of an analysis, or a site in the source."""

    id: str
    kind: str
    """The kind of a profile's finding, ``recommendation``, or ``site``."""
    level: str
    text: str
    item: str = ""
    """The item that it became; "" if it was dismissed."""
    dismissed: str = ""
    """Why it was dismissed."""
    evidence: str = ""
    """The id of the measurement, or ``file:line``."""


@dataclass(frozen=True, kw_only=True)
class AgentItem:
    """One piece of work. Items are stored in the order in which they are worked on."""

    id: str
    text: str
    impact: str
    """Expected: High, Medium or Low, like ``effort``."""
    effort: str
    risk: str
    specialists: tuple[str, ...]
    findings: tuple[str, ...] = ()
    """Ids of the findings that it answers."""
    tag: str = ""
    """The principle by which it saves time."""
    change: str = ""
    """The name of the one change that it stands for; "" if its specialists choose."""


@dataclass(frozen=True, kw_only=True)
class AgentChange:
    """One change that was tried for an item. ``id``: the item's and a number, such as ``R1.1``."""

    id: str
    item: str
    specialist: str
    name: str
    rationale: str
    site: str
    """``file:line``; "" if nothing was proposed."""
    risk: Risk = "lossless"
    delegation: str = ""
    """The text that the specialist was handed."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Absolute path → its whole new text."""
    before: Mapping[str, str] = field(default_factory=dict)
    """Absolute path → its whole text before the change. A file that is new is not in it."""
    diff: str = ""
    ran: tuple[str, ...] = ()
    """Patterns of the names of operations and kernels that run more often with the change."""
    gone: tuple[str, ...] = ()
    """Patterns of those that run less often."""


@dataclass(frozen=True, kw_only=True)
class AgentStep:
    """One step of a change's plan, in the order of `STEPS`."""

    change: str
    name: StepName
    state: StepEnd
    evidence: str = ""
    """The id of a measurement, of an entry of the journal, or ``file:line``. A step that is done has one."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentEnd:
    """How an item ended. ``why`` is "" if a change of it was kept; ``evidence`` is the id of what decided."""

    item: str
    status: ItemStatus
    why: WhyRemaining | Literal[""]
    reason: str
    evidence: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentParts:
    """All that a run has stored so far, each in its order."""

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
        """Returns how an item ended; None while it has not."""
        return next((one for one in self.ends if one.item == item), None)

    def steps_of(self, change: str) -> tuple[AgentStep, ...]:
        """Returns the steps of a change that are stored."""
        return tuple(one for one in self.steps if one.change == change)

    def changes_of(self, item: str) -> tuple[AgentChange, ...]:
        """Returns the changes that were tried for an item."""
        return tuple(one for one in self.changes if one.item == item)

    @property
    def kept(self) -> tuple[AgentChange, ...]:
        """Returns the changes that were kept: those whose seven steps are done."""
        return tuple(
            change for change in self.changes
            if change.texts and [step.state for step in self.steps_of(change.id)] == ["done"] * len(STEPS)
        )  # fmt: skip
