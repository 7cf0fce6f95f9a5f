"""The search of one workload: what is compiled next, and why the search stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache

from tilewright.errors import RequestError
from tilewright.records import Candidate, Configuration, Searched, Workload
from tilewright.space.space import Space
from tilewright.strategies import FOR_LARGE, LEAST, LISTED, MOST, strategy_of
from tilewright.strategies.base import Batch, Expectation, SearchSpace, best_us, next_batch

COUNTED = 25_000
"""Larger products are not counted: the number of points before constraints is given."""
COMPILE_SHARE = 0.8
"""The share of the time limit after which nothing more is compiled. The rest is for the last verification and race."""
SECONDS_EACH = 0.5
"""Wall time of one compiler, to estimate how many configurations a time limit allows. Typical kernels take 0.2 to 4 s;
if they take longer, the time limit ends the search."""
WORTH = 1.25
"""A configuration is shared with other workloads if its time here is at most this many times the shortest time. To read
and judge a shared configuration takes up to 0.1 s."""


class TimeLimit:
    """The end of the time that may be used for compiling. ``seconds``: None for no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = math.inf if seconds is None else time.monotonic() + COMPILE_SHARE * seconds

    @property
    def left(self) -> float:
        """Seconds; infinite without a limit."""
        return max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        return not self.left

    def divided(self, parts: int) -> TimeLimit:
        """Returns a limit after an equal part of the time that is left."""
        limit = TimeLimit(self.seconds)
        limit._end = time.monotonic() + self.left / parts
        return limit


@dataclass(frozen=True)
class Limits:
    """What the user allows: seconds for the whole run, and configurations to compile for each workload."""

    seconds: float | None = None
    candidates: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise RequestError(f"seconds is {self.seconds:g}; give a number above 0")
        if self.candidates is not None and self.candidates < 1:
            raise RequestError(f"candidates is {self.candidates}; give at least 1")


