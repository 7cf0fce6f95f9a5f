"""Defines the protocol of a search strategy: a generator that yields configurations and receives their outcomes.

    class Halving(Strategy):
        name = "halving"

        def search(self, space):
            outcomes = yield space.pool[:8]
            ...

    STRATEGY = Halving()

`tune` compiles the configurations of a batch, and nothing else. It verifies and races those with the shortest predicted
times. A strategy does no I/O and uses no GPU. Put the file into this folder, or name the strategy in the entry point
group ``tilewright.strategies`` of your package. Test it with `tilewright.testing.strategies.StrategyContract`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Protocol, TypeAlias

from tilewright.records import Candidate, Configuration, Value
from tilewright.space.space import Space

POOL = 2000
"""The most configurations in `SearchSpace.pool`."""

Batch: TypeAlias = tuple[Configuration, ...]
Outcomes: TypeAlias = tuple[Candidate, ...]
"""One outcome for each configuration of a batch, in the same order. Each is compiled, and has a predicted time if it
compiled. With a GPU, those with the shortest predicted times have measured times, too."""
Search: TypeAlias = Generator[Batch, Outcomes, None]


class Expectation(Protocol):
    """Knows, before anything is compiled, how long configurations probably take."""

    def us(self, configurations: Sequence[Configuration], like: Candidate | None = None) -> Sequence[float | None]:
        """Returns the expected time of each configuration in µs; None if it is not known.

        The order is more reliable than the times. A configuration takes up to 0.1 s.
        like: a compiled candidate, which shows how the compiler treats this kernel.
        """

    def identity(self, configuration: Configuration, like: Candidate | None = None) -> Hashable:
        """Returns a key that is equal for configurations that are expected to have equal machine code and launch.

        like: as for `us`.
        """

    def code(self, configuration: Configuration) -> Hashable:
        """Returns a key that is equal for configurations, also of other workloads, that are compiled once."""


def _nothing() -> Mapping[Configuration, Candidate | None]:
    return {}


def _always(_: Configuration) -> bool:
    return True


@dataclass(frozen=True)
class SearchSpace:
    """The configurations of one workload that a search may compile."""

    space: Space
    arch: int
    """The architecture, such as 90 for sm_90."""
    dims: Mapping[str, Value]
    most: int
    """How many configurations may be compiled. `tune` ends the search there."""
    seeds: Batch = ()
    """Configurations that the space does not list, from `tune --seeds`. They may be compiled, too."""
    seed: int = 0
    """For random choices. The same seed and outcomes must lead to the same search."""
    expected: Expectation | None = None
    shared: Callable[[], Mapping[Configuration, Candidate | None]] = _nothing
    """Returns the configurations that are compiled for other workloads of the task and have the same code here, with
    their outcomes for this workload; None before `tune` has judged them. `tune` judges them without being asked, and
    they do not count in ``most``."""
    counts: Callable[[Configuration], bool] = _always
    """Returns whether a configuration counts in ``most``. It does not if another workload has asked for its code."""

    @property
    def shipped(self) -> Configuration:
        """The configuration in production today. Every search should compile it first."""
        return self.space.shipped

    def each(self) -> Iterator[Configuration]:
        """Yields all configurations without duplicates, the shipped one first. A large space takes long to list."""
        yield from self.space.each(self.arch, self.dims)
        yield from (seed for seed in self.seeds if not self.space.declares(seed))

    @property
    def pool_is_all(self) -> bool:
        """Whether the pool has all configurations."""
        return self.space.points <= POOL

    @cached_property
    def pool(self) -> Batch:
        """All configurations, or random ones if there are more than `POOL`. The shipped one and the seeds are first."""
        some = (
            tuple(self.space.each(self.arch, self.dims))
            if self.pool_is_all
            else self.space.drawn(POOL, self.arch, self.dims, self.seed)
        )
        return tuple(dict.fromkeys((self.shipped, *self.seeds, *some)))

    def allows(self, config: Configuration) -> bool:
        """Returns whether a search may compile this configuration."""
        if config == self.shipped or config in self.seeds:
            return True
        return self.space.declares(config) and self.space.allows(config, self.arch, self.dims) is None

    def neighbours(self, config: Configuration) -> Batch:
        """Returns the configurations that differ from ``config`` in one knob by one step."""
        return tuple(each for each in self.space.neighbours(config, self.arch, self.dims) if self.space.declares(each))


class Strategy(ABC):
    """Chooses the configurations to compile. Users select a strategy by its ``name``."""

    name: str
    share: float = 0.25
    """The share of the configurations to which `tune` limits the search by default. 1 is no limit."""

    @abstractmethod
    def search(self, space: SearchSpace) -> Search:
        """Yields batches of configurations that ``space`` allows, and receives the outcomes of each batch.

        No configuration may be yielded twice. The search ends with the generator, or earlier: after ``space.most``
        configurations, or at the user's time limit.
        """


def best_us(outcome: Candidate) -> float | None:
    """Returns the measured time of an outcome, or else the predicted time; None if it has neither or is wrong."""
    if outcome.status in ("failed", "wrong"):
        return None
    time = outcome.measured or outcome.predicted
    return time.us if time else None


def fastest_first(outcomes: Iterable[Candidate]) -> list[Candidate]:
    """Returns the outcomes that have a time, sorted by `best_us`."""
    timed = [(us, outcome) for outcome in outcomes if (us := best_us(outcome))]
    return [outcome for _, outcome in sorted(timed, key=lambda pair: pair[0])]


def unseen(configurations: Iterable[Configuration], seen: Iterable[Configuration], count: int | None = None) -> Batch:
    """Returns the first ``count`` of ``configurations`` that are not in ``seen``, without duplicates."""
    old = set(seen)
    return tuple(islice((each for each in dict.fromkeys(configurations) if each not in old), count))


def batches(search: Search, outcomes: Callable[[Sequence[Configuration]], Outcomes]) -> Iterator[Batch]:
    """Yields the batches of a search, and sends the result of ``outcomes(batch)`` back to the search."""
    batch = next(search, ())
    while batch:
        yield batch
        batch = next_batch(search, outcomes(batch))


def next_batch(search: Search, outcomes: Outcomes) -> Batch:
    """Sends the outcomes of a batch to a search. Returns its next batch; () if the search has ended."""
    try:
        return search.send(outcomes)
    except StopIteration:
        return ()
