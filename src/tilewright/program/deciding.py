"""Decides about a change of a program: a pure function of its outputs, its race, and the operations that ran.

A change that Tilewright proposes is kept only if its outputs are right, if it is faster beyond the noise, and if the
operations show that the changed code ran. A change that the user asked for stays unless it is wrong, or more than 5 %
slower.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.ledger.agent_records import WhyRemaining
from tilewright.program.outputs import ComparedRuns
from tilewright.program.race import ProgramRace
from tilewright.program.run import ProgramFailed

SLOWER_THAN_ASKED = 1.05
"""A change that the user asked for is reverted if the whole interval of after / before is above this ratio."""
FailedAt: TypeAlias = Literal["", "implement", "validate", "correctness"]


@dataclass(frozen=True)
class ChangeVerdict:
    """Whether a change is kept; if not, the step that it failed, and the reason."""

    kept: bool
    failed_at: FailedAt
    why: WhyRemaining | Literal[""]
    reason: str


@dataclass(frozen=True)
class OperationCount:
    """How often the operations of one pattern ran. ``expected``: whether the change makes it more or less often."""

    pattern: str
    expected: Literal["more", "less"]
    before: int
    after: int

    @property
    def shown(self) -> bool:
        """Whether the count changed as expected."""
        return self.after > self.before if self.expected == "more" else self.after < self.before


def counted(
    before: Mapping[str, int], after: Mapping[str, int], ran: Sequence[str], gone: Sequence[str]
) -> tuple[OperationCount, ...]:
    """Counts the operations and kernels of each pattern. ``before``, ``after``: name → count over the same steps."""
    asked: list[tuple[str, Literal["more", "less"]]] = [*((each, "more") for each in ran)]
    asked += [(each, "less") for each in gone]
    return tuple(OperationCount(each, how, _count(before, each), _count(after, each)) for each, how in asked)


def _count(operations: Mapping[str, int], pattern: str) -> int:
    found = re.compile(pattern)
    return sum(count for name, count in operations.items() if found.search(name))


def did_not_run(counts: Sequence[OperationCount]) -> str:
    """Returns why the counts do not show that the changed code ran; "" if they show it, or if there is no pattern.

    One pattern that matches is enough, because the operation that a change becomes depends on the device.
    """
    if not counts or any(each.shown for each in counts):
        return ""
    named = ", ".join(f"{each.pattern} ({each.before} before, {each.after} after)" for each in counts)
    return f"the operations do not show that the changed code ran: {named}"


def before_the_race(
    failed: ProgramFailed | None, compared: ComparedRuns | None, counts: Sequence[OperationCount]
) -> ChangeVerdict | None:
    """Returns the verdict on a change that need not be raced; None if it must be."""
    if failed is not None:
        late = failed.stage == "time limit"
        said = f"the changed program {'ran too long' if late else 'failed'}: {failed.last_line or failed.reason}"
        return ChangeVerdict(False, "implement", "blocked" if late else "inapplicable", said)
    if compared is not None and compared.verdict == "different":
        return ChangeVerdict(False, "correctness", "inapplicable", f"the outputs differ: {compared.reason}")
    if compared is None or not compared.right:
        why = compared.reason if compared is not None else "nothing was recorded"
        return ChangeVerdict(False, "correctness", "blocked", f"the outputs could not be compared: {why}")
    if unseen := did_not_run(counts):
        return ChangeVerdict(False, "implement", "inapplicable", unseen)
    return None


def after_the_race(raced: ProgramRace | ProgramFailed, asked: bool) -> ChangeVerdict:
    """Returns the verdict on a change whose outputs are right."""
    if isinstance(raced, ProgramFailed):
        return ChangeVerdict(False, "validate", "blocked", f"the race failed: {raced.last_line or raced.reason}")
    ratio = raced.ratio
    said = f"{ratio} of the time before"
    if raced.decided == "faster":
        return ChangeVerdict(True, "", "", f"{said}, which is faster beyond the noise")
    if not ratio.decided and not asked:
        return ChangeVerdict(False, "validate", "blocked", f"the race could not tell: {raced.reason}")
    if not asked:
        return ChangeVerdict(False, "validate", "applied but no gain", f"{raced.decided}: {said}")
    if ratio.low > SLOWER_THAN_ASKED:
        return ChangeVerdict(False, "validate", "applied but no gain", f"more than 5 % slower: {said}")
    shown = raced.decided if ratio.decided else "no difference was shown"
    return ChangeVerdict(True, "", "", f"{shown}, and kept because it was asked for: {said}")
