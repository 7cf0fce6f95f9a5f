"""Asks a proposer outside of this process for changes, and lets what it answers through the gate of proposals.

How the proposer is reached is one function, `Ask`: `command.ProposerCommand` starts a process for each proposal, and
`mcp.mailbox.Mailbox` waits for an agent that is connected by MCP. Whatever goes wrong is a change with a reason: the
ledger has a row for each proposal, and the proposer gets the reason with its next request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from tilewright.candidate.guard import FileGuard
from tilewright.errors import RequestError, StorageError, ToolFailed
from tilewright.ledger.records import Iteration
from tilewright.optimize.proposed import Change, RefusedProposal, Seen
from tilewright.optimize.proposing.gate import texts_of
from tilewright.optimize.proposing.protocol import read_answer, request
from tilewright.optimize.proposing.regions import regions_of
from tilewright.printable import plural
from tilewright.records import Json

SECONDS, ATTEMPTS, FAILURES = 300.0, 10, 3
"""The defaults: the time limit of one answer, the most proposals, and after how many unusable answers in a row the
proposer is not asked again."""


@dataclass(frozen=True)
class Propose:
    """The options for a proposer.

    command: a command line, ``model:PROVIDER:NAME``, or a name for the `Ask` that the run is given.
    """

    command: str
    seconds: float = SECONDS
    attempts: int = ATTEMPTS
    failures: int = FAILURES
    only: bool = False
    """Whether the playbook is left out."""

    def __post_init__(self) -> None:
        if not self.seconds > 0 or self.attempts < 1 or self.failures < 1:
            raise RequestError("the seconds of a proposal must be above 0, and proposals and failures at least 1")


class NoAnswer(ToolFailed):
    """The proposer gave no answer. The message gives the reason in one line."""


class LedgerChanged(StorageError):
    """Somebody else wrote rows of this run into the ledger, so the run cannot be trusted and ends."""


class Ask(Protocol):
    """Reaches a proposer."""

    def __call__(self, request: Mapping[str, Json], seconds: float) -> str:
        """Returns the answer's text. Raises `NoAnswer` if there is none within ``seconds``."""


class ExternalProposer:
    """The proposer of a run. Implements `proposed.Proposer`."""

    def __init__(self, propose: Propose, ask: Ask, task_file: Path | None, folder: Path) -> None:
        """``folder``: the run's folder, for copies of files that change while the proposer runs."""
        self.options, self.ended = propose, ""
        self._ask, self._task_file, self._folder = ask, task_file, folder

    def propose(self, seen: Seen) -> Change | None:
        """Returns the next change; one that only has a reason if the answer cannot be tried. None if the proposer has
        nothing left, and `ended` says why. Raises LedgerChanged if the run cannot go on."""
        rows = [each for each in seen.iterations if each.by_proposer]
        regions = regions_of(seen.texts, self._task_file, [seen.facts.kernel])
        asked = request(seen, regions, self.options.attempts - len(rows), self._seconds(seen))
        title = "no answer"
        try:
            answer = read_answer(self._answer(asked, seen))
            if answer.done:
                self.ended = f"the proposer has nothing left: {answer.done}"
                return None
            title = answer.title
            return Change(title, answer.expected or "no reason given", texts_of(answer, seen.texts, regions))
        except (RefusedProposal, NoAnswer) as error:
            refused = error if isinstance(error, RefusedProposal) else RefusedProposal(str(error))
            return Change(title, "asked for a proposal", {}, refused=refused)

    def _seconds(self, seen: Seen) -> float:
        return min(self.options.seconds, max(seen.seconds_left, 1.0))

    def _answer(self, asked: Mapping[str, Json], seen: Seen) -> str:
        """Asks, and makes sure that meanwhile nobody changed the user's files or this run's rows in the ledger.

        A changed file is not restored, because the user may have edited it. Its content before is copied.
        """
        guard, rows, failure = FileGuard([*seen.texts, *filter(None, [self._task_file])]), seen.stored(), None
        try:
            answer = self._ask(asked, self._seconds(seen))
        except NoAnswer as error:
            failure = error
        if seen.stored() != rows:
            raise LedgerChanged("this run's rows in the ledger were changed while the proposer ran; start with --fresh")
        if (changed := guard.changed()) is not None:
            copy = self._folder / f"before-the-proposer-{changed.name}"
            copy.write_bytes(guard.original[changed] or b"")
            self.ended = f"{changed} changed while the proposer ran; its content before is in {copy}"
            raise RefusedProposal(f"{self.ended}; the answer was not read", True)
        if failure is not None:
            raise failure
        return answer


def stopped(limits: Propose, iterations: Sequence[Iteration]) -> str | None:
    """Returns why the proposer is not asked again; None if it is asked."""
    rows = [each for each in iterations if each.by_proposer]
    failures = len(list(takewhile(lambda each: each.unusable, reversed(rows))))
    if failures >= limits.failures:
        return f"{plural(failures, 'unusable answer')} of the proposer in a row (--propose-failures): {rows[-1].reason}"
    if len(rows) >= limits.attempts:
        return f"{plural(len(rows), 'proposal')} (--propose-attempts)"
    return None