class Searching:
    """The search of one workload.

    strategy: its name; None for the default, which depends on the size of the space.
    pace: how many compilers a workload has for each second of the time limit.
    expected: makes the expected times of configurations. It is called only if they are needed.
    others: the searches of the task's other workloads that began before this one, and this one once it has begun.
    """

    def __init__(
        self, workload: Workload, space: Space, arch: int, limits: Limits, *, strategy: str | None = None,
        seeds: Sequence[Configuration] = (), seed: int = 0, pace: float = 1.0,
        expected: Callable[[], Expectation] | None = None, others: Collection[Searching] = (),
    ) -> None:  # fmt: skip
        self.workload, dims = workload, workload.dims
        self.size, self.exact = _size(SearchSpace(space, arch, dims, 0, tuple(seeds)))
        default = "exhaustive" if self.exact and self.size <= LISTED else FOR_LARGE
        self.strategy = strategy_of(default if strategy is None else strategy)
        most, self._most_why = self._most(limits, pace)
        known = expected() if expected is not None and most < self.size else None
        leaves_out = strategy is None and most == self.size
        self._expected = cache(expected) if expected is not None and leaves_out else None
        self.space = SearchSpace(
            space, arch, dims, most, tuple(seeds), seed, known, shared=self._outcomes_of_shared, counts=self._is_new
        )  # fmt: skip
        self._others = others
        self.asked: dict[Configuration, None] = {}
        """What the strategy asked for."""
        self.taken: dict[Configuration, None] = {}
        """What was compiled for other workloads, and is judged for this one, too."""
        self._new: set[Configuration] = set()
        """What the strategy asked for before any other workload did. Only this counts towards the limit."""
        self.judged: Mapping[Configuration, Candidate] = {}
        """The outcomes of all batches before the present one."""
        self.why = ""
        """Why the search stopped; "" while it goes on."""
        self._search = self.strategy.search(self.space)
        self.batch = self._checked(next(self._search, ()))

    def _most(self, limits: Limits, pace: float) -> tuple[int, str]:
        """Returns how many configurations may be compiled, and the reason in words."""
        if limits.candidates is not None:
            return min(limits.candidates, self.size), f"the limit --candidates {limits.candidates} was reached"
        if self.strategy.share == 1:
            return self.size, ""
        most = min(MOST, max(LEAST, round(self.strategy.share * self.size)), self.size)
        if limits.seconds is None:
            return most, f"it compiles at most {most} of them; --candidates N sets another limit"
        fits = int(COMPILE_SHARE * limits.seconds * pace / SECONDS_EACH)
        return max(1, min(fits, most)), f"a time limit of {limits.seconds:g} s allows about so many"

    def expected_us(self, config: Configuration) -> float | None:
        """Returns the expected time of a configuration in µs; None if it is not known, or if none may be left out.

        Slow configurations may be left out if all are compiled by default, but not if the user names the strategy.
        Strategies that choose have the expected times already.
        """
        if self._expected is None:
            return None
        [us] = self._expected().us([config])
        return us

    @property
    def every(self) -> Set[Configuration]:
        """All configurations with an outcome, now or soon."""
        return self.asked.keys() | self.taken.keys()

    def shared(self) -> dict[Configuration, Searching]:
        """Maps configurations that other searches asked for to the other search.

        Only those that may be fast, have the same code here, and were not asked for here.
        """
        found: dict[Configuration, Searching] = {}
        for other in self._with_same_code():
            for config in other._worth_sharing():
                new = config not in self.asked and config not in found
                if new and self.space.allows(config) and self._has_code_of(other, config):
                    found[config] = other
        return found

    def _with_same_code(self) -> Iterator[Searching]:
        """Yields the other searches, if the shipped configuration has the same code there.

        In most kernels, the machine code does not depend on the workload. If that of the shipped configuration does,
        no other configurations are compared, because reading each takes time.
        """
        for other in tuple(self._others):
            if other is not self and self._has_code_of(other, self.space.shipped):
                yield other

    def _worth_sharing(self) -> list[Configuration]:
        us = {config: best_us(outcome) for config, outcome in self.judged.items()}
        longest = WORTH * min(filter(None, us.values()), default=math.inf)
        return [config for config in tuple(self.asked) if config not in us or (us[config] or math.inf) <= longest]

    def _is_new(self, config: Configuration) -> bool:
        same = self._with_same_code()
        return not any(config in other.asked and self._has_code_of(other, config) for other in same)

    def _has_code_of(self, other: Searching, config: Configuration) -> bool:
        mine, its = self.space.expected, other.space.expected
        return mine is not None and its is not None and mine.code(config) == its.code(config)

    def _outcomes_of_shared(self) -> dict[Configuration, Candidate | None]:
        return {config: self.judged.get(config) for config in self.shared()}

    def take(self, configurations: Iterable[Configuration]) -> Batch:
        """Returns those of ``configurations`` that have no outcome yet. They are judged for this workload, too."""
        every = self.every
        new = tuple(each for each in configurations if each not in every)
        self.taken.update(dict.fromkeys(new))
        return new

    def next(self, judged: Mapping[Configuration, Candidate], limit: TimeLimit, *, late: bool = False) -> Batch:
        """Returns the next configurations to compile; () if the search is over.

        judged: all outcomes so far.
        late: whether the time limit ended the compilers of the present batch.
        """
        if self.why:
            return ()
        if late or limit.passed:
            return self._end(f"the time limit of {limit.seconds:g} s was reached")
        self.judged = dict(judged)
        while self.batch:
            outcomes = tuple(judged[config] for config in self.batch)
            self.batch = self._checked(next_batch(self._search, outcomes))
            if new := tuple(config for config in self.batch if config not in judged):
                return new
        full = len(self._new) >= self.space.most and len(self.every) < self.size
        return self._end(self._most_why if full else "it had no more configurations to try")

    def _end(self, why: str) -> Batch:
        self.why = why
        return ()

    def _checked(self, batch: Sequence[Configuration]) -> Batch:
        """Returns the new configurations of a batch, up to the limit. Raises RequestError for a forbidden one."""
        found: dict[Configuration, None] = {}
        for config in batch:
            is_new = self._is_new(config)
            if config in self.asked or (is_new and len(self._new) >= self.space.most):
                continue
            if not self.space.allows(config):
                raise RequestError(f"strategy '{self.strategy.name}' asks for {config}, which the space does not allow")
            found[config] = None
            if is_new:
                self._new.add(config)
        self.asked.update(found)
        return tuple(found)

    def forget(self) -> None:
        """Forgets measured times, because the workload moves to another GPU. What was compiled stays."""
        self.judged = {}

    def report(self, outcomes: Collection[Configuration], slow: Collection[Configuration] = ()) -> Searched:
        """Returns the record of the search. ``slow``: those of ``outcomes`` that are expected to be slow."""
        shared = sum(config not in self._new for config in outcomes)
        compiled = len(outcomes) - len(slow)
        return Searched(self.strategy.name, compiled, self.size, self.exact, self.why, shared, len(slow))


def _size(space: SearchSpace) -> tuple[int, bool]:
    """Returns the number of configurations, and whether it is exact. Otherwise some of them may be forbidden."""
    points = space.space.points + len(space.space.include) + len(space.seeds)
    return (points, False) if points > COUNTED else (sum(1 for _ in space.each()), True)
