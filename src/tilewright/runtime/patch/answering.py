"""Answers a search that Tilewright replaces, with the stored winner or with the result of a search of its own.

    mode → problem and key → store → lock → search → keep

If Tilewright cannot search here, one warning says so, and the program's own search runs. A look-up of a stored winner
imports neither the compiler nor the search.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from tilewright.errors import MachineError, in_one_line
from tilewright.records import Json, Value
from tilewright.runtime.arrays import Stream
from tilewright.runtime.environment import Environment
from tilewright.runtime.key import digest
from tilewright.runtime.modes import VARIABLE, Mode
from tilewright.runtime.store import evidence
from tilewright.runtime.store.warn_once import warn_once
from tilewright.runtime.store.winners import Winner

if TYPE_CHECKING:
    from tilewright.runtime.search.searching import SearchResult
    from tilewright.runtime.search.trials import FailedTrial, Trial

Result = TypeVar("Result")


@dataclass(frozen=True)
class Problem:
    """What is searched: the readable parts of its key, and the configurations as text.

    kernel: the kernel's name. config: returns the configuration with an index, or None if it has no named fields.
    trials: makes the launches of all configurations.
    """

    kernel: str
    parts: Mapping[str, Json]
    labels: tuple[str, ...]
    config: Callable[[int], Mapping[str, Value] | None]
    trials: Callable[[], Sequence[Trial | FailedTrial]]

    @property
    def key(self) -> str:
        return digest(self.parts)

    def fits(self, winner: Winner) -> bool:
        """Returns whether a stored winner is one of these configurations, and has an outcome for each of them. Times
        are numbers, because the caller gets them."""
        if winner.index is None or not 0 <= winner.index < len(self.labels):
            return False
        same = [outcome.get("label") for outcome in winner.outcomes] == list(self.labels)
        times = [outcome.get("us") for outcome in winner.outcomes]
        if not all(us is None or type(us) in (int, float) for us in times) or (same and times[winner.index] is None):
            return False
        return same and winner.label == self.labels[winner.index]


class Question(ABC, Generic[Result]):
    """One call of a search that Tilewright replaces.

    stream: the stream of the launches.
    owner: whose search it is, for messages.
    raised: the errors of Tilewright that the caller gets.
    """

    stream: Stream = None
    owner: str
    raised: tuple[type[Exception], ...] = ()

    @abstractmethod
    def problem(self, environment: Environment) -> Problem:
        """Returns the key and the configurations. Raises an error if the program's own search has to run."""

    @abstractmethod
    def result(self, problem: Problem, winner: Winner) -> Result:
        """Returns what the caller gets for a winner that fits the problem."""

    @abstractmethod
    def first(self) -> Result:
        """Returns the first configuration, not measured, for calls where no search is allowed."""

    @abstractmethod
    def original(self) -> Result:
        """Runs the program's own search."""

    @abstractmethod
    def searched(self, problem: Problem, environment: Environment) -> SearchResult:
        """Searches. Raises an error if the program's own search has to run."""

    @abstractmethod
    def tell(self, problem: Problem, search: SearchResult, result: Result) -> None:
        """Reports the outcome of a search to the user."""

    def untimed(self, problem: Problem, search: SearchResult) -> Result:
        """Returns the result of a search that timed nothing. It is not stored, so the next call tries again."""
        return first(self, problem, search.note)


def answer(question: Question[Result], now: Mode, environment: Environment) -> Result:
    """Returns the stored winner, or else the result of a search. Raises only the errors in ``question.raised``, and
    what the program's own search raises."""
    try:
        problem = question.problem(environment)
        winner = environment.winners.get(problem.key)
        if winner is not None and problem.fits(winner):
            return question.result(problem, winner)
        return _searched(question, problem, now, environment)
    except question.raised:
        raise
    except Exception as error:  # the user's program goes on
        reason = str(error) if isinstance(error, MachineError) else in_one_line(error)
        if now is Mode.STORED or environment.capturing(question.stream):  # the own search is not allowed either
            warn_once(f"cannot look up what is stored ({reason}); the first configuration is used")
            return question.first()
        warn_once(f"cannot search here ({reason}); {question.owner}'s own search does")
    return question.original()  # outside of `except`, so that an error here does not show ours as its cause


def first(question: Question[Result], problem: Problem, why: str) -> Result:
    """Returns the first configuration, and warns that it is not measured."""
    warn_once(
        f"{why}: {problem.kernel} runs with its first configuration, which is not measured "
        f"(key {problem.key[:12]}); fix: run the program once with {VARIABLE}=now",
        about=problem.key,
    )
    return question.first()


def _searched(question: Question[Result], problem: Problem, now: Mode, environment: Environment) -> Result:
    """Searches and stores the winner, unless no search is allowed here or another process is searching."""
    capturing = environment.capturing(question.stream)
    if now is Mode.STORED or capturing:
        why = "a CUDA graph is being captured" if capturing else f"{VARIABLE}=stored"
        return first(question, problem, f"{why}, and no winner is stored for this search")
    with environment.search_lock(problem.key, wait=True) as acquired:
        winner = environment.winners.get(problem.key)
        if winner is not None and problem.fits(winner):
            return question.result(problem, winner)  # another process stored it while this one waited
        if not acquired:
            return first(question, problem, "another process has been tuning this for long")
        search = question.searched(problem, environment)
        if search.outcomes[search.best].us is None:  # nothing fitted into memory
            return question.untimed(problem, search)
        launches = None
        with suppress(Exception):  # if a launch cannot be stored as data, the winner cannot be raced again
            launches = evidence.launches_of(problem.trials(), search)
        winner = evidence.winner_of(
            search, key=problem.key, kernel=problem.kernel, parts=problem.parts, labels=problem.labels,
            config=problem.config, launches=launches, origin="run",
        )  # fmt: skip
        stored = environment.winners.put(winner)
        result = question.result(problem, stored if problem.fits(stored) else winner)
    question.tell(problem, search, result)
    return result
