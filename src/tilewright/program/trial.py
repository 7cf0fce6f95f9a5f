"""Defines the result of a trial of a change, and the protocol of a judge. The coordinator uses both, and runs nothing
itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

from tilewright.ledger.agent_records import AgentChange, AgentMeasurement, WhyRemaining
from tilewright.profile.figures import Profile
from tilewright.program.findings.base import RunFinding

Texts: TypeAlias = Mapping[Path, str]
"""Absolute path of a user's file → its whole text."""


@dataclass(frozen=True, kw_only=True)
class ChangeTrial:
    """One change, judged on a copy of the program.

    why: the reason if the change is not kept; "" if it is kept. failed_at: the step that failed; "" if the change is
    kept. race: the result of the race against the incumbent; None if the change was not raced. outputs: the comparison
    with the unchanged program's outputs; None if the program failed.
    """

    kept: bool
    failed_at: Literal["", "implement", "validate", "correctness"]
    why: WhyRemaining | Literal[""]
    reason: str
    run: AgentMeasurement
    """The observed run: the operations that ran before and after the change."""
    outputs: AgentMeasurement | None = None
    race: AgentMeasurement | None = None


class Needed(NamedTuple):
    """Estimated times in seconds: of the next change up to its verdict, and of the race of the whole command."""

    change: float
    effect: float


class ProgramJudge(Protocol):
    """Runs versions of a program in copies, and judges them. `program.trying.ProgramTrials` implements it."""

    def baseline(
        self, original: Texts, incumbent: Texts, *, profile: bool = False, record: bool = False
    ) -> AgentMeasurement:
        """Runs the unchanged program. Raises MachineError or RequestError if it fails. ``profile``, ``record``: whether
        `profile` and `findings` of the incumbent will be called next.
        """
        ...

    def profile(self, incumbent: Texts) -> Profile | None:
        """Profiles the incumbent. Returns None if there is no GPU."""
        ...

    def findings(self, incumbent: Texts) -> tuple[RunFinding, ...]:
        """Records the operations of the incumbent in one run, and returns what the rules find in them. Raises
        ToolFailed if this run fails.
        """
        ...

    def needed(self) -> Needed:
        """Estimates the time of further work. Call `baseline` first."""
        ...

    def judge(
        self, change: AgentChange, incumbent: Texts, asked: bool, seconds: float, most: float = math.inf
    ) -> ChangeTrial:
        """Judges a change on top of the incumbent (the version with all changes kept so far). ``asked``: whether the
        user asked for this change by name.
        ``seconds``: how long its race should take, so that time is left for other changes. The race may take longer:
        always long enough for the fewest runs that can decide. ``most``: the seconds that are left for it.
        """
        ...

    def effect(
        self, original: Texts, final: Texts, changes: tuple[AgentChange, ...], seconds: float = math.inf
    ) -> tuple[AgentMeasurement, ...]:
        """Races the unchanged program against the final one, and counts the operations of both. Returns two
        measurements, of the kinds ``effect`` and ``operations``. The first is missing if the race failed.
        ``seconds``: the time that is left for it. It takes at least the time of the fewest runs that can decide.
        """
        ...
