"""Defines how a change of a program fared, and who judges it: data for the coordinator, which runs nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from tilewright.ledger.agent_records import AgentChange, AgentMeasurement, WhyRemaining
from tilewright.profile.figures import Profile

Texts: TypeAlias = Mapping[Path, str]
"""Absolute path of a user's file → its whole text."""


@dataclass(frozen=True, kw_only=True)
class ChangeTrial:
    """One change, judged on a copy of the program. ``kept`` with ``why`` = "" , or not kept and why.

    failed_at: the step that it did not pass; "" if it is kept.
    race: None if it was not raced. ``outputs``: None if the program failed.
    """

    kept: bool
    failed_at: Literal["", "implement", "validate", "correctness"]
    why: WhyRemaining | Literal[""]
    reason: str
    run: AgentMeasurement
    """The observed run: which operations ran, before and after."""
    outputs: AgentMeasurement | None = None
    race: AgentMeasurement | None = None


class ProgramJudge(Protocol):
    """Runs versions of a program in copies, and judges them. `program.trying.ProgramTrials` is the real one."""

    def baseline(self, original: Texts, incumbent: Texts) -> AgentMeasurement:
        """Runs the untouched version, and the incumbent if it differs. Raises MachineError or RequestError if the
        program fails by itself."""
        ...

    def profile(self, incumbent: Texts) -> Profile | None:
        """Profiles the incumbent; None if there is no GPU to profile."""
        ...

    def judge(self, change: AgentChange, incumbent: Texts, asked: bool, seconds: float) -> ChangeTrial:
        """Judges a change on top of the incumbent. ``asked``: the user asked for this change by name. ``seconds``: what
        its race should take, so that others have their turn; it may take the time of the fewest runs that can tell."""
        ...

    def effect(self, original: Texts, final: Texts, changes: tuple[AgentChange, ...]) -> tuple[AgentMeasurement, ...]:
        """Races the untouched version against the final one, and counts the operations of both: the measurements of
        the kinds ``effect`` and ``operations``, in this order. The first is missing if the race failed."""
        ...
